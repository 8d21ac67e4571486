//! What only Linux has.

pub mod abstract_socket;
pub mod bpf;
pub mod diag;
pub mod epoll;
pub mod ring;
pub mod shared;
pub mod splice;
