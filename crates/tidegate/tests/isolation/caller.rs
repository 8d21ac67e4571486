//! The clients: plain sockets, several in each thread's hand, that follow their plans and judge what they get.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::any_loopback::any_loopback;
use crate::random::Random;
use crate::script::{Ending, Script, Step};
use crate::tape::{Side, Tape, WORD};
use crate::world::World;

/// How long a call into the system waits before the caller looks at the clock.
const TICK: Duration = Duration::from_millis(200);

/// Longer than what was lost takes to be sent again, several times.
const LOST: Duration = Duration::from_secs(6);

/// How a connection ended, as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As its plan says.
    AsPlanned,
    /// The server was full and turned it away.
    TurnedAway,
    /// A stop cut it.
    Cut,
}

/// A connection that is over.
pub struct Ended {
    pub number: u64,
    pub ending: Ending,
    pub verdict: Verdict,
}

/// One connection.
struct Call<'a> {
    world: &'a World,
    to: SocketAddr,
    number: u64,
    since: Instant,
    script: Script,
    steps: std::vec::IntoIter<Step>,
    up: Tape,
    down: Tape,
    stream: Option<TcpStream>,
    /// What it was greeted with, to be sent back.
    greeting: Vec<u8>,
    sent: u64,
    heard: u64,
    timeout: Duration,
}

/// What one read or write came to.
enum Outcome {
    Done,
    /// An end of the stream, or that and more.
    End,
    Reset,
    /// Nothing happened for a while.
    Nothing,
}

/// A thread of callers: one operation after the other, each on any of the connections in its hand.
pub struct Team<'a> {
    pub world: &'a World,
    pub to: SocketAddr,
    pub first: u64,
    pub apart: u64,
    pub operations: u64,
    pub hand: usize,
    pub timeout: Duration,
    pub random: Random,
}

impl<'a> Team<'a> {
    pub fn run(mut self) -> Vec<Ended> {
        let (mut hand, mut ended, mut number) = (Vec::new(), Vec::new(), self.first);
        let mut left = self.operations;
        loop {
            while hand.len() < self.hand && left > 0 && !self.world.stops() && !self.world.is_broken() {
                hand.push(Call::new(&self, number));
                number += self.apart;
            }
            if hand.is_empty() || self.world.is_broken() {
                return ended;
            }
            let at = self.random.below(hand.len() as u64) as usize;
            let call: &mut Call<'a> = &mut hand[at];
            match call.next() {
                Ok(None) => {}
                Ok(Some(verdict)) => {
                    let call = hand.swap_remove(at);
                    ended.push(Ended { number: call.number, ending: call.script.ending, verdict });
                }
                Err(wrong) => {
                    let Call { number, script, heard, sent, since, .. } = call;
                    let (after, state) = (since.elapsed(), self.world.state(*number));
                    let did =
                        format!("after {after:?} it had sent {sent} and heard {heard} bytes of {script:?}");
                    self.world.wrong(format!("caller of {number} ({state}): {wrong}; {did}"));
                }
            }
            left = left.saturating_sub(1);
            self.world.operations.fetch_add(1, SeqCst);
        }
    }
}

impl<'a> Call<'a> {
    fn new(team: &Team<'a>, number: u64) -> Self {
        let world = team.world;
        let script = Script::new(world.seed, number, world.refuses);
        world.dialled(number);
        Self {
            world,
            to: team.to,
            number,
            since: Instant::now(),
            steps: script.steps(world.seed, number, world.greets).into_iter(),
            script,
            up: Tape::new(world.seed, number, Side::Up),
            down: Tape::new(world.seed, number, Side::Down),
            stream: None,
            greeting: Vec::new(),
            sent: 0,
            heard: 0,
            timeout: team.timeout,
        }
    }

