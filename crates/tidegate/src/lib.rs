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
//! let server = Server::new(Echo).model(Model::Poll).policy(Policy::default()).bind("127.0.0.1:0".parse()?)?;
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
//! | module | what it holds |
//! |---|---|
//! | [`service`] | what an application implements |
//! | [`server`], [`client`] | running it: listening or dialling |
//! | [`link`] | two connections whose bytes go from one to the other |
//! | [`policy`] | every limit |
//! | [`engine`] | the I/O models |
//! | [`fastpath`] | shared memory between two processes of one host, in place of TCP |
//! | [`proto`] | the pure state machines underneath |
//! | [`stats`] | the counters every engine fills |
#![forbid(unsafe_code)]

pub mod client;
pub mod engine;
pub mod fastpath;
pub mod link;
mod model;
pub mod policy;
pub mod proto;
pub mod server;
pub mod service;
pub mod stats;

pub use client::{Client, DatagramClient, Dialler, RunningClient};
pub use engine::{Availability, Choice, Model, ParseModelError};
pub use policy::{DatagramPath, DatagramPolicy, Policy, PolicyError};
pub use server::{
    BoundDatagramServer, BoundServer, DatagramServer, Running, RunningDatagrams, Server, StartError,
};
pub use service::{
    Activity, CloseReason, Consumed, DatagramService, Dial, Flow, Group, Joined, LayerBuffer, Mail, Mailbox,
    MailboxError, OffloadError, Origin, Outbox, Peer, Refusal, Replies, Service, Session,
};
pub use stats::{DatagramStats, Stats};
pub use tidegate_os::endpoint::{Endpoint, ParseEndpointError};
pub use tidegate_os::file::FileRange;

/// What applications need of the system besides sockets: limits, processors, and sockets that come from elsewhere.
pub mod system {
    pub use tidegate_os::process::{
        End, Held, allowed_cpus, ask_to_end, clock_ticks_per_s, cpu_time, descriptor_limit, end_group,
        exact_sleeps, family, held, ignores_hangup, in_own_group, is_there, locked_memory_limit,
        memory_bytes, open_to_all, own_cpu_times, page_bytes, pin_to_cpus, proc_folder,
        raise_descriptor_limit, start_in_group, system_name,
    };
    pub use tidegate_os::socket::{is_out_of_buffers, local_endpoint};
    /// Folders that no name leads out of, and what the system has at hand of a file.
    pub mod file {
        pub use tidegate_os::file::{Listed, Patience};
        pub use tidegate_os::folder::{Folder, identity, is_exhausted, read_cached};
    }
    pub use tidegate_os::extension::{Extension, found as extensions};
    pub use tidegate_os::{descriptor, handover};
}

/// The example on the package's front page compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
