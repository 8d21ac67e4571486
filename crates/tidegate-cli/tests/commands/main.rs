//! Every command but `serve`, which has a suite of its own: the built binary, its output, its exit code.
#![cfg(unix)]

#[cfg(target_os = "linux")]
mod ab;
#[cfg(target_os = "linux")]
mod attack;
#[cfg(target_os = "linux")]
mod bench;
mod cert;
mod chat;
#[cfg(target_os = "linux")]
mod compare;
#[path = "../serve/kit.rs"]
#[allow(dead_code, reason = "the suite of `serve` uses the rest")]
mod kit;
mod lesson;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(target_os = "linux")]
mod streams;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod udp;
