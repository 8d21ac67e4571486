//! Ready-made services, built on the public API of the tidegate library.
//!
//! | service | what it does |
//! |---|---|
//! | [`chat`] | a messenger: rooms, history and presence, over lines and WebSocket |
//! | [`echo`] | sends back what it receives |
//! | [`files`] | HTTP: serves the files of a directory |
//! | [`http`] | HTTP: responds to every request with the same page |
//! | [`proxy`] | a TCP proxy to upstream servers |
//! | [`websocket`] | WebSocket services, such as an echo |
//! | [`udp`] | echo and discard for datagrams |
//!
//! [`layers`] wrap any of these services, or your own.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod chat;
pub mod echo;
pub mod files;
pub mod http;
pub mod layers;
pub mod proxy;
mod text;
pub mod udp;
pub mod websocket;

pub use chat::{Chat, ChatCounters, ChatLimits, ChatStats};
pub use echo::Echo;
pub use files::{Coding, Files, FilesError, FilesLimits, FilesOptions, Listing, ParseCodingError};
pub use http::{Http, HttpLimits, Page, PageError};
pub use proxy::{Proxy, ProxyOptions, ProxyOptionsError, UpstreamLimits};
pub use udp::{UdpEcho, UdpSink};

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
