//! The models of Linux.

use std::io;

use super::super::{Leaf, Model, completion, datagram, readiness};
use super::not_here;
use crate::policy::Effect;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Uring, Model::Epoll, Model::Poll];

/// What the models of other systems are here.
pub(in crate::engine) const OTHERS: &str =
    "a model of Windows; epoll and uring are its counterparts on Linux";

/// The leaf of a model that only this system has.
pub(in crate::engine) fn leaf(model: Model) -> Option<Leaf> {
    Some(match model {
        Model::Epoll => Leaf { probe: readiness::epoll::probe, start: readiness::epoll::start },
        Model::Uring => Leaf { probe: completion::uring::probe, start: completion::uring::start },
        _ => return None,
    })
}

/// What every model of this system makes of a limit, where the table does not know the system.
pub(in crate::engine) const EFFECTS: &[(&str, &[Model], Effect)] = &[];

/// Starts the threads that serve datagrams.
pub(in crate::engine) fn start_datagrams(
    config: &datagram::DatagramConfig,
    make: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramEngineHandle> {
    use datagram::readiness::{prepare, run};
    use datagram::ring::DatagramRing;
    match config.model {
        Model::Epoll => datagram::start_workers(config, make, prepare, run::<readiness::epoll::Epoll>),
        Model::Uring => {
            datagram::start_workers(config, make, prepare, datagram::completion::run::<DatagramRing>)
        }
        other => Err(not_here(other)),
    }
}
