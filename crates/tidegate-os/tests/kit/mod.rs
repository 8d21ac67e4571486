//! Connections on the loopback interface, with a deadline on everything.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::TcpStream;
use std::time::Duration;

use tidegate_os::socket::{Blocking, ListenOptions, Listener, Stream};

/// Nothing here takes a second; a machine under load may take long.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub const OPTIONS: ListenOptions = ListenOptions::new(16);

pub fn listener() -> Listener {
    Listener::bind(&"127.0.0.1:0".parse().unwrap(), &OPTIONS).unwrap()
}

/// A plain client of the listener.
pub fn plain(listener: &Listener) -> TcpStream {
    let stream =
        TcpStream::connect_timeout(&listener.local_addr().unwrap().addr().unwrap(), DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Two ends of one connection: ours, which never waits, and a plain one.
pub fn pair() -> (Stream, TcpStream) {
    let listener = listener();
    let far = plain(&listener);
    let (near, addr) = listener.accept(Blocking::Never).unwrap();
    assert_eq!(addr, Some(far.local_addr().unwrap()));
    (near, far)
}
