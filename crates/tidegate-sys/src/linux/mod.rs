//! What only Linux has.

pub mod epoll;
pub mod ring;
