//! A session that knows whose it is: it follows the plan of its connection.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use tidegate::{Activity, FileRange, Flow, Mail, Mailbox, Outbox, Recipient};

use crate::script::{Ending, Script, Taking, Way};
use crate::tape::{Side, Tape};
use crate::world::World;

/// How long another session has for its answer; it may be gone.
const ASKED: Duration = Duration::from_millis(2);
const PIECE: u64 = 16 * 1024;

/// What sessions mail to themselves and to each other.
pub enum Letter {
    Note(Note),
    Ask(Ask),
}

/// Mail: the wait of this exchange of this connection is over.
pub struct Note {
    to: u64,
    exchange: usize,
}

/// Mail to another session.
pub struct Ask {
    to: u64,
    answer: Mailbox<Letter>,
    note: Note,
}

/// What a session says to its group.
struct Said {
    group: usize,
    note: Note,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Between two exchanges.
    Idle,
    /// For mail, a timer or a job.
    Waits,
    Answers,
}

/// A session that knows whose it is.
pub struct Known {
    world: Arc<World>,
    pub number: u64,
    script: Script,
    up: Tape,
    down: Tape,
    own: Mailbox<Letter>,
    /// Bytes used of what the client sends.
    used: u64,
    /// Bytes said.
    said: u64,
    /// Exchanges that are complete.
    done: usize,
    stage: Stage,
    wake: Option<Instant>,
    group: Option<usize>,
    has_shut_down: bool,
    peer_ended: bool,
}

impl Recipient for Known {
    type Message = Letter;
}

impl Known {
    pub fn new(world: Arc<World>, number: u64, own: Mailbox<Letter>) -> Self {
        Self {
            number,
            script: Script::new(world.seed, number, world.refuses),
            up: Tape::new(world.seed, number, Side::Up),
            down: Tape::new(world.seed, number, Side::Down),
            own,
            used: 0,
            said: 0,
            done: 0,
            stage: Stage::Idle,
            wake: None,
            group: None,
            has_shut_down: false,
            peer_ended: false,
            world,
        }
    }

    /// Whether the client says everything that its plan has.
    fn is_complete(&self) -> bool {
        !matches!(self.script.ending, Ending::ClientResets { .. } | Ending::ClientVanishes { .. })
    }

    pub fn peer_ended(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.peer_ended = true;
        let asked = self.script.asked(self.script.exchanges.len());
        if self.used < asked && self.is_complete() && !self.world.stops() && !self.world.is_broken() {
            let Self { number, used, .. } = self;
            let wrong = format!("session of {number}: the peer has finished after {used} of {asked} bytes");
            self.world.wrong(wrong);
        }
        self.advance(out)
    }

    /// Leaves its group; a few forget to.
    pub fn leave(&self) {
        if let Some(group) = self.group.filter(|_| !self.number.is_multiple_of(16)) {
            self.world.group(group).leave(&self.own);
        }
    }

    /// Input, whose first byte is the first that was not used yet: says how much it uses now.
    pub fn take(&mut self, input: &[u8], out: &mut Outbox<'_>) -> (usize, Flow) {
        if let Err(wrong) = self.up.check(self.used, input) {
            self.world.wrong(format!("its session: {wrong}"));
            return (input.len(), Flow::Abort);
        }
        let (start, there) = (self.used, self.used + input.len() as u64);
        let all = self.script.exchanges.len();
        let mut flow = Flow::Continue;
        match self.script.taking {
            _ if self.done == all => self.used = there,
            Taking::Pieces => self.used = there,
            Taking::Whole => {
                let whole = (0..=all).rev().map(|n| self.script.asked(n)).find(|&end| end <= there);
                let whole = if there >= self.script.asked(all) { Some(there) } else { whole };
                self.used = whole.unwrap_or(start).max(start);
            }
            Taking::OneByOne => {
                while self.stage == Stage::Idle && flow == Flow::Continue && self.done < all {
                    let end = self.script.asked(self.done + 1);
                    if end > there {
                        break;
                    }
                    self.used = end;
                    flow = self.advance(out);
                }
                if self.done == all {
                    self.used = there;
                }
            }
        }
        if flow == Flow::Continue {
            flow = self.advance(out);
        }
        self.world.used.fetch_add(self.used - start, SeqCst);
        ((self.used - start) as usize, flow)
    }

    /// Goes on as far as it can, and says to the library what it waits for.
    pub fn advance(&mut self, out: &mut Outbox<'_>) -> Flow {
        let flow = self.go_on(out);
        let in_request = self.done < self.script.exchanges.len() && self.used > self.script.asked(self.done);
        out.set_activity(match self.stage {
            Stage::Waits | Stage::Answers => Activity::Work,
            Stage::Idle if in_request => Activity::Input,
            Stage::Idle => Activity::Nothing,
        });
        flow
    }

    fn go_on(&mut self, out: &mut Outbox<'_>) -> Flow {
        loop {
            match self.stage {
                Stage::Waits => return Flow::Continue,
                Stage::Answers => {
                    if !self.answer(out) {
                        return Flow::Continue;
                    }
                    self.done += 1;
                    self.stage = Stage::Idle;
                }
                Stage::Idle if self.done == self.script.exchanges.len() => return self.last_flow(),
                Stage::Idle if self.used < self.script.asked(self.done + 1) => {
                    return if self.peer_ended { Flow::Close } else { Flow::Continue };
                }
                Stage::Idle
                    if self.script.ending == Ending::Abort
                        && self.done + 1 == self.script.exchanges.len() =>
                {
                    return Flow::Abort;
                }
                Stage::Idle => self.stage = self.begin(out),
            }
        }
    }

