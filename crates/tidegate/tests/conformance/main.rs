//! The conformance suite: one suite, every model.
//!
//! Each file beside this one is a case, and reads as a sentence about what every model promises. It runs on each
//! of them under a deadline: `cargo test -p tidegate --test conformance half_close`, or `... ::epoll`.
//! The services are written against the public interface only; their peers are plain sockets of
//! the standard library. No case sleeps in order to wait: it waits for a condition ([`kit::until`]).
#![forbid(unsafe_code)]

#[macro_use]
mod kit;

mod bytes_come_back_exactly;
mod either_side_may_finish_first;
mod every_model_of_this_system_is_here;
