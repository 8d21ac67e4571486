//! Files on real servers, asked for by plain sockets, and by hyper's client.

mod answers;
mod attacks;
mod client;
mod exact;
mod fields;
mod http2;
#[cfg(unix)]
mod kinds;
