//! The PROXY protocol layer: without a network, and on every I/O model.

mod diary;
mod headers;
mod layer;
mod models;
#[path = "../../../tidegate/tests/harness/streams.rs"]
mod streams;
mod wire;
