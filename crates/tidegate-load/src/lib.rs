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
//! | `crew` | what all sessions share: budget, stage, tallies |
//! | `echo`, `http` | the sessions |
#![forbid(unsafe_code)]

mod conductor;
mod crew;
mod echo;
mod http;
pub mod plan;
pub mod report;

pub use conductor::run;
pub use plan::{Amount, LoadError, Plan, Protocol, Target};
pub use report::{Phase, Report};
