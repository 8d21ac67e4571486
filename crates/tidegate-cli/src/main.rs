//! The `tidegate` command. All of it is in the library beside this file: cargo compiles a library as soon as the
//! interfaces of its dependencies are known, but a binary only when all of them are finished.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::main()
}
