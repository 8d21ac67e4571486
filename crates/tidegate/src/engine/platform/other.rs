//! A system that has only the models of every system.

use std::io;

use super::super::{Leaf, Model, datagram};
use super::not_here;
use crate::policy::Effect;
use crate::policy::datagram::{NOT_JOINED, ONE_EACH};
use crate::policy::table::EVERY;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Poll];

/// What the models of other systems are here.
pub(in crate::engine) const OTHERS: &str = "a model of Linux or Windows; use poll";

/// The leaf of a model that only this system has.
pub(in crate::engine) fn leaf(_: Model) -> Option<Leaf> {
    None
}

/// What models make of a limit on this system. That there is no fast path is said when it is looked for.
pub(in crate::engine) const EFFECTS: &[(&str, &[Model], Effect)] = &[
    ("fast_path", EVERY, Effect::Kept),
    ("batch", EVERY, ONE_EACH),
    ("segments", EVERY, NOT_JOINED),
    ("segment_bytes", EVERY, NOT_JOINED),
];

/// Starts the threads that serve datagrams.
pub(in crate::engine) fn start_datagrams(
    config: &datagram::DatagramConfig,
    _: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramEngineHandle> {
    Err(not_here(config.model))
}
