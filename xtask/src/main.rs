//! `cargo xtask CHORE`: what developers do now and then.
#![forbid(unsafe_code)]

mod windows;

use clap::{Parser, Subcommand};

/// Chores of tidegate's developers.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build for Windows, and run the tests and a small bench under Wine. Installs nothing.
    Windows(windows::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Windows(args) => windows::run(&args),
    }
}
