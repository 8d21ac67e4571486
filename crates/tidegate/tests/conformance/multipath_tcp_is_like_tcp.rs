//! Multipath TCP serves those who have it and those who have not; a kernel without it says so, and nothing else is put
//! in its place.
#![cfg(target_os = "linux")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tidegate::{Client, Endpoint, Model, Server, StartError, system};

use crate::kit::{self, Echo};

on_every_model!(case);

fn case(model: Model) {
    let at: Endpoint = "mptcp:127.0.0.1:0".parse().expect("an endpoint");
    let server = Server::new(kit::sessions(Echo::default)).model(model).policy(kit::policy(model)).bind(at);
    let here = std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1");
    let bound = match server {
        Ok(bound) if here => bound,
        Err(StartError::Listen { error, .. }) if !here => {
            return assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
        Ok(_) => panic!("there is no Multipath TCP here"),
        Err(e) => panic!("{e}"),
    };
    let listener = bound.share_listener().expect("a second descriptor");
    assert_eq!(&system::local_endpoint(&listener).expect("its endpoint"), bound.local_addr());
    assert!(matches!(bound.local_addr(), Endpoint::Mptcp(_)), "{} listens in plain TCP", bound.local_addr());
    let server = bound.start().expect("start");
    kit::exchange(&mut kit::connect(server.local_addr()), b"in plain TCP");
    let multipath = multipath_socket();
    multipath.connect(&server.local_addr().addr().expect("an address").into()).expect("connect");
    kit::exchange(&mut multipath.into(), b"in both");
    kit::finish(server);
    a_dialled_connection_is_multipath(model);
}

fn multipath_socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).expect("socket")
}

/// A listener is given a socket of Multipath TCP exactly for who asked for it, and one of plain TCP for others.
fn a_dialled_connection_is_multipath(model: Model) {
    let listener = multipath_socket();
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("bind");
    listener.listen(16).expect("listen");
    let addr = listener.local_addr().expect("its address").as_socket().expect("of IP");
    let client =
        Client::new(kit::sessions(Echo::default)).model(model).policy(kit::policy(model)).start().expect("start");
    for (to, protocol) in [(Endpoint::Mptcp(addr), Protocol::MPTCP), (Endpoint::Tcp(addr), Protocol::TCP)] {
        client.dial(&to).expect("dial");
        let (accepted, _) = listener.accept().expect("accept");
        assert_eq!(accepted.protocol().expect("its protocol"), Some(protocol), "dialled to {to}");
        kit::exchange(&mut accepted.into(), b"the other way round");
    }
    client.stop();
    kit::check(&client.join());
}
