//! Addresses for clients that come and go in thousands.

use std::net::Ipv4Addr;

/// An address of this host for a client to come from. Each address has ports of its own: those that a client leaves in
/// TIME_WAIT for a minute stay free on 127.0.0.1. Other systems than Linux have 127.0.0.1 only.
pub fn any_loopback() -> Ipv4Addr {
    if cfg!(target_os = "linux") {
        Ipv4Addr::new(127, 0, fastrand::u8(1..=200), fastrand::u8(1..=250))
    } else {
        Ipv4Addr::LOCALHOST
    }
}
