//! The fast path: the whole conformance suite over it, and what is its own: falling back, and peers that are killed.
#![forbid(unsafe_code)]

#[macro_use]
#[path = "../harness/mod.rs"]
mod harness;

#[cfg(target_os = "linux")]
#[macro_use]
#[path = "../conformance/cases.rs"]
mod conformance;

#[cfg(target_os = "linux")]
mod a_killed_peer_is_a_reset;
#[cfg(target_os = "linux")]
mod a_peer_without_the_option_sees_tcp;
#[cfg(target_os = "linux")]
mod an_offer_is_its_connections_own;
#[cfg(target_os = "linux")]
mod both_ends_are_sessions;
#[cfg(target_os = "linux")]
mod player;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
use conformance::kit;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let own = [
        a_killed_peer_is_a_reset::trials(),
        an_offer_is_its_connections_own::trials(),
        both_ends_are_sessions::trials(),
        a_peer_without_the_option_sees_tcp::trials(),
    ];
    let without = harness::left_out("models_without_the_fast_path", "blocking has none");
    harness::run(conformance::trials().into_iter().chain(own.into_iter().flatten()).chain([without]))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    harness::run([harness::left_out("the_fast_path", "shared memory between processes is for Linux")])
}
