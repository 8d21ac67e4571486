//! The HTTP service, driven through the library's core: no sockets, no clock.

mod wire;

mod answers;
mod bodies;
mod chunking;
mod leaving;
mod limits;
mod noise;
mod pace;
mod timing;
