//! What Windows has.

pub mod datagram;
pub mod descriptor;
pub mod event;
pub mod event_set;
pub mod events;
pub mod extension;
mod family;
pub mod folder;
pub mod handover;
pub mod local;
mod lookout;
pub(crate) mod memory;
pub mod messages;
mod network;
pub mod overlapped;
pub mod poll;
mod pool;
pub mod port;
pub mod process;
pub mod registered;
pub mod select;
pub mod socket;
mod status;
pub mod thread;
mod timed_send;
#[cfg(test)]
mod trial;
mod version;
pub mod waker;
mod winsock;
