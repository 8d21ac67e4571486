//! A port at which nobody listens, for those who have to be refused.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of 127.0.0.1 that refuses connections as long as this is kept: a socket has it, and does not listen. A port
/// that was merely free may be given to another test, or to the very server that is to find nobody there.
pub struct ClosedPort {
    _has_it: Socket,
    pub addr: SocketAddr,
}

impl ClosedPort {
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("bind");
        let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket()).expect("an address");
        Self { _has_it: socket, addr }
    }
}
