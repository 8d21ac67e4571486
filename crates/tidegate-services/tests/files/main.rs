//! Files on real servers, asked for by plain sockets.

mod answers;
mod attacks;
mod client;
mod exact;
mod fields;
#[cfg(unix)]
mod kinds;
