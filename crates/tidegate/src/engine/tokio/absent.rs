//! `tokio` in a build without the feature of that name.

use std::io;

use super::{Availability, Engine, EngineConfig, EngineHandle, Model};

const WHY: &str = "built without it; enable the feature `tokio` of the crate tidegate";

/// The model.
pub(in crate::engine) struct Leaf;

impl Engine for Leaf {
    const MODEL: Model = Model::Tokio;

    /// Whether it works here: no.
    fn probe() -> Availability {
        Availability::Unavailable(WHY.into())
    }

    /// Refuses, as everybody does who asked [`probe`](Self::probe) first.
    fn start(_: EngineConfig) -> io::Result<EngineHandle> {
        Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
    }
}
