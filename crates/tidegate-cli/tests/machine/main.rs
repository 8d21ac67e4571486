//! What takes a program or a right that not every machine has, with the built binary: ignored with the reason where it
//! is missing.
#[macro_use]
#[path = "../../../tidegate/tests/harness/mod.rs"]
mod harness;

#[cfg(target_os = "linux")]
mod competitors;
#[cfg(unix)]
mod counts;
#[cfg(unix)]
#[path = "../serve/kit.rs"]
#[allow(dead_code, reason = "the suite of `serve` uses the rest")]
mod kit;
#[cfg(unix)]
mod metrics;
#[cfg(unix)]
mod processes;
#[cfg(target_os = "linux")]
mod ring;
mod shell;

use std::process::{Command, ExitCode, Stdio};

/// Whether a program is installed.
fn has(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn main() -> ExitCode {
    let all = [
        shell::trials(),
        #[cfg(unix)]
        counts::trials(),
        #[cfg(unix)]
        metrics::trials(),
        #[cfg(unix)]
        processes::trials(),
        #[cfg(target_os = "linux")]
        ring::trials(),
        #[cfg(target_os = "linux")]
        competitors::trials(),
    ];
    harness::run(all.into_iter().flatten())
}
