//! How a command ends.

/// What a command returns.
pub type CommandResult = Result<std::process::ExitCode, Failure>;

/// How a command failed.
pub enum Failure {
    /// The command line is invalid: exit code 2.
    Usage(anyhow::Error),
    /// The run failed: exit code 1.
    Run(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Self::Run(e)
    }
}

/// The command line is invalid.
pub fn usage(e: impl Into<anyhow::Error>) -> Failure {
    Failure::Usage(e.into())
}
