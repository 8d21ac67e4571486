//! Multipath TCP serves those who have it and those who have not; a kernel without it says so, and nothing else is put
//! in its place.
#![cfg(target_os = "linux")]

use std::io::ErrorKind;

use tidegate::{Endpoint, Model, Server, StartError, system};

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
    let server = bound.start().expect("start");
    kit::exchange(&mut kit::connect(server.local_addr()), b"in plain TCP");
    let multipath =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, Some(socket2::Protocol::MPTCP))
            .expect("socket");
    multipath.connect(&server.local_addr().addr().expect("an address").into()).expect("connect");
    kit::exchange(&mut multipath.into(), b"in both");
    kit::finish(server);
}
