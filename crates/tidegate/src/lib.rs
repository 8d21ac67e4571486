//! A scalable socket server library: one application, any I/O model, every limit in one policy.
//!
//! An application is a [`Service`] whose [`Session`]s are state machines without I/O. A [`Server`] (or, for
//! the other direction, a [`Client`]) runs it on an I/O [`Model`] under a [`Policy`]:
//!
//! ```
//! use tidegate::{Consumed, Model, Outbox, Peer, Policy, Refusal, Server, Service, Session};
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     type Session = Echo;
//!     fn open(&self, _peer: &Peer) -> Result<Echo, Refusal> {
//!         Ok(Echo)
//!     }
//! }
//!
//! impl Session for Echo {
//!     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
//!         out.write(input);
//!         Consumed::all(input)
//!     }
//! }
//!
//! let server = Server::new(Echo).model(Model::Poll).policy(Policy::default()).bind("127.0.0.1:0")?;
//! println!("listening on {}", server.local_addr());
//! let running = server.start()?;
//! running.stop();
//! let stats = running.join();
//! assert_eq!(stats.accepted, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contents
//!
//! | module | contents |
//! |---|---|
//! | [`service`] | the traits an application implements |
//! | [`server`], [`client`] | running a service: listening or dialling |
//! | [`link`] | forwards bytes between two connections |
//! | [`policy`] | all limits |
//! | [`Model`] | the I/O models |
//! | [`fastpath`] | shared memory instead of TCP between two processes on one host |
//! | [`stats`] | the counters |
//! | [`testing`] | sessions without sockets, for tests of services |
//! | [`_tutorial`] | from an echo server to a tested service, step by step |
//! | [`_cookbook`] | mail, groups, timers, half-close, clients and dialling: a program each |
//!
//! # Compatible versions
//!
//! What may grow is `non_exhaustive` and has constructors or setters: limits, reasons, counters, what a session
//! answers. The slices `ALL` get longer with what they list. What these pages do not show and can be named all the same
//! is for tests, fuzzing and the other crates of this project: a minor version may change it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod client;
mod engine;
pub mod fastpath;
pub mod link;
mod model;
pub mod policy;
// Fuzz targets and the tests of other crates run its parts.
#[doc(hidden)]
pub mod proto;
pub mod server;
pub mod service;
pub mod stats;
pub mod testing;
mod types;

pub use client::{Client, ClientHandle, DatagramClient, Dialler, RunningClient};
pub use engine::{Availability, Choice, Model, ParseModelError};
pub use policy::{DatagramPath, DatagramPolicy, ParseDatagramPathError, Policy, PolicyError};
pub use server::{
    BoundDatagramServer, BoundServer, DatagramHandle, DatagramServer, Running, RunningDatagrams, Server,
    ServerHandle, StartError,
};
pub use service::{
    Activity, CloseReason, Consumed, DatagramService, Dial, DialError, Dialled, Flow, Group, Joined,
    LayerBuffer, Mail, Mailbox, MailboxError, Message, OffloadError, Origin, Outbox, Peer, Recipient,
    Refusal, Replies, SendError, Service, ServiceOptions, Session, Spliced, TlsPeer,
};
pub use stats::{DatagramStats, Stats};
pub use tidegate_os::endpoint::{Endpoint, ParseEndpointError};
pub use tidegate_os::file::FileRange;

/// System facilities for applications besides sockets: limits, processors, inherited sockets.
pub mod system {
    pub use tidegate_os::process::{allowed_cpus, descriptor_limit, pin_to_cpus, raise_descriptor_limit};
    pub use tidegate_os::socket::local_endpoint;
    /// Directories that no path can escape from, and reads of cached file data that do not block.
    // For the file service of this project.
    #[doc(hidden)]
    pub mod file {
        pub use tidegate_os::file::Listed;
        pub use tidegate_os::folder::{Folder, identity, is_exhausted, read_cached};
        pub use tidegate_os::socket::Blocking;
    }
    pub use tidegate_os::{descriptor, handover};
}

#[cfg(any(doc, doctest))]
#[doc = include_str!("tutorial.md")]
pub mod _tutorial {}

#[cfg(any(doc, doctest))]
#[doc = include_str!("cookbook.md")]
pub mod _cookbook {}

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
