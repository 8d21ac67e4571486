//! The family of threads that sleep in calls on one socket.
//!
//! | model | threads |
//! |---|---|
//! | [`duplex`] | two for each connection, as in the book: one receives, one sends |
//! | [`pool`] | a fixed number, fed by a queue of accepted sockets |
//!
//! `pool` parks quiet connections in a [`idle_set`]. Both have an acceptor that sleeps in `accept` ([`acceptor`]), and
//! a control thread that dials and stops.

mod acceptor;
pub(super) mod duplex;
pub(super) mod pool;

#[cfg(target_os = "linux")]
mod idle_set;
#[cfg(not(target_os = "linux"))]
#[path = "idle_queue.rs"]
mod idle_set;
