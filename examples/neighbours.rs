//! Two programs that do not know whether they share a host:
//! `cargo run --release -p tidegate --example neighbours -- serve 127.0.0.1:7000`, then `… -- call 127.0.0.1:7000`.
//!
//! Both turn the fast path on. On one host their connection goes through shared memory; give the caller the address of
//! another host and it is TCP. Nothing else changes: same sessions, same limits.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tidegate::policy::{FastPath, Wait};
use tidegate::{
    Client, CloseReason, Consumed, Endpoint, Flow, Outbox, Peer, Policy, Refusal, Server, Service, Session,
};

const CALLS: u32 = 100_000;

/// What both ends have: the fast path, and a thread that looks around for a millisecond before it sleeps.
fn policy() -> Policy {
    Policy::default()
        .fast_path(Some(FastPath::default()))
        .wait(Wait::SpinThenBlock(Duration::from_millis(1)))
        .threads(std::num::NonZeroUsize::new(1))
}

/// Answers each number with its successor.
struct Counts;

impl Service for Counts {
    type Session = Counts;

    fn open(&self, _: &Peer) -> Result<Counts, Refusal> {
        Ok(Counts)
    }
}

impl Session for Counts {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let (numbers, _) = input.as_chunks::<4>();
        for number in numbers {
            out.write(&(u32::from_be_bytes(*number).wrapping_add(1)).to_be_bytes());
        }
        Consumed::bytes(numbers.len() * 4)
    }
}

/// Asks for the successor of the last answer, again and again.
struct Caller {
    done: Sender<CloseReason>,
}

impl Service for Caller {
    type Session = Caller;

    fn open(&self, _: &Peer) -> Result<Caller, Refusal> {
        Ok(Caller { done: self.done.clone() })
    }

    fn dial_failed(&self, dial: &tidegate::Dial, error: &std::io::Error) {
        eprintln!("cannot call {}: {error}", dial.to);
        let _ = self.done.send(CloseReason::Error);
    }
}

impl Session for Caller {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&0u32.to_be_bytes());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let Some(number) = input.first_chunk::<4>() else { return Consumed::bytes(0) };
        if u32::from_be_bytes(*number) == CALLS {
            return Consumed::bytes(4).then(Flow::Close);
        }
        out.write(number);
        Consumed::bytes(4)
    }

    fn on_close(&mut self, why: CloseReason) {
        let _ = self.done.send(why);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, addr] = args.as_slice() else { return Err("neighbours serve|call ADDR:PORT".into()) };
    let addr: Endpoint = addr.parse()?;
    match role.as_str() {
        "serve" => {
            let server = Server::new(Counts).policy(policy()).bind(addr)?;
            println!("listening on {}, model {}", server.local_addr(), server.model());
            server.start()?.join();
        }
        "call" => {
            let (done, closed) = channel();
            let client = Client::new(Caller { done }).policy(policy()).start()?;
            let begun = Instant::now();
            client.dial(addr)?;
            let why = closed.recv()?;
            let each = begun.elapsed() / CALLS;
            let way = if client.stats().fast_paths > 0 { "shared memory" } else { "TCP" };
            println!("{CALLS} calls over {way}, {each:?} each, ended as {why}");
        }
        _ => return Err("neighbours serve|call ADDR:PORT".into()),
    }
    Ok(())
}
