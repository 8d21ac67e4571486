//! The conformance suite on every model of this system; see `cases.rs`.
#![forbid(unsafe_code)]

#[macro_use]
#[path = "../harness/mod.rs"]
mod harness;

#[macro_use]
#[path = "cases.rs"]
mod conformance;

use std::process::ExitCode;

use conformance::kit;

fn main() -> ExitCode {
    harness::run(conformance::trials().into_iter().chain([harness::models_of_another_system()]))
}
