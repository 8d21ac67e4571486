//! Sessions that several cases use, and the witness that remembers what happened to them.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Flow, Outbox, Peer, Refusal, Service, ServiceOptions, Session};

use super::Tape;

/// A service whose sessions are made by a function.
pub struct Sessions<F> {
    make: F,
    speaks_first: bool,
}

/// A service whose sessions are made by `make`.
pub fn sessions<S: Session, F: Fn() -> S + Send + Sync + 'static>(make: F) -> Sessions<F> {
    Sessions { make, speaks_first: false }
}

impl<F> Sessions<F> {
    /// They send before they have received anything.
    pub fn speaking_first(self) -> Self {
        Self { speaks_first: true, ..self }
    }
}

impl<S: Session, F: Fn() -> S + Send + Sync + 'static> Service for Sessions<F> {
    type Session = S;

    fn open(&self, _peer: &Peer) -> Result<S, Refusal> {
        Ok((self.make)())
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(self.speaks_first)
    }
}

/// Remembers what happened to the sessions of a case.
#[derive(Default)]
pub struct Witness {
    live: AtomicUsize,
    /// The most sessions at once.
    pub peak: AtomicUsize,
    /// The most bytes an outbox held.
    pub most_queued: AtomicUsize,
    /// The most bytes one call showed.
    pub most_shown: AtomicUsize,
    /// Bytes a session produced, or was shown.
    pub bytes: AtomicU64,
    /// Times a session was notified that the peer has finished.
    pub ends: AtomicUsize,
    closings: Mutex<Vec<CloseReason>>,
}

impl Witness {
    pub fn opened(&self) {
        let live = self.live.fetch_add(1, SeqCst) + 1;
        self.peak.fetch_max(live, SeqCst);
    }

    pub fn closed(&self, why: CloseReason) {
        self.live.fetch_sub(1, SeqCst);
        self.closings.lock().expect("closings").push(why);
    }

    pub fn queued(&self, bytes: usize) {
        self.most_queued.fetch_max(bytes, SeqCst);
    }

    /// Why sessions were closed, in the order of their notifications.
    pub fn closings(&self) -> Vec<CloseReason> {
        self.closings.lock().expect("closings").clone()
    }
}

/// Sends back what comes.
#[derive(Default)]
pub struct Echo {
    pub witness: Arc<Witness>,
}

impl Echo {
    /// A service of echoes, and the witness of them all.
    pub fn service() -> (Sessions<impl Fn() -> Echo + Send + Sync + 'static>, Arc<Witness>) {
        let witness = Arc::new(Witness::default());
        let seen = witness.clone();
        (sessions(move || Echo { witness: seen.clone() }), witness)
    }
}

impl Session for Echo {
    fn on_open(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        self.witness.most_shown.fetch_max(input.len(), SeqCst);
        self.witness.queued(out.queued());
        Consumed::all(input)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

/// Echoes; for [`HoldableEcho::HOLD`], keeps its thread until the case lets it go on.
pub struct HoldableEcho(Arc<Mutex<(Sender<()>, Receiver<()>)>>);

/// The case's side of [`HoldableEcho`] sessions.
pub struct ThreadHold {
    is_held: Receiver<()>,
    release: Sender<()>,
}

impl HoldableEcho {
    pub const HOLD: &[u8] = b"h";

    /// A service of them, and how the case holds a thread.
    pub fn service() -> (Sessions<impl Fn() -> HoldableEcho + Send + Sync + 'static>, ThreadHold) {
        let (make, thread) = Self::parts();
        (sessions(make), thread)
    }

    /// The same for sessions that are more than that.
    pub fn parts() -> (impl Fn() -> HoldableEcho + Send + Sync + 'static, ThreadHold) {
        let (holding, is_held) = channel();
        let (release, released) = channel();
        let ends = Arc::new(Mutex::new((holding, released)));
        (move || HoldableEcho(ends.clone()), ThreadHold { is_held, release })
    }
}

impl Session for HoldableEcho {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input == Self::HOLD {
            let (holding, released) = &*self.0.lock().expect("one at a time");
            holding.send(()).expect("the case waits for it");
            released.recv().expect("the case lets it go on");
        }
        out.write(input);
        Consumed::all(input)
    }
}

impl ThreadHold {
    /// Has the session at the other end of `stream` hold its thread, and returns once it does.
    pub fn hold(&self, stream: &mut TcpStream) {
        stream.write_all(HoldableEcho::HOLD).expect("send");
        self.is_held.recv().expect("the session holds its thread");
    }

    /// Lets the thread go on.
    pub fn release(&self) {
        self.release.send(()).expect("the session waits for it");
    }
}

/// Answers the first bytes with `total` bytes of a tape, as fast as the peer takes them, and closes.
pub struct Producer {
    tape: Tape,
    total: u64,
    at: u64,
    witness: Arc<Witness>,
}

impl Producer {
    /// The most bytes it adds in one step before it asks whether the outbox is full.
    pub const PIECE: usize = 20_000;

    /// A service of producers of `total` bytes of this tape each, and the witness of them all.
    pub fn service(
        tape: &Tape,
        total: u64,
    ) -> (Sessions<impl Fn() -> Producer + Send + Sync + 'static>, Arc<Witness>) {
        let witness = Arc::new(Witness::default());
        let (seen, tape) = (witness.clone(), tape.clone());
        let make = move || Producer { tape: tape.clone(), total, at: 0, witness: seen.clone() };
        (sessions(make), witness)
    }

    fn produce(&mut self, out: &mut Outbox<'_>) -> Flow {
        while !out.is_full() {
            let left = self.total - self.at;
            if left == 0 {
                return Flow::Close;
            }
            let piece = self.tape.piece(self.at, Self::PIECE.min(left as usize));
            self.at += piece.len() as u64;
            self.witness.bytes.fetch_add(piece.len() as u64, SeqCst);
            // Copied and shared pieces take turns: they have to keep their order.
            if self.at.is_multiple_of(3) {
                out.write(&piece)
            } else {
                out.share(piece)
            }
            self.witness.queued(out.queued());
        }
        Flow::Continue
    }
}

impl Session for Producer {
    fn on_open(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let flow = if self.at == 0 { self.produce(out) } else { Flow::Continue };
        Consumed::all(input).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.produce(out)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}
