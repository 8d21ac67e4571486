//! Verdicts: what has to come of bytes that peers send, as data (`*.txt`), on every model and however they are cut.
//!
//! Each case is first played without a network, in one piece and cut at every place; then through sockets, on every
//! model, in one piece and in pieces at random. Whatever differs from what the file says fails, and so does any
//! difference between models.

mod cases;
mod http;
mod proxy;
mod sockets;
mod websocket;

#[path = "../websocket/frames.rs"]
mod frames;
#[path = "../proxy/wire.rs"]
mod wire;