    fn last_flow(&mut self) -> Flow {
        match self.script.ending {
            Ending::Close => Flow::Close,
            Ending::Linger { .. } => Flow::Linger,
            _ if self.peer_ended => Flow::Close,
            Ending::ShutdownAtOnce | Ending::Shutdown { .. } if !self.has_shut_down => {
                self.has_shut_down = true;
                Flow::Shutdown
            }
            _ => Flow::Continue,
        }
    }

    /// Begins an exchange. Where what it would wait for is not to be had (a queue is full), it answers at once.
    fn begin(&mut self, out: &mut Outbox<'_>) -> Stage {
        let exchange = self.script.exchanges[self.done];
        let note = Note { to: self.number, exchange: self.done };
        let waits = match exchange.way {
            Way::Copied | Way::Shared => false,
            Way::File => {
                self.send_file(out);
                false
            }
            Way::OwnMail => self.own.send(Letter::Note(note)).is_ok(),
            Way::AskedMail => {
                if let Some((to, mailbox)) = self.world.somebody(self.said ^ self.number) {
                    // If it is full nobody answers, and the timer does.
                    let _ = mailbox.send(Letter::Ask(Ask { to, answer: self.own.clone(), note }));
                }
                self.set_timer(out, ASKED);
                true
            }
            Way::Timer => {
                self.set_timer(out, Duration::from_micros(exchange.delay_us));
                true
            }
            Way::Job => out.offload(move || note).is_ok(),
            Way::Group => {
                let group = self.number as usize % self.world.groups();
                let mut members = self.world.group(group);
                if self.group.is_none() {
                    members.join(&self.own);
                    self.group = Some(group);
                }
                members.send(Arc::new(Said { group, note })).is_ok()
            }
        };
        if waits { Stage::Waits } else { Stage::Answers }
    }

    fn set_timer(&mut self, out: &mut Outbox<'_>, after: Duration) {
        let at = out.now() + after;
        self.wake = Some(at);
        out.wake_at(at);
    }

    /// Says what there is room for; `false` if it has to go on later.
    fn answer(&mut self, out: &mut Outbox<'_>) -> bool {
        if self.wake.take().is_some() {
            out.wake_never();
        }
        let end = self.script.answered(self.done + 1);
        while self.said < end {
            if out.is_full() {
                return false;
            }
            let piece = self.down.bytes(self.said..end.min(self.said + PIECE));
            self.said += piece.len() as u64;
            match self.script.exchanges[self.done].way {
                Way::Shared => out.share(piece.into()),
                _ => out.write(&piece),
            }
        }
        true
    }

    /// The answer with a file in its middle, which is open no longer than it is sent.
    fn send_file(&mut self, out: &mut Outbox<'_>) {
        let (from, to) = (self.said, self.script.answered(self.done + 1));
        let Ok(mut file) = tempfile::tempfile() else { return };
        let bytes = self.down.bytes(from..to);
        if file.write_all(&bytes).is_err() {
            return;
        }
        let (head, tail) = (bytes.len() / 8, bytes.len() - bytes.len() / 16);
        out.write(&bytes[..head]);
        out.file(FileRange::new(Arc::new(file), head as u64, tail - head));
        out.write(&bytes[tail..]);
        self.said = to;
    }

    pub fn mail(&mut self, mail: Mail, now: Instant) -> Result<(), String> {
        let number = self.number;
        match mail {
            Mail::Timer => {
                let due = self.wake.take().is_some_and(|at| at <= now);
                if !due || self.stage != Stage::Waits {
                    return Err(format!(
                        "session of {number}: a timer that it did not ask for, or too early"
                    ));
                }
                self.stage = Stage::Answers;
                Ok(())
            }
            Mail::Done(result) => match result.downcast::<Note>() {
                Ok(note) => self.note(&note),
                Err(_) => Err(format!("session of {number}: the result of somebody else's job")),
            },
            Mail::Message(message) => match Self::unpack(message) {
                Letter::Note(note) => self.note(&note),
                Letter::Ask(ask) if ask.to == number => {
                    // If that is full or gone, its timer answers.
                    let _ = ask.answer.send(Letter::Note(ask.note));
                    Ok(())
                }
                Letter::Ask(ask) => Err(format!("session of {number} got mail for {}", ask.to)),
            },
            Mail::Group(said) => match said.downcast_ref::<Said>() {
                Some(said) if self.group != Some(said.group) => {
                    Err(format!("session of {number} got what was said to group {}", said.group))
                }
                Some(said) if said.note.to == number => self.note(&said.note),
                Some(_) => Ok(()),
                None => Err(format!("session of {number} got group mail that nobody sent")),
            },
            other => Err(format!("session of {number} got {other:?}")),
        }
    }

    fn note(&mut self, note: &Note) -> Result<(), String> {
        if note.to != self.number {
            return Err(format!("session of {} got mail for {}", self.number, note.to));
        }
        if note.exchange == self.done && self.stage == Stage::Waits {
            self.stage = Stage::Answers;
            return Ok(());
        }
        // The asked session may answer after the timer has.
        match self.script.exchanges.get(note.exchange).map(|exchange| exchange.way) {
            Some(Way::AskedMail) => Ok(()),
            way => {
                Err(format!("session of {}: exchange {} ({way:?}) is over twice", self.number, note.exchange))
            }
        }
    }
}
