//! Runs ordinary async code as tidegate sessions: one future for each connection, on every I/O model.
//!
//! For existing async code (hyper, axum, tonic, custom protocols) that should run on `uring`, `epoll` or any other
//! [`Model`](tidegate::Model) without changes.
//!
//! ```
//! use tidegate::{Model, Server};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let echo = tidegate_async::service(async |mut conn| {
//!     let mut buffer = [0; 4096];
//!     while let Ok(n @ 1..) = conn.read(&mut buffer).await {
//!         if conn.write_all(&buffer[..n]).await.is_err() {
//!             return;
//!         }
//!     }
//! });
//! let running = Server::new(echo).model(Model::Poll).bind("127.0.0.1:0")?.start()?;
//! running.stop();
//! running.join();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it runs
//!
//! The future is polled on the I/O thread that owns its connection: when bytes arrive, when the outbox has drained,
//! when a timer of the connection fires, and when its waker is called from any thread. There is no reactor besides the
//! engine.
//!
//! | situation | what happens |
//! |---|---|
//! | the future does not read | receiving pauses; TCP flow control stops the peer |
//! | the future writes more than [`Policy::outbox`](tidegate::Policy::outbox) | its write waits until the peer has accepted enough |
//! | the future wakes itself forever | other connections of the thread are served in between |
//! | the connection ends, or the server's drain timeout passes | the future is dropped |
//! | the peer resets while the future leaves input unread | it is dropped at the latest by `idle_timeout`, if that is set |
//! | the future panics | only its connection is reset |
//! | the future drops a connection that it has dialled | what was written to that is sent, then it closes |
//! | the server drains | an idle connection closes; one that called [`Connection::draining`] decides itself |
//! | the future returns | what was written is sent, then the connection closes |
//!
//! A future that computes for long, or blocks, blocks every connection of its thread: see [`Connection::offload`].
//! The limits of the policy (idle, first byte, send timeout, minimum rate) apply as to any session.
//!
//! # Costs
//!
//! Three allocations for each connection, none for each poll. Output that is copied is one allocation of the outbox
//! until the kernel has taken it, as for every session: idle connections hold no buffer. On the connection's own thread
//! reads copy from what has just arrived, without a lock, and writes into the outbox, several pieces at once; input
//! that is not read at once, and output of other threads, are copied once more. Of the timers of a connection the first
//! needs no allocation.
//!
//! # Stack
//!
//! A stack that overflows ends the process, and hyper in a build without optimisation needs more than the 128 KiB that
//! threads of `blocking` and `pool` otherwise have. So a [`service()`] asks for 1 MiB there, or for what
//! [`stack_bytes`](AsyncService::stack_bytes) says; on the other models the code has 2 MiB. Only pages that are touched
//! use memory. [`Policy::thread_stack_bytes`](tidegate::Policy::thread_stack_bytes) sets another size; less than the
//! service asks for is an error when the server is bound.
//!
//! # Features
//!
//! `tokio` (default), `futures-io`, `hyper`: the traits that [`Connection`] implements.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod connection;
mod dial;
mod handle;
mod io;
mod lent;
mod offload;
mod service;
mod session;
mod shared;
mod spawn;
mod time;
mod timers;
mod waker;

pub use connection::{Connection, ReadHalf, ReuniteError, WriteHalf};
pub use dial::Dialling;
pub use handle::{ConnectionHandle, Draining};
#[cfg(feature = "hyper")]
pub use io::hyper::{Executor, Timer};
pub use offload::OffloadFailed;
pub use service::{AsyncService, service, service_with};
pub use session::AsyncSession;
pub use spawn::{JoinError, JoinHandle};
pub use time::{Elapsed, Sleep, Timeout};

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
