//! The I/O models, and the contract of an engine.
//!
//! | family | models | one loop, in |
//! |---|---|---|
//! | [`threads`] | `blocking`, `pool` | each its own: threads are the loop |
//! | [`readiness`] | `select`, `poll`, `epoll`; `async-select`, `event-select` | `readiness/event_loop.rs` |
//! | `completion` | `uring`; `overlapped`, `iocp`, `rio` | `completion/event_loop.rs` |
//! | [`tokio`] | `tokio` | the library's |
//! | [`datagram`] | every model, for datagrams | one for each family, in `datagram/` |
//!
//! What they share is in [`worker`], which knows none of them.
//!
//! # Contract
//!
//! An engine owns sockets and threads and nothing else. It turns what the kernel answers into a
//! [`proto::Event`](crate::proto::Event), hands it to the connection, and carries out the
//! [`proto::Action`](crate::proto::Action) that comes back. It never reads a limit and decides; it asks
//! [`policy`](crate::policy) or obeys. It fills every counter of [`stats`](crate::stats). It closes in three
//! steps: stop what is armed, join what is in flight, close. Memory that the kernel may still touch
//! is owned until the completion came back.
//!
//! Every leaf file has `probe` and `start`, which make a [`Leaf`], and then its way of waiting. It has a header with
//! four headings: *How it waits*, *What it bounds*, *What it costs*, *Where it differs*.

#[cfg(any(target_os = "linux", windows))]
mod completion;
pub(crate) mod datagram;
mod memory;
mod model;
mod platform;
mod readiness;
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
#[cfg_attr(
    not(all(test, feature = "testing")),
    allow(dead_code, reason = "what only the scripts of the library, or only those of users, need")
)]
pub(crate) mod simulated;
mod support;
mod threads;
#[cfg_attr(not(feature = "tokio"), path = "tokio/absent.rs")]
mod tokio;
mod worker;

pub use crate::model::{Model, ParseModelError};
pub use model::{Availability, Choice};
pub(crate) use support::{check, check_client, check_datagrams, check_endpoint, check_policy};
use worker::capacity;
pub(crate) use worker::command_queue::{Command, CommandQueue};
pub(crate) use worker::growth::Growth;
pub(crate) use worker::{EngineConfig, EngineHandle, WorkerContext};

use std::io;

/// What every model has, for connections.
struct Leaf {
    /// Whether it works here, found out by trying, and with a remark on how.
    probe: fn() -> Availability,
    /// Starts its threads; returns once all of them serve.
    start: fn(EngineConfig) -> io::Result<EngineHandle>,
}

/// The leaf of a model, if this system has it: the one place that matches on it.
fn leaf(model: Model) -> Option<Leaf> {
    Some(match model {
        Model::Blocking => Leaf { probe: threads::duplex::probe, start: threads::duplex::start },
        Model::Pool => Leaf { probe: threads::pool::probe, start: threads::pool::start },
        Model::Select => Leaf { probe: readiness::select::probe, start: readiness::select::start },
        Model::Poll => Leaf { probe: readiness::poll::probe, start: readiness::poll::start },
        Model::Tokio => Leaf { probe: tokio::probe, start: tokio::start },
        of_one_system => return platform::leaf(of_one_system),
    })
}

/// Starts the threads of a model.
pub(crate) fn start(model: Model, config: EngineConfig) -> io::Result<EngineHandle> {
    capacity::check_locked(&config.policy, model)?;
    let leaf = leaf(model).ok_or_else(|| platform::not_here(model))?;
    (leaf.start)(config)
}

/// The same for datagrams.
pub(crate) fn start_datagrams(
    config: &datagram::DatagramConfig,
    make: datagram::MakeService<'_>,
) -> io::Result<datagram::DatagramEngineHandle> {
    datagram::start(config, make).unwrap_or_else(|| platform::start_datagrams(config, make))
}

/// The best model that can be used here for datagrams.
pub(crate) fn best_for_datagrams() -> Model {
    let usable = |model: &Model| model.serves_datagrams().is_available();
    platform::BEST.iter().copied().find(usable).unwrap_or(Model::Blocking)
}
