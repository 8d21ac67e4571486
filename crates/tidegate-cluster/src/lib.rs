//! tidegate past one machine, over [NATS](https://nats.io): a load that agents on many hosts carry together, and rooms
//! of the messenger that span nodes.
//!
//! [`agent::serve`] waits for work and does it; [`lead::carry_out`] hands a plan out, starts all agents at one moment,
//! and brings what they say together. docs/cluster.md describes the messages.
//!
//! | module | what it holds |
//! |---|---|
//! | [`access`] | how the broker is reached: credentials, TLS |
//! | [`agent`] | an agent: one plan at a time |
//! | [`lead`] | who hands the plan out: muster, clocks, start, watch, result |
//! | [`allow`] | which targets an agent takes |
//! | [`order`] | a plan as it is sent |
//! | [`wire`] | the messages and their subjects |
//! | [`rooms`] | the messenger's rooms over several nodes |
//! | `clock` | clocks of hosts against each other |
//! | `seconds` | seconds of several agents as one |
//! | [`text`] | text that others wrote, for logs and terminals |
//! | `seldom` | how often something is said that others can bring about |
#![forbid(unsafe_code)]

pub mod access;
pub mod agent;
pub mod allow;
mod clock;
mod error;
pub mod lead;
pub mod order;
pub mod rooms;
mod seconds;
mod seldom;
pub mod text;
pub mod wire;

pub use access::{Access, Auth};
pub use allow::AllowList;
pub use error::ClusterError;
pub use order::{TlsOrder, TrustOrder};
