//! The models of Windows.

use std::io;

#[path = "../readiness/async_select.rs"]
mod async_select;
#[path = "../datagram/winsock.rs"]
mod datagrams;
#[path = "../readiness/event_select.rs"]
mod event_select;
#[path = "../completion/iocp.rs"]
mod iocp;
#[path = "../completion/operations.rs"]
mod operations;
#[path = "../completion/overlapped.rs"]
mod overlapped;
#[path = "../completion/rio.rs"]
mod rio;
#[path = "../completion/winsock.rs"]
mod winsock;

use super::super::{Leaf, Model, datagram};
use super::not_here;
use crate::policy::Effect;
use crate::policy::datagram::{NOT_JOINED, ONE_EACH};
use crate::policy::table::{EVERY, READINESS, WITHOUT_LOOP};

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Iocp, Model::EventSelect, Model::Poll];

/// What the models of other systems are here.
pub(in crate::engine) const OTHERS: &str = "a model of Linux; iocp is its counterpart on Windows";

/// The leaf of a model that only this system has.
pub(in crate::engine) fn leaf(model: Model) -> Option<Leaf> {
    Some(match model {
        Model::AsyncSelect => Leaf { probe: async_select::probe, start: async_select::start },
        Model::EventSelect => Leaf { probe: event_select::probe, start: event_select::start },
        Model::Iocp => Leaf { probe: iocp::probe, start: iocp::start },
        Model::Overlapped => Leaf { probe: overlapped::probe, start: overlapped::start },
        Model::Rio => Leaf { probe: rio::probe, start: rio::start },
        _ => return None,
    })
}

const NO_MEMORY: Effect = Effect::NoEffect("the fast path of Windows uses no shared memory");

/// What models make of a limit on this system: the fast path is an option of its sockets, and only posted receives of
/// datagrams come in batches.
pub(in crate::engine) const EFFECTS: &[(&str, &[Model], Effect)] = &[
    ("accept.defer", EVERY, Effect::NoEffect("Windows has no deferred accepts")),
    ("coalesce", EVERY, Effect::Refused("threads cannot sleep for microseconds on Windows: leave it out")),
    ("fast_path", EVERY, Effect::Kept),
    ("fast_path.ring_bytes", EVERY, NO_MEMORY),
    ("fast_path.handshake_timeout", EVERY, NO_MEMORY),
    (
        "fast_path.also_user",
        EVERY,
        Effect::Refused("TCP between two users of one host needs no permission here: leave it out"),
    ),
    ("batch", READINESS, ONE_EACH),
    ("batch", WITHOUT_LOOP, ONE_EACH),
    ("segments", EVERY, NOT_JOINED),
    ("segment_bytes", EVERY, NOT_JOINED),
];

/// Starts the threads that serve datagrams.
pub(in crate::engine) fn start_datagrams(
    config: &datagram::DatagramConfig,
    make: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramEngineHandle> {
    use datagram::completion::run as run_posted;
    use datagram::readiness::{prepare, run};
    use datagrams::PostedDatagrams;
    use tidegate_os::{events::Events, port::CompletionPort};
    match config.model {
        Model::Iocp => {
            datagram::start_workers(config, make, prepare, run_posted::<PostedDatagrams<CompletionPort>>)
        }
        Model::Overlapped => {
            datagram::start_workers(config, make, prepare, run_posted::<PostedDatagrams<Events>>)
        }
        Model::AsyncSelect => {
            datagram::start_workers(config, make, prepare, run::<async_select::AsyncSelect>)
        }
        Model::EventSelect => {
            datagram::start_workers(config, make, prepare, run::<event_select::EventSelect>)
        }
        other => Err(not_here(other)),
    }
}
