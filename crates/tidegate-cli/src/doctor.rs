//! `tidegate doctor`.

use crate::Outcome;

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_: Args) -> Outcome {
    Err(crate::Failure::Run(anyhow::anyhow!("being built")))
}
