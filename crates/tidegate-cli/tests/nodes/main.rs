//! `serve chat --nats`, the built binary, with a real broker: rooms over several nodes.
#[macro_use]
#[path = "../../../tidegate/tests/harness/mod.rs"]
mod harness;

#[cfg(unix)]
mod forgery;
#[cfg(unix)]
#[path = "../cluster/kit.rs"]
#[allow(dead_code, reason = "not every user uses all of it")]
mod kit;
#[cfg(unix)]
mod node;
#[cfg(unix)]
#[path = "../cluster/relay.rs"]
#[allow(dead_code, reason = "not every user uses all of it")]
mod relay;
#[cfg(unix)]
mod rooms;
#[cfg(unix)]
mod slowness;

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    let all = [rooms::trials(), forgery::trials(), slowness::trials()];
    harness::run(all.into_iter().flatten())
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    harness::run([harness::left_out("nodes", "these tests speak with signals")])
}
