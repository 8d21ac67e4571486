//! A system that has only the models of every system.

use std::io;

use super::super::{Availability, EngineConfig, EngineHandle, Model, datagram};
use super::not_here;
use crate::policy::Effect;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Poll];

/// Whether a model works here.
pub(in crate::engine) fn probe(_: Model) -> Availability {
    Availability::Unavailable("a model of Linux or Windows; use poll".into())
}

/// What every model of this system makes of a limit. That there is no fast path is said when it is looked for.
pub(in crate::engine) const EFFECTS: &[(&str, Effect)] = &[("fast_path", Effect::Kept)];

/// Starts the threads of a model.
pub(in crate::engine) fn start(model: Model, _: EngineConfig) -> io::Result<EngineHandle> {
    Err(not_here(model))
}

/// Starts the threads that serve datagrams.
pub(in crate::engine) fn start_datagrams(
    config: &datagram::DatagramConfig,
    _: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramHandle> {
    Err(not_here(config.model))
}
