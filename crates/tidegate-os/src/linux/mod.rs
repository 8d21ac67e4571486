//! What only Linux has.

pub mod bpf;
pub mod diag;
pub mod epoll;
pub mod meeting;
pub mod ring;
pub mod shared;
