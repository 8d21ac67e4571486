//! tidegate's load generator, built on the public client API of the library.
//!
//! A [`Plan`] says what to send, over how many connections and for how long; [`run`] carries it out and returns a
//! [`Report`]. Sessions are state machines without I/O, so the generator runs on every I/O model, as the servers do.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | the settings of a load |
//! | [`report`] | the results |
//! | `runner` | opening in blocks, measuring, draining |
//! | `run_state`, `thread_stats` | state shared by all sessions: budget, stage, counters |
//! | `pacer` | open loop: the schedule and its distribution over connections |
//! | `part` | one of several parts of a load |
//! | `recorder`, `measurement` | aggregation of counters, each second and at the end |
//! | [`verdict`], `procs`, [`cpu_time`] | which side was the limit; what a process used |
//! | [`text`] | numbers in sentences |
//! | [`histogram`], `merge` | distributions as text; several results as one |
//! | `echo`, `http` | the sessions |
//! | `silence` | how a target says nothing, and what to do |
//! | `together` | the results of each of several agents |
//! | [`udp`] | datagrams: one socket for each flow, no connections |
//! | [`mod@ping`] | round trips of one message at a time, in nanoseconds |
//! | [`chat`](mod@chat) | members of a messenger, who check what they receive |
//! | [`attack`](mod@attack) | a mixed attack on your own server |
#![forbid(unsafe_code)]

pub mod assessment;
pub mod attack;
pub mod chat;
pub mod cpu_time;
mod echo;
pub mod histogram;
mod http;
mod http_answer;
mod latency;
mod measurement;
mod merge;
mod pacer;
mod part;
pub mod ping;
pub mod plan;
mod procs;
mod recorder;
pub mod report;
mod run_state;
mod runner;
mod shape;
mod silence;
mod target;
pub mod text;
mod thread_stats;
mod together;
pub mod udp;
pub mod verdict;

pub use attack::{Attack, AttackReport, attack};
pub use chat::{ChatPlan, ChatReport, Speech, run_chat};
pub use merge::{MergeError, merge};
pub use ping::{PingPlan, PingReport, ping};
#[cfg(target_os = "linux")]
pub use ping::{baseline_echo, baseline_ping};
pub use plan::{
    AfterResponse, Amount, HttpShape, LoadError, Part, Plan, Protocol, Rate, Security, Target, TlsPlan,
};
pub use report::{OpenLoop, Report, RunEvent, RunStatus, Second, TlsReport, UdpReport};
pub use runner::{run, run_until};
pub use silence::Silence;
pub use tidegate_tls::{TlsError, Trust};
pub use together::{AgentReport, Loss, Together};
pub use udp::{Expect, UdpPlan, run_udp};

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
