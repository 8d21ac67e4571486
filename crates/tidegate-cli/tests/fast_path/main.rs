//! `--fast-path`, the built binary: a process that cannot take part has plain TCP, with the right bytes, and logs why,
//! once. A process that is killed leaves no memory behind.
#[macro_use]
#[path = "../../../tidegate/tests/harness/mod.rs"]
mod harness;

#[cfg(target_os = "linux")]
mod ends;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    harness::run(ends::trials())
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    harness::run([harness::left_out("the_fast_path", "shared memory between processes is for Linux")])
}