    /// Does the next step; says how the connection ended, if it has.
    fn next(&mut self) -> Result<Option<Verdict>, String> {
        let Some(step) = self.steps.next() else { return Ok(Some(Verdict::AsPlanned)) };
        let outcome = match step {
            Step::Connect => self.connect()?,
            Step::Send(to) => self.send(to)?,
            Step::ReceiveGreeting => self.receive_greeting()?,
            Step::Receive(to) => self.receive(to)?,
            Step::FinishSending => self.judge("finish", |stream| stream.shutdown(Shutdown::Write))?,
            Step::ExpectEnd => return self.expect_end(),
            Step::ExpectReset | Step::ExpectRefusal => return self.expect_to_be_cut(step),
            Step::Reset => {
                self.judge("reset", |stream| SockRef::from(&*stream).set_linger(Some(Duration::ZERO)))?;
                self.stream = None;
                Outcome::Done
            }
            Step::Close => {
                self.stream = None;
                Outcome::Done
            }
        };
        match outcome {
            Outcome::Done => Ok(None),
            other => self.cut(&other).map(Some),
        }
    }

    /// An end or a reset that its plan does not have.
    fn cut(&self, how: &Outcome) -> Result<Verdict, String> {
        let how = match how {
            Outcome::Reset => "a reset",
            Outcome::End => "an end of the stream",
            Outcome::Nothing => return Err(format!("nothing happened for {:?}", self.timeout)),
            Outcome::Done => return Ok(Verdict::AsPlanned),
        };
        let untouched = self.heard == 0 && self.greeting.is_empty();
        if self.world.turns_away && untouched && !self.world.has_session(self.number) {
            return Ok(Verdict::TurnedAway);
        }
        let exchanges = self.script.exchanges.len();
        let between = (0..=exchanges).any(|n| self.script.answered(n) == self.heard);
        if self.world.stops() && (how == "a reset" || between) {
            return Ok(Verdict::Cut);
        }
        // The client of such a plan does not get to its end.
        if self.script.ending == Ending::Refused || self.script.ending == Ending::Abort && how == "a reset" {
            return Ok(Verdict::AsPlanned);
        }
        Err(format!("{how} without the answer that was due"))
    }

    fn connect(&mut self) -> Result<Outcome, String> {
        match self.dial() {
            Ok(stream) => self.stream = Some(stream),
            Err(_) if self.world.stops() => return Ok(Outcome::Reset),
            Err(e) => return Err(format!("connect: {e}")),
        }
        Ok(Outcome::Done)
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if self.script.ending == Ending::Refused {
            // The service has to know the address before it sees the connection.
            socket.bind(&SocketAddr::from((any_loopback(), 0)).into())?;
            let own = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
            self.world.refuse(own);
        }
        socket.connect(&self.to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(self.timeout))?;
        Ok(stream)
    }

