//! `tidegate load`.

use crate::Outcome;

/// Options of `load`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_: Args) -> Outcome {
    Err(crate::Failure::Run(anyhow::anyhow!("being built")))
}
