//! What every Unix has.

pub mod datagram;
pub mod descriptor;
pub mod extension;
pub mod folder;
pub mod handover;
pub mod local;
pub mod pages;
pub mod poll;
pub mod process;
pub mod select;
pub mod socket;
pub mod thread;
pub mod waker;
