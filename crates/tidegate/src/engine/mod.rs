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
//! Every leaf file has a `Leaf`, which is an [`Engine`]: its `MODEL`, `probe` and `start`; then its way of waiting. It
//! has a header with four headings: *How it waits*, *What it bounds*, *What it costs*, *Where it differs*.

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

/// What every leaf has, for connections. Nobody outside this folder can see it, and so nobody else implements it.
trait Engine {
    /// The model it is.
    const MODEL: Model;
    /// Whether it works here, found out by trying, and with a remark on how.
    fn probe() -> Availability;
    /// Starts its threads; returns once all of them serve.
    fn start(config: EngineConfig) -> io::Result<EngineHandle>;
}

/// Starts the threads of a model: the one place that matches on it.
pub(crate) fn start(model: Model, config: EngineConfig) -> io::Result<EngineHandle> {
    capacity::check_locked(&config.policy, model)?;
    match model {
        Model::Blocking => threads::duplex::Leaf::start(config),
        Model::Pool => threads::pool::Leaf::start(config),
        Model::Select => readiness::select::Leaf::start(config),
        Model::Poll => readiness::poll::Leaf::start(config),
        Model::Tokio => tokio::Leaf::start(config),
        of_one_system => platform::start(of_one_system, config),
    }
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
