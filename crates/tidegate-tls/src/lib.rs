//! TLS as a layer around a service: the inner service sees plaintext, on every I/O model.
//!
//! The protocol is [rustls](https://docs.rs/rustls), which does no I/O either; this crate puts it between the bytes of
//! a connection and a session. TLS 1.2 and 1.3, and nothing older.
//!
//! | part | contents |
//! |---|---|
//! | [`TlsServer`] | a service whose accepted connections are encrypted |
//! | [`Identity`] | its certificate and key, loaded from files and reloadable |
//! | [`TlsClient`] | a service whose dialled connections are encrypted |
//! | [`Trust`] | which server certificates are trusted |
//! | [`TlsCounters`], [`Fault`] | counters of handshakes and errors |
//!
//! # Limits
//!
//! The layer buffers no output: what a session writes is encrypted immediately into the connection's outbox, whose
//! watermarks apply as usual. Of the input it keeps at most one unfinished record (18 KiB), and what the inner session
//! leaves unconsumed; both count towards [`Policy::input_bytes`](tidegate::Policy::input_bytes).
//!
//! # Closing
//!
//! A `close_notify` ends a direction (RFC 8446, section 6.1): the session's [`on_end`](tidegate::Session::on_end)
//! follows one, and its [`Flow::Shutdown`](tidegate::Flow::Shutdown), `Close` and `Linger` send one. A connection that
//! ends without it may have been truncated by an attacker: the session gets `on_close` without `on_end`, and must not
//! treat the data as complete.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod channel;
mod client;
mod fault;
mod pem;
mod server;
mod server_name;
mod session;

pub use client::{TlsClient, Trust};
pub use fault::{Fault, TlsCounters, TlsError};
/// The rustls version of this crate, for configurations.
pub use rustls;
pub use server::{Identity, TlsServer};
pub use session::{RECORD_BYTES, TlsLimits, TlsSession};

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
