//! What every model promises about datagrams, on every path it has.
//!
//! Each case runs on all of them under a deadline. Peers are plain sockets of the standard library wherever that can
//! say what is to be said. No case sleeps in order to wait.
#![forbid(unsafe_code)]

mod echo;
mod kit;
mod life;
mod limits;
