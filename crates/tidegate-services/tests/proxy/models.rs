//! The layer on every I/O model, through real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::{
    Consumed, Endpoint, Flow, Model, Outbox, Peer, Policy, Refusal, Server, Service, ServiceOptions, Session,
};
use tidegate_services::layers::{HeaderFault, ProxyLimits, ProxyProtocol};

use crate::headers::headers;
use crate::streams::receive;
use crate::wire::SOCKET;

/// Nothing here takes a second; a machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Says who the client is, then echoes.
struct Who;
struct WhoSession(Option<SocketAddr>);

impl Service for Who {
    type Session = WhoSession;

    fn open(&self, peer: &Peer) -> Result<WhoSession, Refusal> {
        Ok(WhoSession(peer.addr))
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).peer_addr(true)
    }
}

impl Session for WhoSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(format!("{:?} ", self.0).as_bytes());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

fn connect(to: &Endpoint) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn talk(to: &Endpoint, header: &[u8], step: usize) -> (String, SocketAddr) {
    let mut stream = connect(to);
    let text = [header, b"and the rest"].concat();
    text.chunks(step).for_each(|piece| stream.write_all(piece).unwrap());
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer, stream.local_addr().unwrap())
}

#[test]
fn every_model_passes_on_the_client_of_every_header() {
    for model in Model::available() {
        let service = ProxyProtocol::new(Who, ProxyLimits::default());
        let faults = service.faults();
        let server = Server::new(service).model(model).policy(Policy::default());
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        for (header, addr) in headers() {
            for step in [1, 1000] {
                let (answer, local) = talk(server.local_addr(), &header, step);
                let addr = match addr {
                    Some(SOCKET) => Some(local),
                    addr => addr.map(|addr| addr.parse().unwrap()),
                };
                assert_eq!(answer, format!("{addr:?} and the rest"), "{model}, {header:?}");
            }
        }
        let mut liar = connect(server.local_addr());
        liar.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let heard = receive(&mut liar, &mut [0; 16]).map_err(|e| e.kind());
        assert_eq!(heard, Err(ErrorKind::ConnectionReset), "{model}");
        server.stop();
        let stats = server.join();
        assert_eq!(stats.closed_by(tidegate::CloseReason::Aborted), 1, "{model}");
        assert_eq!(faults.of(HeaderFault::Missing), 1, "{model}");
    }
}

#[test]
fn options_are_those_of_the_service_inside_but_the_header_comes_first() {
    struct Wants(ServiceOptions);
    impl Service for Wants {
        type Session = WhoSession;

        fn open(&self, _: &Peer) -> Result<WhoSession, Refusal> {
            Err(Refusal)
        }

        fn options(&self) -> ServiceOptions {
            self.0
        }
    }
    let wants = ServiceOptions::default().speaks_first(true).peer_addr(true).local_addr(true).dials(3);
    let layer = ProxyProtocol::new(Wants(wants), ProxyLimits::default());
    assert_eq!(layer.options(), wants.speaks_first(false));
}
