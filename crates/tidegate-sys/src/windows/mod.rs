//! What Windows has.

pub mod descriptor;
pub mod event;
pub mod handover;
pub mod pages;
pub mod poll;
pub mod process;
pub mod select;
pub mod socket;
mod timed_send;
mod version;
pub mod waker;
mod winsock;