    /// What a call came to; other errors than a reset are none that a peer can cause.
    fn judge(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> Result<Outcome, String> {
        let Some(stream) = &mut self.stream else { return Ok(Outcome::Done) };
        match call(stream) {
            Ok(()) => Ok(Outcome::Done),
            Err(e) => outcome(what, &e),
        }
    }

    fn send(&mut self, to: u64) -> Result<Outcome, String> {
        if to <= self.sent {
            return Ok(Outcome::Done);
        }
        let mut bytes = if self.sent == 0 { self.greeting.clone() } else { Vec::new() };
        bytes.extend(self.up.bytes(self.sent..to));
        self.sent = to;
        self.world.sent.fetch_add(bytes.len() as u64, SeqCst);
        self.judge("send", |stream| stream.write_all(&bytes))
    }

    /// Reads at most `most` bytes, with timeout.
    fn read(&mut self, most: usize) -> Result<Result<Vec<u8>, Outcome>, String> {
        let start = Instant::now();
        let mut bytes = vec![0; most.clamp(1, 64 * 1024)];
        loop {
            let Some(mut stream) = self.stream.as_ref() else { return Ok(Err(Outcome::Reset)) };
            match stream.read(&mut bytes) {
                Ok(0) => return Ok(Err(Outcome::End)),
                Ok(n) => {
                    self.world.heard.fetch_add(n as u64, SeqCst);
                    bytes.truncate(n);
                    return Ok(Ok(bytes));
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_timeout(&e) && self.is_cut_silently(start.elapsed()) => {
                    return Ok(Err(Outcome::Reset));
                }
                Err(e) if is_timeout(&e) && self.may_have_no_peer(start.elapsed()) => {
                    if let Outcome::Reset = self.send(1)? {
                        return Ok(Err(Outcome::Reset));
                    }
                }
                Err(e) if is_timeout(&e) && start.elapsed() < self.timeout && !self.world.is_broken() => {}
                Err(e) => return outcome("receive", &e).map(Err),
            }
        }
    }

    /// A reset that the network lost is not sent again: where one may have been, a long silence is one.
    fn is_cut_silently(&self, silence: Duration) -> bool {
        let world = self.world;
        let turned_away = world.turns_away && self.heard == 0 && !world.has_session(self.number);
        world.lossy && silence > LOST && (world.stops() || turned_away)
    }

    /// Linux does not reset every caller that connects while a listener is closed: one that waits for a greeting then
    /// waits for ever, and is reset when it sends something (`docs/model-differences.md`, a stop).
    fn may_have_no_peer(&self, silence: Duration) -> bool {
        let waits = self.sent == 0 && silence > self.timeout / 2;
        waits && self.world.stops() && !self.world.has_session(self.number)
    }

    fn receive_greeting(&mut self) -> Result<Outcome, String> {
        while self.greeting.len() < WORD {
            match self.read(WORD - self.greeting.len())? {
                // By a session that was opened so late that this caller had given up: its tape is spoiled.
                Ok(_) if self.sent > 0 => return Ok(Outcome::Reset),
                Ok(bytes) => self.greeting.extend(bytes),
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::Done)
    }

    fn receive(&mut self, to: u64) -> Result<Outcome, String> {
        while self.heard < to {
            match self.read((to - self.heard) as usize)? {
                Ok(bytes) => self.hear(&bytes)?,
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::Done)
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.down.check(self.heard, bytes)?;
        self.heard += bytes.len() as u64;
        Ok(())
    }

    fn expect_end(&mut self) -> Result<Option<Verdict>, String> {
        match self.read(WORD * 4)? {
            Err(Outcome::End) => Ok(None),
            Err(outcome) => self.cut(&outcome).map(Some),
            Ok(bytes) => {
                self.hear(&bytes)?;
                Err(format!("{} bytes more where the end was due", bytes.len()))
            }
        }
    }

    /// A reset that was lost is sent again in answer to a byte: TCP promises no more.
    fn expect_to_be_cut(&mut self, step: Step) -> Result<Option<Verdict>, String> {
        let start = Instant::now();
        let full = std::mem::replace(&mut self.timeout, TICK);
        let most = match step {
            Step::ExpectReset => self.script.answered(self.script.exchanges.len() - 1),
            _ => 0,
        };
        let verdict = loop {
            match self.read(64 * 1024)? {
                Ok(bytes) => {
                    self.hear(&bytes)?;
                    if self.heard > most {
                        break Err(format!("an answer where {step:?} was due"));
                    }
                }
                Err(Outcome::Nothing) if start.elapsed() < full => {
                    if let Outcome::Reset = self.send(self.sent + 1)? {
                        break self.cut(&Outcome::Reset).map(Some);
                    }
                }
                Err(outcome) => break self.cut(&outcome).map(Some),
            }
        };
        self.timeout = full;
        verdict
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn outcome(what: &str, e: &io::Error) -> Result<Outcome, String> {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => Ok(Outcome::Reset),
        _ if is_timeout(e) => Ok(Outcome::Nothing),
        _ => Err(format!("{what}: {e}")),
    }
}
