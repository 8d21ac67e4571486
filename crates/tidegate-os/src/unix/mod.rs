//! What every Unix has.

pub(crate) mod call;
pub mod datagram;
pub mod descriptor;
pub(crate) mod directory;
pub mod extension;
pub mod folder;
pub mod handover;
pub mod local;
pub(crate) mod memory;
pub mod poll;
pub mod process;
pub(crate) mod rights;
pub mod select;
pub mod socket;
pub mod thread;
#[cfg(target_os = "linux")]
pub(crate) mod user;
pub mod waker;
