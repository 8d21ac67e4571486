//! A client of the cases: sends a number of bytes, expects them back, and finishes.

use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate::fastpath::protocol::name;
use tidegate::policy::{FastPath, Wait};
use tidegate::{
    Client, CloseReason, Consumed, Endpoint, Flow, Model, Outbox, Peer, Policy, Refusal, RunningClient,
    Service, Session,
};
use tidegate_os::abstract_socket;

use crate::conformance::kit::{self, Tape, Witness};

/// Models that have the fast path.
pub const MODELS: [Model; 6] = kit::FAST;

/// One I/O thread, unless threads belong to connections, and the fast path with small rings.
pub fn policy(model: Model, wait: Wait) -> Policy {
    let threads = if model == Model::Pool { None } else { NonZeroUsize::new(1) };
    let fast = FastPath::default().ring_bytes(16 * 1024).handshake_timeout(kit::timeout());
    Policy::default().threads(threads).wait(wait).fast_path(Some(fast))
}

/// Whether the model can wait like that.
pub fn waits(model: Model, wait: Wait) -> bool {
    wait == Wait::Block || !matches!(model, Model::Pool | Model::Tokio)
}

const ALONE: &str = "TIDEGATE_FAST_PATH_ALONE";

/// Whether this process has only this case to run; otherwise one that has is started, and its success is checked. For
/// cases that need sockets to be closed when they are dropped: beside others, another case may start a process in the
/// same moment, which has all sockets until it has become another program.
pub fn is_alone(case: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this file"));
    command.args([case, "--exact", "--nocapture"]).env(ALONE, "1");
    assert!(command.status().expect("another process").success());
    false
}

/// A listener, and somebody else who has its name. A server beside this case may still drain under the name of a port
/// that it has given up: then it is another port.
pub fn impostor() -> (TcpListener, UnixListener) {
    kit::wait_for("a name is free", || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let stranger = abstract_socket::listen(&name(listener.local_addr().expect("an address")));
        stranger.ok().map(|stranger| (listener, stranger))
    })
}

/// Makes players, and remembers how they fared.
#[derive(Clone)]
pub struct Game {
    pub tape: Tape,
    pub bytes: usize,
    /// Bytes under way at most. Two ends that both wait to be rid of something before they take anything would wait for
    /// ever, over whatever transport; this is more than a ring holds and less than all there is room for.
    pub window: usize,
    pub witness: Arc<Witness>,
    pub right: Arc<AtomicUsize>,
}

impl Game {
    pub fn new(bytes: usize) -> Self {
        Self { tape: Tape::new(7), bytes, window: 40_000, witness: Arc::default(), right: Arc::default() }
    }

    /// Starts a client that plays `times` times with a server.
    pub fn play(&self, to: &Endpoint, model: Model, policy: Policy, times: usize) -> RunningClient {
        let client = Client::new(self.clone()).model(model).policy(policy).start().expect("start");
        (0..times).for_each(|_| client.dial(to.clone()).expect("dial"));
        client
    }

    /// Bytes that came back right.
    pub fn right(&self) -> usize {
        self.right.load(SeqCst)
    }
}

impl Service for Game {
    type Session = Player;

    fn open(&self, _: &Peer) -> Result<Player, Refusal> {
        Ok(Player { game: self.clone(), sent: 0, back: 0 })
    }
}

pub struct Player {
    game: Game,
    sent: usize,
    back: usize,
}

impl Player {
    fn send(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.sent == self.game.bytes {
            return Flow::Continue; // it has finished
        }
        while !out.is_full() && self.sent < self.game.bytes && self.sent - self.back < self.game.window {
            let piece = self.game.tape.piece(self.sent as u64, (self.game.bytes - self.sent).min(5_000));
            out.write(&piece);
            self.sent += piece.len();
        }
        if self.sent == self.game.bytes { Flow::Shutdown } else { Flow::Continue }
    }
}

impl Session for Player {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.send(out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.send(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.game.tape.check(self.back as u64, input);
        self.back += input.len();
        self.game.right.fetch_add(input.len(), SeqCst);
        Consumed::all(input).then(self.send(out))
    }

    fn on_close(&mut self, why: CloseReason) {
        self.game.witness.closed(why);
    }
}
