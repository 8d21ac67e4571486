//! `tidegate serve` and `tidegate doctor` as people run them: the built binary, its output, its exit code.
#![cfg(unix)]

mod clients;
#[path = "../../../tidegate/tests/harness/closed_port.rs"]
mod closed_port;
mod config;
mod datagrams;
#[cfg(target_os = "linux")]
#[path = "../cluster/established.rs"]
mod established;
#[allow(dead_code, reason = "the suite `machine` uses the rest")]
mod kit;
mod logs;
mod metrics;

mod doctor;
mod exhaustion;
mod files;
mod proxy;
mod refusals;
mod restarts;
mod runs;
mod several;
mod sockets;
mod tls;
mod upstreams;
