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

/// All of them.
pub fn found() -> Vec<Extension> {
    Vec::new()
}
