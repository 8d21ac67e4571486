//! A bad way to the broker: every byte takes its time in either direction, waits until it is let go, or waits once
//! something is said; or the connection breaks with that.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::kit::LONGEST;

/// Pieces that are on their way in one direction of one connection; then nothing more is read.
const PIECES: usize = 1_024;

/// Bytes of what can be looked for.
const LONGEST_PART: usize = 64;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToBroker,
    FromBroker,
}

/// Relays between a client and the broker until it is dropped.
pub struct Relay {
    /// Where clients find the broker now.
    pub url: String,
    addr: SocketAddr,
    rule: Arc<Rule>,
}

#[derive(Default)]
struct Rule {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Time that each byte takes, to and from the broker.
    delays: [Duration; 2],
    /// What has come is kept until then.
    until: [Option<Instant>; 2],
    /// What happens, once, to the first piece that has these bytes, and to what comes after it.
    snare: Option<(Way, Vec<u8>, Snare)>,
    /// Somebody was caught in it.
    caught: bool,
    over: bool,
}

#[derive(Clone, Copy)]
enum Snare {
    /// It is kept for so long.
    Hold(Duration),
    /// It is lost with its connection.
    Break,
}

struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

impl Relay {
    /// A way to the broker at this URL, on which every byte takes so long, to it and from it.
    pub fn start(broker: &str, delays: [Duration; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let rule = Arc::new(Rule { state: State { delays, ..State::default() }.into(), ..Rule::default() });
        let target: SocketAddr = broker.strip_prefix("nats://").unwrap().parse().unwrap();
        let for_all = rule.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if for_all.lock().over {
                    return;
                }
                // A broker that is gone is a connection that ends.
                let Ok(broker) = TcpStream::connect(target) else { continue };
                lay(&client, &broker, Way::ToBroker, &for_all);
                lay(&broker, &client, Way::FromBroker, &for_all);
            }
        });
        Self { url: format!("nats://{addr}"), addr, rule }
    }

    /// Keeps everything on these ways until it is [let go](Self::let_go).
    pub fn hold(&self, ways: &[Way]) {
        let mut state = self.rule.lock();
        ways.iter().for_each(|&way| state.until[way as usize] = Some(Instant::now() + 2 * LONGEST));
    }

    /// What was kept goes on, all at once.
    pub fn let_go(&self) {
        self.rule.lock().until = [None; 2];
        self.rule.changed.notify_all();
    }

    /// Keeps what is said to the broker for so long, from the first message on that has `part`.
    pub fn hold_at(&self, part: &str, time: Duration) {
        self.rule.lock().snare = Some((Way::ToBroker, part.as_bytes().to_vec(), Snare::Hold(time)));
    }

    /// Breaks the connection to whom the broker tells something that has `part`, which is lost; what was held is let
    /// go.
    pub fn break_at(&self, part: &str) {
        self.rule.lock().snare = Some((Way::FromBroker, part.as_bytes().to_vec(), Snare::Break));
    }

    /// Waits until that message came.
    pub fn wait_until_held(&self) {
        let state = self.rule.lock();
        let waits = |state: &mut State| !state.caught;
        let (state, _) = self.rule.changed.wait_timeout_while(state, LONGEST, waits).unwrap();
        assert!(state.caught, "nobody said that");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.rule.lock().over = true;
        self.rule.changed.notify_all();
        let _ = TcpStream::connect(self.addr); // it waits for somebody
    }
}

impl Rule {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// When what has just come may go on; none if that is never.
    fn due(&self, way: Way, bytes: &[u8]) -> Option<Instant> {
        let mut state = self.lock();
        let now = Instant::now();
        let is_caught = |(on, part, _): &mut (Way, Vec<u8>, Snare)| {
            way == *on && bytes.windows(part.len()).any(|window| window == part)
        };
        if let Some((.., snare)) = state.snare.take_if(is_caught) {
            state.caught = true;
            self.changed.notify_all();
            match snare {
                Snare::Hold(time) => state.until[way as usize] = Some(now + time),
                Snare::Break => {
                    state.until = [None; 2];
                    return None;
                }
            }
        }
        Some(now + state.delays[way as usize])
    }

    /// Waits until a piece may go on; false if the relay has ended.
    fn wait(&self, way: Way, due: Instant) -> bool {
        let mut state = self.lock();
        loop {
            let until = state.until[way as usize].map_or(due, |until| until.max(due));
            let left = until.saturating_duration_since(Instant::now());
            if state.over || left.is_zero() {
                return !state.over;
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }
}

/// One direction of a connection.
fn lay(from: &TcpStream, to: &TcpStream, way: Way, rule: &Arc<Rule>) {
    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let (send, pieces) = sync_channel(PIECES);
    let (take, give) = (rule.clone(), rule.clone());
    std::thread::spawn(move || collect(from, way, &take, &send));
    std::thread::spawn(move || pass_on(to, way, &give, &pieces));
}

fn collect(mut from: TcpStream, way: Way, rule: &Rule, pieces: &SyncSender<Piece>) {
    let mut buffer = [0; 16 * 1024];
    let mut seen = Vec::new();
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => buffer[..count].to_vec(),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // What is looked for may have come in two pieces.
        seen.extend_from_slice(&bytes);
        let Some(due) = rule.due(way, &seen) else {
            let _ = from.shutdown(Shutdown::Both); // who reads from it passes that on
            return;
        };
        seen.drain(..seen.len().saturating_sub(LONGEST_PART));
        if pieces.send(Piece { due, bytes }).is_err() {
            return;
        }
    }
}

fn pass_on(mut to: TcpStream, way: Way, rule: &Rule, pieces: &Receiver<Piece>) {
    for Piece { due, bytes } in pieces {
        if !rule.wait(way, due) || to.write_all(&bytes).is_err() {
            let _ = to.shutdown(Shutdown::Both); // both ends hear that it is over
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write); // everything that came has gone on
}
