//! Sessions and datagram services without sockets, in virtual time: for tests of services.
//!
//! A [`TestConnection`] drives the same `proto::Connection` as every engine, so input delivery, back-pressure and
//! closing are the real implementation; only the socket, the clock and the threads belong to the test. It runs on every
//! system, needs no time and no port, and is deterministic.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::testing::{TestConnection, splits};
//! use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Refusal, Service, Session};
//!
//! /// Answers each line by its length; a peer that is silent for a minute gets a last word.
//! struct Lines;
//!
//! impl Service for Lines {
//!     type Session = Lines;
//!     fn open(&self, _: &Peer) -> Result<Lines, Refusal> {
//!         Ok(Lines)
//!     }
//! }
//!
//! impl Session for Lines {
//!     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
//!         let complete = input.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
//!         for line in input[..complete].split_inclusive(|&byte| byte == b'\n') {
//!             out.write(format!("{}\n", line.len() - 1).as_bytes());
//!         }
//!         out.wake_at(out.now() + Duration::from_secs(60));
//!         Consumed::bytes(complete)
//!     }
//!
//!     fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
//!         out.write(b"bye\n");
//!         Flow::Close
//!     }
//! }
//!
//! // However the bytes are cut on their way, the answer is the same.
//! for pieces in splits(b"one\n\nthree\n") {
//!     let mut conn = TestConnection::open(&Lines)?;
//!     pieces.iter().for_each(|piece| conn.receive(piece));
//!     assert_eq!(conn.output(), b"3\n0\n5\n", "cut into {pieces:?}");
//!     conn.half_close();
//!     assert_eq!(conn.close_reason(), Some(CloseReason::Finished));
//! }
//!
//! // A minute passes at once.
//! let mut conn = TestConnection::open(&Lines)?;
//! conn.receive(b"unfinished");
//! conn.advance(Duration::from_millis(59_999));
//! assert_eq!(conn.output(), b"");
//! conn.advance(Duration::from_millis(1));
//! assert_eq!(conn.output(), b"bye\n");
//! # Ok::<(), Refusal>(())
//! ```
//!
//! An echo, byte for byte, against a peer that reads slowly:
//!
//! ```
//! use tidegate::testing::TestConnection;
//! # use tidegate::{Consumed, Outbox, Peer, Policy, Refusal, Service, Session};
//! # struct Echo;
//! # impl Service for Echo {
//! #     type Session = Echo;
//! #     fn open(&self, _: &Peer) -> Result<Echo, Refusal> {
//! #         Ok(Echo)
//! #     }
//! # }
//! # impl Session for Echo {
//! #     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
//! #         out.write(input);
//! #         Consumed::all(input)
//! #     }
//! # }
//! let mut conn = TestConnection::open(&Echo)?;
//! conn.stall(); // the peer reads nothing
//! let said = vec![b'x'; 10 << 20];
//! conn.receive(&said);
//! assert!(conn.queued() < 1 << 20, "the outbox holds the peer back");
//! conn.take(1000);
//! assert_eq!(conn.output().len(), 1000);
//! conn.resume();
//! assert_eq!(conn.output(), said);
//! # Ok::<(), Refusal>(())
//! ```
//!
//! # Layers and datagrams
//!
//! A layer, such as TLS, is a service like any other: open a connection to it and speak its protocol. [`TestDatagrams`]
//! tests a [`DatagramService`](crate::DatagramService).
//!
//! # Simulation
//!
//! With the feature `testing`, on Linux, `Simulation` runs a service on the real event loops over a simulated kernel,
//! with faults chosen by a seed; also one whose sessions dial.

mod connection;
mod datagrams;
#[cfg(all(feature = "testing", target_os = "linux", not(tidegate_loom)))]
mod simulation;
mod surroundings;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

pub use connection::{TestConnection, TestState};
pub use datagrams::TestDatagrams;
#[cfg(all(feature = "testing", target_os = "linux", not(tidegate_loom)))]
pub use simulation::Simulation;
pub use surroundings::TestDial;

/// Longest input that is split in every possible way: 2,048 of them.
const EVERY_SPLIT: usize = 12;

/// Ways to split `input` into pieces: all of them for at most 12 bytes; for longer input every piece size, from one
/// byte to all, and every split in two.
pub fn splits(input: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let short = input.len() <= EVERY_SPLIT;
    let ways = if short { 1 << input.len().saturating_sub(1) } else { 0 };
    let every = (0..ways).map(move |cuts: u32| cut(input, |at| cuts & (1 << (at - 1)) != 0));
    let longest = if short { 0 } else { input.len() };
    let sizes = (1..=longest).map(move |size| input.chunks(size).collect());
    let in_two = (1..longest).map(move |at| cut(input, |here| here == at));
    every.chain(sizes).chain(in_two)
}

/// Splits before each byte for which `is_cut` is true.
fn cut(input: &[u8], is_cut: impl Fn(usize) -> bool) -> Vec<&[u8]> {
    let mut from = 0;
    let ends = (1..=input.len()).filter(|&at| at == input.len() || is_cut(at));
    ends.map(|to| &input[std::mem::replace(&mut from, to)..to]).collect()
}
