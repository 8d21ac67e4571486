//! The blocking family: threads that sleep in calls on one socket.
//!
//! | model | threads |
//! |---|---|
//! | [`duplex`] | two for each connection, as in the source: one receives, one sends |
//! | [`pool`] | a fixed number, fed by a queue of accepted sockets |
//!
//! `pool` parks quiet connections in a [`lot`]. Both have an acceptor that sleeps in `accept` ([`staff`]), and a control that dials and stops.

mod acceptor;
pub(super) mod duplex;
pub(super) mod pool;

#[cfg(target_os = "linux")]
mod idle_set;
#[cfg(not(target_os = "linux"))]
#[path = "idle_queue.rs"]
mod idle_set;
