//! Cases through real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::{Endpoint, Model, Policy, Running, Server, Service};

/// Nothing here takes a second; a machine under load may take long.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn start<S: Service>(service: S, model: Model) -> Running {
    let server = Server::new(service).model(model).policy(Policy::default());
    server.bind("127.0.0.1:0").expect("bind").start().expect("start")
}

/// What comes back for these pieces until the end; `None` if the end is a reset without a byte before it.
pub fn exchange<'a>(to: &Endpoint, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(to).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    stream.set_write_timeout(Some(DEADLINE)).expect("timeout");
    stream.set_nodelay(true).expect("nodelay");
    for piece in pieces {
        // A peer that has ended the connection reads no more; what it said is to be read all the same.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut output = Vec::new();
    loop {
        let mut buffer = [0; 16 * 1024];
        match stream.read(&mut buffer) {
            Ok(0) => return Some(output),
            Ok(n) => output.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // The rest of what was sent met a closed socket.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                return (!output.is_empty()).then_some(output);
            }
            Err(e) => panic!("{e}; {:?} came", String::from_utf8_lossy(&output)),
        }
    }
}

/// The pieces of `bytes` between some places, which are the same in every run for the same seed.
pub fn random_pieces(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ends: Vec<usize> = (0..random.usize(1..6)).map(|_| random.usize(0..=bytes.len())).collect();
    ends.extend([0, bytes.len()]);
    ends.sort_unstable();
    ends.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).filter(|piece| !piece.is_empty()).collect()
}
