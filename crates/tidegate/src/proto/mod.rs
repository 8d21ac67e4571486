//! The sans-I/O core: no sockets, no clock, no threads.
//!
//! | part | contents |
//! |---|---|
//! | [`connection`] | one connection: events in, actions out; the only place that calls a session |
//! | [`session`] | the traits a connection calls; `erased`: a service without its session's type |
//! | [`outbox`] | the interface a session answers through |
//! | [`queue`] | unsent bytes |
//! | [`spliced`] | received bytes in pipes of the kernel, on their way to another connection |
//! | [`in_order`] | operations that complete in any order |
//! | [`datagram`] | queued replies to datagrams |
//! | [`table`] | all connections of a thread, under tokens that are never reused |
//! | [`timers`] | deadlines of all connections of a thread |
//! | [`timestamp`] | points in time, as a connection keeps them |
//! | [`semaphore`] | a fair semaphore |
//! | [`panics`] | panics of the application, and in destructors of its values |
//! | [`mail`] | addresses of sessions, for other sessions and threads |
//! | [`group`] | the same mail for many sessions, in one order |
//!
//! `now` is always passed in. Engines drive it with real sockets, tests without.

pub mod connection;
pub mod datagram;
pub mod dial;
pub(crate) mod erased;
pub mod group;
pub mod in_order;
pub mod mail;
pub mod outbox;
pub mod panics;
pub mod queue;
mod rare;
mod segments;
pub mod semaphore;
pub mod session;
mod session_timers;
pub mod spliced;
pub mod table;
pub mod timers;
pub mod timestamp;

pub use connection::{Action, Connection, Context, Direction, Event, NextStep, Receive};
pub use in_order::{Early, InOrder, Sequence, SequenceWindow};
pub use semaphore::{FairSemaphore, PermitState};
pub use table::{Table, Token};
pub use timers::{Resolution, Timers};
pub use timestamp::Timestamp;
