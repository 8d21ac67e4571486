//! Back-pressure: a server that keeps whatever its client does not read.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "back-pressure",
    about: "A client sends and never reads. Where do the answers go?",
    server: "The server at {addr} (process {pid}) is an echo server that never stops receiving. Answers that its client
does not read wait in memory. For the sake of your machine it resets a client for which it keeps too much; a real one
would go on until memory ends.",
    task: "Find out how many MiB it keeps for one client that sends as fast as it can and reads nothing, before it
resets that client. The peak of its memory (VmHWM, on Linux) says it: compare before and after. (The attack
connects again after each reset; there is never more than one client at once.)",
    commands: &[
        "grep VmHWM /proc/{pid}/status",
        "tidegate load attack tcp://{addr} -d 5s --flood 1 --silent 0 --trickle 0 --half-open 0 --reset-rate 0",
        "grep VmHWM /proc/{pid}/status",
    ],
    question: Question::Number {
        unit: "MiB",
        tolerance_percent: 25.0,
        too_low: "it is more. Subtract the first VmHWM from the second, and divide kB by 1024; let the attack run until \
its report says that the server has reset the client.",
        too_high: "it is less. Subtract the first VmHWM from the second, and divide kB by 1024.",
    },
    explanation: "One client makes the server keep 64 MiB; a thousand of them need 64 GiB. A server has to stop receiving
from a client that does not take its answers: then the kernel's buffers fill, and TCP itself makes the client wait.
tidegate does so by itself: above `outbox.high` (64 KiB) a connection receives nothing more until its outbox has fallen to
`outbox.low`, and a peer that takes nothing for `send_timeout` is reset. Try the same attack against `tidegate serve
echo`.",
    page: "survival.md",
    start,
    measure,
};

/// Bytes kept for a client before it is reset.
const MOST: usize = 64 << 20;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Hoarder::default(), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let service = Hoarder::default();
    let peak = Arc::clone(&service.peak);
    flood(service, None)?;
    let mib = peak.load(SeqCst) >> 20;
    let evidence = format!("{mib} MiB were kept for a client that read nothing (25% off is fine)");
    Ok(Measured::number(mib, evidence))
}

/// Sends without reading until the server resets the connection, takes nothing for so long, or has taken twice as much
/// as it keeps.
fn flood(service: Hoarder, timeout: Option<Duration>) -> anyhow::Result<()> {
    let (addr, _running) = host::serve(service, host::policy(), None, anywhere())?;
    let mut client = host::connect(addr)?;
    if timeout.is_some() {
        client.set_write_timeout(timeout)?;
    }
    let block = vec![7; 1 << 20];
    for _ in 0..(2 * MOST) >> 20 {
        if client.write_all(&block).is_err() {
            break;
        }
    }
    Ok(())
}

/// Echo without back-pressure.
#[derive(Default)]
struct Hoarder {
    /// Most bytes that were kept for one client.
    peak: Arc<AtomicUsize>,
    /// Whether it receives nothing while answers wait. In the lesson it goes on: that is the fault.
    is_bounded: bool,
}

#[derive(Default)]
struct HoarderSession {
    is_bounded: bool,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    peak: Arc<AtomicUsize>,
}

impl Service for Hoarder {
    type Session = HoarderSession;

    fn open(&self, _: &Peer) -> Result<HoarderSession, Refusal> {
        let (is_bounded, peak) = (self.is_bounded, Arc::clone(&self.peak));
        Ok(HoarderSession { is_bounded, peak, ..HoarderSession::default() })
    }
}

impl HoarderSession {
    fn send(&mut self, out: &mut Outbox<'_>) {
        while !out.is_full()
            && let Some(chunk) = self.waiting.pop_front()
        {
            self.bytes -= chunk.len();
            out.write(&chunk);
        }
    }
}

impl Session for HoarderSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if !self.is_bounded {
            out.takes_input_while_full(); // nothing ever stops the client
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.waiting.push_back(input.to_vec());
        self.bytes += input.len();
        self.send(out);
        self.peak.fetch_max(self.bytes, SeqCst);
        let flow = if self.bytes >= MOST { Flow::Abort } else { Flow::Continue };
        Consumed::all(input).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.send(out);
        Flow::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_only_where_nothing_stops_the_client() {
        let bounded = Hoarder { is_bounded: true, ..Hoarder::default() };
        let peak = Arc::clone(&bounded.peak);
        // However long it waits: more than the kernel's buffers hold is never taken.
        flood(bounded, Some(Duration::from_millis(500))).unwrap();
        assert!(peak.load(SeqCst) < 1 << 20, "{peak:?}");
    }
}
