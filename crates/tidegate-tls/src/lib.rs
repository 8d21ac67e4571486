//! TLS as a layer: a service inside it is spoken to in the clear and is none the wiser, on every I/O model.
//!
//! The protocol is [rustls](https://docs.rs/rustls), which does no I/O either; this crate puts it between the bytes of
//! a connection and a session. TLS 1.2 and 1.3, and nothing older.
//!
//! | part | what it is |
//! |---|---|
//! | [`TlsServer`] | a service whose accepted connections are encrypted |
//! | [`Identity`] | its certificate and key, read from files, again when told to |
//! | [`TlsClient`] | a service whose dialled connections are encrypted |
//! | [`Trust`] | which certificates the other end may have |
//! | [`TlsCounters`], [`Fault`] | handshakes, and what went wrong |
//!
//! # What it bounds
//!
//! The layer buffers nothing that goes out: what a session says is encrypted at once into the connection's own outbox,
//! whose marks hold as they do without it. Of what comes in it keeps at most one unfinished record (18 KiB), and what
//! the session inside leaves; both count towards [`Policy::input_bytes`](tidegate::Policy::input_bytes).
//!
//! # Ends
//!
//! A `close_notify` is the end of a direction (RFC 8446, section 6.1): the session's
//! [`on_end`](tidegate::Session::on_end) follows one, and its [`Flow::Shutdown`](tidegate::Flow::Shutdown), `Close` and
//! `Linger` send one. A connection that ends without it may have been cut off by somebody in between: the session is
//! told that it closed and not that it ended, and nothing that depends on its end may be believed.
#![forbid(unsafe_code)]

mod channel;
mod client;
mod fault;
mod server;
mod session;

pub use client::{TlsClient, Trust};
pub use fault::{Fault, TlsCounters, TlsError};
pub use server::{Identity, TlsServer};
pub use session::{RECORD_BYTES, TlsLimits, TlsSession};
