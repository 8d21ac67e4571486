//! The messenger: what members hear, on wires without a network and on every model.

#[path = "../websocket/frames.rs"]
mod frames;
mod members;
mod models;
mod nodes;
mod talk;
#[path = "../proxy/wire.rs"]
mod wire;
