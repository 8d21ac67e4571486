//! Functions that are asked for at run time: there are none here.

/// One of them.
#[derive(Debug)]
pub struct Extension {
    /// Its name.
    pub name: &'static str,
    /// How it was refused, if it was.
    pub refused: Option<std::io::Error>,
    /// What its absence means, and what to use in its place.
    pub without: &'static str,
}

/// TCP of this system has no shorter way between two ends on one host.
///
/// # Errors
/// Always.
pub fn hasten_loopback(_: &impl std::os::fd::AsFd) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this system has no loopback fast path"))
}

/// All of them.
pub fn found() -> Vec<Extension> {
    Vec::new()
}
