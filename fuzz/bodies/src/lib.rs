//! What the fuzz targets run. Each takes any bytes and panics if a promise is broken.
//!
//! | target | what the bytes are | what is promised |
//! |---|---|---|
//! | [`core()`] | what happens to the connections of one thread, and what their sessions answer | no byte lost, doubled or reordered; counters balance; deadlines fire; actions follow from the state |
//! | [`http()`] | cuts, then requests of a client | the answers do not depend on the cuts, and are HTTP; input is bounded |
//! | [`path()`] | the target of a request | the name that comes of it stays in the folder, is not hidden, and means itself |
//! | [`proxy()`] | cuts, then a stream with a PROXY protocol header | the client and its bytes do not depend on the cuts; header is bounded |
//! | [`answer()`] | cuts, then answers of a server to the load generator | what is understood does not depend on the cuts |
//! | [`websocket()`] | cuts, then frames of a client | the answers do not depend on the cuts, and are frames; input is bounded |
//! | [`chat()`] | cuts, then what a member of the messenger sends | what it and another one hear does not depend on the cuts, and is numbered text |
//! | [`broker()`] | a message of a broker, to nodes, agents and their lead | it is understood or refused; what is understood is within its bounds |
//! | [`offer()`] | what a dialler of the fast path says first | what is understood fits into a message, and means the same again |
//! | [`hostile()`] | what a peer of the fast path does to the shared memory | a running server neither ends nor hangs, and is rid of it |
//!
//! `tests/corpora.rs` replays every corpus with a plain `cargo test`.
#![forbid(unsafe_code)]

mod answer;
mod broker;
mod chat;
mod core;
mod cuts;
#[cfg(target_os = "linux")]
mod hostile;
mod http;
#[cfg(target_os = "linux")]
mod offer;
mod path;
mod proxy;
mod websocket;
// One form of frames for the tests of the service and for the target.
#[path = "../../../crates/tidegate-services/tests/websocket/frames.rs"]
#[allow(missing_docs, clippy::expect_used, reason = "a test harness")]
mod frames;
// One harness for the tests of the layer and for the targets.
#[path = "../../../crates/tidegate-services/tests/proxy/wire.rs"]
#[allow(missing_docs, clippy::expect_used, reason = "a test harness")]
mod wire;

pub use self::answer::answer;
pub use self::broker::broker;
pub use self::chat::chat;
pub use self::core::core;
#[cfg(target_os = "linux")]
pub use self::hostile::hostile;
pub use self::http::http;
#[cfg(target_os = "linux")]
pub use self::offer::offer;
pub use self::path::path;
pub use self::proxy::proxy;
pub use self::websocket::websocket;
