//! tidegate's load generator: an ordinary user of the library's client side.
//!
//! A [`Plan`] says what to send, over how many connections and for how long; [`run`] carries it out and returns a
//! [`Report`]. Sessions are state machines without I/O, so the generator runs on every I/O model, as the servers do.
//!
//! | module | what it holds |
//! |---|---|
//! | [`plan`] | what to do |
//! | [`report`] | what came of it |
//! | `conductor` | opening in blocks, measuring, draining |
//! | `crew`, `tally` | what all sessions share: budget, stage, tallies |
//! | `pacer` | open loop: what is due when, and who begins it |
//! | `part` | one of several parts of a load |
//! | `ledger`, `window` | bringing the tallies together, each second and at the end |
//! | [`certificate`], `procs` | which side was the limit |
//! | [`histogram`], `merge` | distributions as text; several results as one |
//! | `echo`, `http` | the sessions |
//! | `together` | what each of several agents did |
//! | [`udp`] | datagrams: one socket for each flow, no connections |
//! | [`mod@ping`] | round trips of one message at a time, in nanoseconds |
//! | [`chat`](mod@chat) | members of a messenger, who check what they hear |
//! | [`attack`](mod@attack) | a mixed attack on a server of one's own |
#![forbid(unsafe_code)]

pub mod attack;
pub mod certificate;
pub mod chat;
mod conductor;
mod crew;
mod echo;
pub mod histogram;
mod http;
mod ledger;
mod merge;
mod pacer;
mod part;
pub mod ping;
pub mod plan;
mod procs;
pub mod report;
mod shape;
mod tally;
mod target;
mod together;
pub mod udp;
mod window;

pub use attack::{Attack, AttackReport, attack};
pub use chat::{ChatPlan, ChatReport, Speech, run_chat};
pub use conductor::{run, run_until};
pub use merge::{MergeError, merge};
pub use ping::{PingPlan, PingReport, ping};
#[cfg(target_os = "linux")]
pub use ping::{floor_echo, floor_ping};
pub use plan::{Amount, HttpShape, LoadError, Part, Plan, Protocol, Rate, Security, Target, TlsPlan};
pub use report::{OpenLoop, Phase, Report, Second, Status, TlsReport};
pub use tidegate_tls::{TlsError, Trust};
pub use together::{AgentReport, Loss, Together};
pub use udp::{Expect, UdpPlan, UdpReport, run_udp};
