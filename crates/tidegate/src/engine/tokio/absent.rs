//! `tokio` in a build without the feature of that name.

use std::io;

use super::{Availability, EngineConfig, EngineHandle};

const WHY: &str = "built without it; enable the feature `tokio` of the crate tidegate";

/// Whether it works here: no.
pub(in crate::engine) fn probe() -> Availability {
    Availability::Unavailable(WHY.into())
}

/// Refuses, as everybody does who asked [`probe`] first.
pub(in crate::engine) fn start(_: EngineConfig) -> io::Result<EngineHandle> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
}
