//! A system that has only the models of every system.

use std::io;

use super::super::{Availability, EngineConfig, EngineHandle, Model, datagram};
use super::not_here;
use crate::policy::Effect;
use crate::policy::datagram::{NOT_JOINED, ONE_EACH};
use crate::policy::table::EVERY;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Poll];

/// Whether a model works here.
pub(in crate::engine) fn probe(_: Model) -> Availability {
    Availability::Unavailable("a model of Linux or Windows; use poll".into())
}

/// What models make of a limit on this system. That there is no fast path is said when it is looked for.
pub(in crate::engine) const EFFECTS: &[(&str, &[Model], Effect)] = &[
    ("fast_path", EVERY, Effect::Kept),
    ("batch", EVERY, ONE_EACH),
    ("segments", EVERY, NOT_JOINED),
    ("segment_bytes", EVERY, NOT_JOINED),
];

/// Starts the threads of a model.
pub(in crate::engine) fn start(model: Model, _: EngineConfig) -> io::Result<EngineHandle> {
    Err(not_here(model))
}

/// Starts the threads that serve datagrams.
pub(in crate::engine) fn start_datagrams(
    config: &datagram::DatagramConfig,
    _: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramEngineHandle> {
    Err(not_here(config.model))
}
