//! The PROXY protocol: `proxy.txt`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate::{Consumed, Flow, Model, Outbox, Peer, Policy, Refusal, Service, ServiceOptions, Session};
use tidegate_services::layers::{HeaderFault, HeaderFaults, ProxyLimits, ProxyProtocol};

use crate::cases::{Case, bytes, cases};
use crate::sockets::{DEADLINE, exchange, random_pieces, start};
use crate::wire::{SOCKET, TestConnection, WireState};

const HEADERS: &str = include_str!("proxy.txt");

/// Says who the client is, then what it hears, and ends at a line end.
struct Who;
struct WhoSession(Option<SocketAddr>);

impl Service for Who {
    type Session = WhoSession;

    fn open(&self, peer: &Peer) -> Result<WhoSession, Refusal> {
        Ok(WhoSession(peer.addr))
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().peer_addr(true)
    }
}

impl Session for WhoSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let addr = self.0.map_or("none".into(), |addr| addr.to_string());
        out.write(format!("{addr} ").as_bytes());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input).then(if input.ends_with(b"\n") { Flow::Close } else { Flow::Continue })
    }
}

/// What the client says behind its header.
const REST: &[u8] = b"and the rest\n";

fn service() -> ProxyProtocol<Who> {
    ProxyProtocol::new(Who, ProxyLimits::default().header_timeout(Some(Duration::from_secs(60))))
}

impl Case {
    /// The header, where it is cut, and the verdict.
    fn header(&self) -> (Vec<u8>, usize, &str) {
        let (first, rest) = (bytes(&self.send), self.rest.as_deref().map(bytes).unwrap_or_default());
        let gives = self.gives.strip_prefix("wait, then ").unwrap_or(&self.gives);
        ([&first[..], &rest].concat(), first.len(), gives)
    }
}

fn fault(verdict: &str) -> Option<HeaderFault> {
    HeaderFault::ALL.iter().copied().find(|fault| fault.name() == verdict)
}

/// What the service says to who comes through a proxy; a connection without a header of its own has the address
/// `socket`.
fn answer(verdict: &str, socket: &str) -> String {
    let client = if verdict == "socket" { socket } else { verdict };
    format!("{client} {}", String::from_utf8_lossy(REST))
}

fn play(pieces: &[&[u8]]) -> (String, WireState, Vec<u64>) {
    let service = service();
    let faults = service.faults();
    let mut wire = TestConnection::to(&service, Policy::default());
    pieces.iter().for_each(|piece| wire.send(piece));
    (wire.text(), wire.state, counted(&faults))
}

fn counted(faults: &HeaderFaults) -> Vec<u64> {
    HeaderFault::ALL.iter().map(|&fault| faults.of(fault)).collect()
}

#[test]
fn every_verdict_however_it_is_cut() {
    let mut wrong = Vec::new();
    for case in cases(HEADERS) {
        let (header, cut, gives) = case.header();
        let script = [&header[..], REST].concat();
        let whole = play(&[&script]);
        let counts = HeaderFault::ALL.iter().map(|&one| u64::from(Some(one) == fault(gives))).collect();
        let wanted = match fault(gives) {
            Some(_) => (String::new(), WireState::Reset, counts),
            None => (answer(gives, SOCKET), WireState::Closed, counts),
        };
        if whole != wanted {
            wrong.push(format!("{}: {whole:?} in place of {gives}", case.name));
        }
        if case.rest.is_some() && play(&[&header[..cut]]) != (String::new(), WireState::Open, vec![0; 5]) {
            wrong.push(format!("{}: it was not waited for the rest", case.name));
        }
        for cut in 1..script.len() {
            let (a, b) = script.split_at(cut);
            if play(&[a, b]) != whole {
                wrong.push(format!("{}: another answer if cut at {cut}", case.name));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_model_gives_every_verdict() {
    let mut wrong = Vec::new();
    for model in Model::available() {
        let service = service();
        let faults = service.faults();
        let server = start(service, model);
        for (number, case) in cases(HEADERS).iter().enumerate() {
            let (header, cut, gives) = case.header();
            let script = [&header[..], REST].concat();
            let (first, rest) = script.split_at(cut);
            for pieces in [vec![first, rest], random_pieces(&script, number as u64)] {
                let before = counted(&faults);
                let output = exchange(server.local_addr(), pieces);
                let got = output.map(|output| String::from_utf8_lossy(&output).into_owned());
                let is_right = match fault(gives) {
                    // Wine reports a reset as an end.
                    Some(fault) => {
                        got.as_deref().is_none_or(str::is_empty) && is_counted(&faults, fault, &before)
                    }
                    // The address of the socket is this end's, with a port that the system picked.
                    None if gives == "socket" => got.as_deref().is_some_and(|got| {
                        got.starts_with("127.0.0.1:") && got.ends_with(&answer(gives, "")[..])
                    }),
                    None => got.as_deref() == Some(&answer(gives, "")[..]),
                };
                if !is_right {
                    wrong.push(format!("{model}: {}: {got:?} in place of {gives}", case.name));
                }
            }
        }
        server.stop();
        server.join();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Waits until a fault is counted that was not before; the connection may be gone a moment earlier.
fn is_counted(faults: &HeaderFaults, fault: HeaderFault, before: &[u64]) -> bool {
    let start = Instant::now();
    let at = HeaderFault::ALL.iter().position(|one| *one == fault).expect("one of them");
    while start.elapsed() < DEADLINE {
        let now = counted(faults);
        if now[at] > before[at] {
            return now.iter().sum::<u64>() == before.iter().sum::<u64>() + 1;
        }
        std::thread::yield_now();
    }
    false
}
