//! Ready-made services: ordinary users of the tidegate library.
//!
//! | service | what it does |
//! |---|---|
//! | [`chat`] | a messenger: rooms, history and presence, as lines and over WebSocket |
//! | [`echo`] | sends back what it receives |
//! | [`files`] | HTTP: the files of a folder |
//! | [`http`] | answers every HTTP request with the same page |
//! | [`proxy`] | passes connections on to upstream servers |
//! | [`websocket`] | a service of messages, such as their echo |
//! | [`udp`] | echo and discard for datagrams |
//!
//! [`layers`] wrap a service: any of them, or one of your own.
#![forbid(unsafe_code)]

pub mod chat;
pub mod echo;
pub mod files;
pub mod http;
pub mod layers;
pub mod proxy;
pub mod udp;
pub mod websocket;

pub use chat::{Chat, ChatCounters, ChatLimits, ChatLimitsError, ChatStats};
pub use echo::Echo;
pub use files::{Coding, Files, FilesError, FilesOptions, Listing};
pub use http::{Http, HttpLimits, HttpLimitsError, Page, PageError};
pub use proxy::{Proxy, ProxyOptions, ProxyOptionsError};
pub use udp::{UdpEcho, UdpSink};
