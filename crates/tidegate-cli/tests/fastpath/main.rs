//! `tidegate fastpath`, the built binary, with programs that are no tidegate: this test binary once more, told by the
//! environment what to be.
#[macro_use]
#[path = "../../../tidegate/tests/harness/mod.rs"]
mod harness;

#[cfg(target_os = "linux")]
mod map;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    harness::run(map::trials())
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    harness::run([harness::left_out("fastpath", "a map of sockets is for Linux")])
}
