//! `tidegate load --nats` and `tidegate agent`, the built binary, with a real broker: three agents and one server on
//! loopback.
#[macro_use]
#[path = "../../../tidegate/tests/harness/mod.rs"]
mod harness;

#[cfg(unix)]
mod credentials;
#[cfg(unix)]
mod established;
#[cfg(unix)]
mod failures;
#[cfg(unix)]
mod forgery;
#[cfg(unix)]
mod kit;
#[cfg(unix)]
mod losses;
#[cfg(unix)]
mod reach;
#[cfg(unix)]
mod relay;
#[cfg(unix)]
mod slowness;
#[cfg(unix)]
mod together;

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    let all = [
        together::trials(),
        credentials::trials(),
        failures::trials(),
        forgery::trials(),
        losses::trials(),
        reach::trials(),
        slowness::trials(),
    ];
    harness::run(all.into_iter().flatten())
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    harness::run([harness::left_out("cluster", "these tests speak with signals")])
}
