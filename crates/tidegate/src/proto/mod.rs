//! The pure heart: no sockets, no clock, no threads of its own.
//!
//! | part | what it is |
//! |---|---|
//! | [`connection`] | one connection: events in, actions out; the only place that calls a session |
//! | [`outbox`] | what a session may do besides reading |
//! | [`queue`] | bytes on their way out |
//! | [`datagram`] | replies to datagrams on their way out |
//! | [`table`] | all connections of a thread, under tokens that are never reused |
//! | [`timers`] | deadlines of all connections of a thread |
//! | [`semaphore`] | a bounded number of places, first in, first out |
//! | [`panics`] | panics of the application, and in destructors of its values |
//! | [`mail`] | addresses of sessions, for other sessions and threads |
//! | [`group`] | the same mail for many sessions, in one order |
//!
//! `now` is always passed in. Engines drive it with real sockets, tests with anything.

pub mod connection;
pub mod datagram;
pub mod dial;
pub mod group;
pub mod mail;
pub mod outbox;
pub mod panics;
pub mod queue;
pub mod semaphore;
mod session_timers;
pub mod table;
pub mod timers;

pub use connection::{Action, Connection, Context, Event, NextStep, Receive};
pub use semaphore::{FairSemaphore, PermitState};
pub use table::{Table, Token};
pub use timers::{Resolution, Timers};
