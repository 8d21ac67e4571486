//! The models of Linux.

use std::io;

use super::super::{
    Availability, Engine, EngineConfig, EngineHandle, Model, completion, datagram, readiness,
};
use super::not_here;
use crate::policy::Effect;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Uring, Model::Epoll, Model::Poll];

/// Whether a model works here.
pub(in crate::engine) fn probe(model: Model) -> Availability {
    match model {
        Model::Epoll => readiness::epoll::Leaf::probe(),
        Model::Uring => completion::uring::Leaf::probe(),
        _ => Availability::Unavailable(
            "a model of Windows; epoll and uring are its counterparts on Linux".into(),
        ),
    }
}

/// What every model of this system makes of a limit, where the table does not know the system.
pub(in crate::engine) const EFFECTS: &[(&str, &[Model], Effect)] = &[];

/// Starts the threads of a model.
pub(in crate::engine) fn start(model: Model, config: EngineConfig) -> io::Result<EngineHandle> {
    match model {
        Model::Epoll => readiness::epoll::Leaf::start(config),
        Model::Uring => completion::uring::Leaf::start(config),
        other => Err(not_here(other)),
    }
}

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
