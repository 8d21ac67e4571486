//! The layer against rustls' own buffered connections, which know nothing of it: without a network, so that every step
//! can be chosen, and over real sockets on every model.
#![forbid(unsafe_code)]

#[path = "../../../tidegate-services/tests/proxy/wire.rs"]
mod wire;

mod bounds;
mod cuts;
mod ends;
mod hostile;
mod identity;
mod losses;
mod models;
mod papers;
mod peer;
mod steps;
mod test_client;
