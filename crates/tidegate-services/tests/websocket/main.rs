//! WebSocket: on a wire without a network, under any cuts, and on every model.

mod frames;
mod models;
mod protocol;
#[path = "../proxy/wire.rs"]
mod wire;
