//! The simulated world: virtual time, what is going to happen in it, and what is watched over.
//!
//! One world for each thread, because the contracts of pollers and ports make sockets out of nothing, as a kernel does.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::io::Errno;

#[cfg(test)]
use super::script::Hearing;
use super::script::{Moods, Script, chance};
use super::shelf::SimulatedFiles;
use super::socket::{SimulatedSocket, Taken};
use super::upstreams::SimulatedUpstreams;
use crate::engine::worker::blocking_pool::BlockingPool;
use crate::engine::worker::view::View;
use crate::engine::{Command, CommandQueue};
use crate::policy::accept::EXHAUSTION_PAUSE;
use crate::policy::sends::GROUP_QUANTUM;
use crate::policy::{Offload, Policy, Wait};
use crate::proto::mail::Job;
use crate::proto::{PermitState, Receive};
use crate::service::{Dial, Flow, Mailbox, MailboxError};

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes a world the one of this thread; returns the one before.
pub(super) fn enter(world: Option<World>) -> Option<World> {
    WORLD.replace(world)
}

/// Works on the world of this thread. Sessions and loops are called without it in hand.
pub(super) fn with<T>(f: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a simulation runs on this thread")))
}

/// What is going to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// A peer connects; says the next of what it has to say; hears; has nothing more to say; closes; breaks off.
    Comes(usize),
    Says(usize),
    Hears(usize),
    HasSaid(usize),
    Leaves(usize),
    BreaksOff(usize),
    /// A socket that would not take bytes takes them again.
    Writable(usize),
    /// An operation may go on.
    Nudge,
    /// Another thread posts mail: an answer of so many bytes.
    Mail(Mailbox<u64>, u64),
    /// This end dials; the attempt has come to its end.
    Dials(usize),
    Connects(usize),
    /// The limits are changed.
    Switch,
    /// The loop is asked to stop; or that is to be done if everything is over.
    Drain,
    Over,
    /// A job that a session has offloaded is run.
    Runs(Offloaded),
}

/// A job of a session.
pub(super) struct Offloaded(Job);

impl std::fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a job")
    }
}

/// Sums that the counters of the loop are compared with.
#[derive(Debug, Default)]
pub(super) struct Expected {
    pub(super) accept_errors: u64,
    /// Errors that came while accepts were being cancelled, which nobody counts.
    pub(super) accept_errors_unseen: u64,
    pub(super) no_descriptors: u64,
    pub(super) no_buffers: u64,
    pub(super) no_memory: u64,
    pub(super) received: u64,
    pub(super) taken: u64,
    pub(super) mail_lost: u64,
    /// Connections that are open, and those of them that sessions have dialled.
    pub(super) live: u64,
    pub(super) live_dialled: u64,
    pub(super) sessions: u64,
    pub(super) dial_failures: u64,
    pub(super) dialled: u64,
}

/// Turns without progress that are taken for spinning.
const IDLE_TURNS: u32 = 300;
/// Turns that no seed needs, beside those for what peers say: each byte may arrive singly, and be answered and sent so.
const TURNS: u64 = 200_000;
pub(super) const TURNS_FOR_A_BYTE: u64 = 4;

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) start: Instant,
    pub(super) now: Instant,
    /// When the loop last looked at its sockets.
    looked: Instant,
    /// How much later than it asked the loop was woken.
    pub(super) slack: Duration,
    pub(super) moods: Moods,
    pub(super) shelf: SimulatedFiles,
    pub(super) policy: Arc<Policy>,
    /// Has no threads: jobs wait here until the world runs them.
    pub(super) blocking_pool: Arc<BlockingPool>,
    pub(super) sockets: Vec<SimulatedSocket>,
    /// What sessions may dial, and the socket that the loop is about to dial for one.
    pub(super) upstreams: SimulatedUpstreams,
    pub(super) dialling: Option<usize>,
    /// Connections that wait to be accepted.
    pub(super) backlog: VecDeque<usize>,
    pub(super) command_queue: Arc<CommandQueue>,
    pub(super) woken: Arc<AtomicBool>,
    pub(super) expected: Expected,
    pub(super) drained_at: Option<Instant>,
    /// Turns before a peer said something.
    #[cfg(test)]
    silent_turns: Option<u64>,
    /// How many turns after that, and when, every peer that hears had heard an echo of all it has to say.
    #[cfg(test)]
    pub(super) all_heard: Option<(u64, Instant)>,
    /// The limits it is changed to. From then on it depends on the order of events which limits apply, and what follows
    /// from the limits alone is no longer looked at.
    switch: Option<Arc<Policy>>,
    pub(super) switched: bool,
    agenda: BTreeMap<(Instant, u64), Happening>,
    number: u64,
    pub(super) turns: u64,
    pub(super) most_turns: u64,
    idle_turns: u32,
    /// The process has run out of something until then.
    pub(super) exhausted: Option<(Instant, Errno)>,
    /// There is no memory for anything until then; since when that has failed what was tried again.
    pub(super) famine: Option<Instant>,
    pub(super) short_since: Option<Instant>,
    /// When the loop was last notified that something had failed for lack of memory.
    pub(super) last_short: Option<Instant>,
    /// Since when there was room for a connection that waits, and no accept was tried.
    pub(super) unaccepted: Option<Instant>,
    /// Places in the windows: taken, and waited for; to receive and to send.
    permits: [(usize, usize); 2],
    /// One that has a permit to receive and nothing to do with it.
    keeps: Option<usize>,
    /// Something moved since the loop last waited.
    pub(super) moved: bool,
    /// What the loop takes behind the completion it was just given, in order.
    pub(super) behind: VecDeque<(usize, Taken)>,
    /// Pieces of mail that sessions were shown since the loop last waited.
    pub(super) mail_shown: usize,
    /// The first thing that must not be.
    pub(super) fault: Option<String>,
    pub(super) trace: bool,
}

impl World {
    pub(super) fn new(rng: Rng, shelf: SimulatedFiles, script: &Script, trace: bool) -> Self {
        let start = Instant::now();
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let mut new = Self {
            rng,
            start,
            now: start,
            looked: start,
            slack: Duration::ZERO,
            moods: script.moods,
            shelf,
            policy: Arc::new(script.policy.clone()),
            blocking_pool: Arc::new(BlockingPool::new(Offload { threads: 0, ..script.policy.offload })),
            sockets: script
                .parts
                .iter()
                .enumerate()
                .map(|(id, part)| SimulatedSocket::new(id, part))
                .collect(),
            upstreams: SimulatedUpstreams::default(),
            dialling: None,
            backlog: VecDeque::new(),
            command_queue: Arc::new(CommandQueue::new(script.policy.mail_queue, move || {
                wake.store(true, SeqCst)
            })),
            woken,
            expected: Expected::default(),
            drained_at: None,
            #[cfg(test)]
            silent_turns: None,
            #[cfg(test)]
            all_heard: None,
            switch: script.switch.as_ref().map(|(_, policy)| Arc::new(policy.clone())),
            switched: false,
            agenda: BTreeMap::new(),
            number: 0,
            turns: 0,
            most_turns: TURNS + TURNS_FOR_A_BYTE * script.parts.iter().map(|part| part.says).sum::<u64>(),
            idle_turns: 0,
            exhausted: None,
            famine: None,
            short_since: None,
            last_short: None,
            unaccepted: None,
            permits: Default::default(),
            keeps: None,
            moved: true,
            behind: VecDeque::new(),
            mail_shown: 0,
            fault: None,
            trace,
        };
        for (id, part) in script.parts.iter().enumerate() {
            let first = if script.dials { Happening::Dials(id) } else { Happening::Comes(id) };
            new.config(part.comes_at, first);
        }
        new.config(script.drain_at, Happening::Drain);
        if let Some((at, _)) = script.switch {
            new.config(at, Happening::Switch);
        }
        new
    }

    /// Something will happen after this time.
    pub(super) fn config(&mut self, after: Duration, what: Happening) {
        self.number += 1;
        self.agenda.insert((self.now + after, self.number), what);
    }

    /// Something that must not be. The first one counts.
    #[track_caller]
    pub(super) fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.fault.is_none() {
            let text =
                format!("{} (at {:?}, {})", what(), self.now - self.start, std::panic::Location::caller());
            self.note(|| format!("VIOLATION: {text}"));
            self.fault = Some(text);
        }
    }

    /// Writes a line of the trace.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>12?} {}", self.now - self.start, what());
        }
    }

    pub(super) fn chance(&mut self, of_256: u8) -> bool {
        chance(&mut self.rng, of_256)
    }

    /// Lets time pass until `ready` or until the loop wants to go on, whatever happens meanwhile.
    pub(super) fn sleep(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(&mut Self) -> bool) {
        self.count_turn();
        while let Some(job) = self.blocking_pool.take() {
            let after = super::script::time(&mut self.rng, 50);
            self.config(after, Happening::Runs(Offloaded(job)));
        }
        self.slack = Duration::ZERO;
        if timeout == Some(Duration::ZERO) && (self.switched || self.policy.wait != Wait::Block) {
            self.slack = Duration::from_micros(self.rng.u64(50..500)); // a spinning thread needs time too
            self.now += self.slack;
            self.moved = true;
        }
        let until = timeout.and_then(|timeout| self.now.checked_add(timeout));
        self.catch_up();
        while !ready(self) && self.fault.is_none() {
            let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
            match (next, until) {
                (Some(at), until) if until.is_none_or(|until| at <= until) => {
                    self.now = self.now.max(at);
                    self.catch_up();
                }
                (_, Some(until)) => {
                    self.moved |= until > self.now;
                    self.now = self.now.max(until);
                    break;
                }
                (_, None) => return self.fail(|| "the loop sleeps for ever".into()),
            }
        }
        if self.chance(self.moods.stalls) {
            let stall = super::script::time(&mut self.rng, 40);
            self.now += stall;
            self.slack += stall;
            self.catch_up();
        }
        self.looked = self.now;
    }

    /// Lets time pass in which the loop does not look; `work` is what the kernel does meanwhile.
    pub(super) fn pause(&mut self, time: Duration, mut work: impl FnMut(&mut Self)) {
        let until = self.now + time;
        let budget = self.policy.coalesce.max(self.switch.as_ref().map_or(Duration::ZERO, |to| to.coalesce));
        if until > self.looked + budget {
            let unseen = until - self.looked;
            self.fail(|| format!("the loop has not looked for {unseen:?}, and may not for {budget:?}"));
        }
        self.note(|| format!("  pauses for {time:?}"));
        while let Some(at) = self.agenda.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.catch_up();
            work(self);
        }
        self.now = until;
        self.moved = true;
    }

    fn count_turn(&mut self) {
        self.turns += 1;
        self.idle_turns = if std::mem::take(&mut self.moved) { 0 } else { self.idle_turns + 1 };
        if self.idle_turns > IDLE_TURNS || self.turns > self.most_turns {
            let (turns, idle) = (self.turns, self.idle_turns);
            self.fail(|| format!("the loop spins: {turns} turns, the last {idle} without anything moving"));
        }
        self.mail_shown = 0;
        for socket in &mut self.sockets {
            socket.receives = 0;
        }
    }

    /// Has everything happen whose time has come.
    fn catch_up(&mut self) {
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let what = entry.remove();
            self.moved = true;
            self.happen(what);
        }
    }

    /// What has to hold of a connection after each turn, whatever it waits with.
    pub(super) fn check_view(&mut self, id: usize, view: &View) {
        self.check_deadline(id, view.deadline);
        self.check_shortage(id, view);
        for (at, place) in [view.receive_place, view.send_place].into_iter().enumerate() {
            self.permits[at].0 += usize::from(place == PermitState::Inside);
            self.permits[at].1 += usize::from(place == PermitState::Waiting);
        }
        self.permits[1].0 += view.send_permits - usize::from(view.send_place == PermitState::Inside);
        let socket = &self.sockets[id];
        let silent = !socket.is_readable() && socket.arrived == socket.delivered;
        if view.receive_place == PermitState::Inside && view.rests && silent && !view.listed {
            self.keeps = Some(id);
        }
        let log = &self.sockets[id].log;
        let listens = view.action.is_some_and(|action| action.receive == Receive::Post);
        let going = matches!(log.flow, Flow::Continue | Flow::Shutdown);
        let (shown, delivered) = (log.shown, self.sockets[id].delivered);
        if log.wants_look && !log.filled && going && !log.left && !self.switched {
            self.fail(|| format!("session {id} has ended its work, and is not shown what it left"));
        }
        let log = &self.sockets[id].log;
        // Behind the last word before a stop nothing is answered any more.
        let left = view.lingers && self.drained_at.is_some();
        if view.lingers && going && !log.lingers && !left {
            self.fail(|| format!("session {id} goes on, and its input is discarded"));
        }
        if listens && going && !left && shown != delivered {
            self.fail(|| format!("session {id} was shown {shown} of {delivered} bytes, and could take more"));
        }
    }

    /// What has to hold after each turn, when every connection was looked at.
    pub(super) fn check_turn(&mut self) {
        if self.mail_shown > GROUP_QUANTUM {
            let n = self.mail_shown;
            self.fail(|| {
                format!("sessions were shown {n} pieces of mail before the loop looked at its sockets")
            });
        }
        if let Some(id) = self.keeps.take().filter(|_| self.permits[0].1 > 0 && !self.switched) {
            self.fail(|| format!("{id} rests, and keeps its permit to receive from those who wait"));
        }
        let bounds = [
            self.policy.max_receiving.map(|n| n.get()),
            self.policy.outstanding_sends.map(|n| n.get() as usize),
        ];
        for ((taken, waiting), bound) in std::mem::take(&mut self.permits).into_iter().zip(bounds) {
            let bound = bound.unwrap_or(usize::MAX);
            if !self.switched && (taken > bound || (waiting > 0 && taken < bound)) {
                self.fail(|| format!("{taken} of {bound} permits are taken, and {waiting} connections wait"));
            }
        }
        let room = self.expected.live < self.places().0;
        if self.backlog.is_empty() || !room || self.drained_at.is_some() || self.switched {
            self.unaccepted = None;
            return;
        }
        // A pause, and a cancellation that takes its time.
        let longest = EXHAUSTION_PAUSE + Duration::from_millis(50) + self.slack;
        if self.now > *self.unaccepted.get_or_insert(self.now) + longest {
            self.fail(|| "connections wait, there is room, and nobody accepts".into());
        }
    }

    /// A deadline that has come was looked at in this turn.
    pub(super) fn check_deadline(&mut self, id: usize, deadline: Option<Instant>) {
        let now = self.now;
        if let Some(at) = deadline.filter(|&at| at + super::observed::TICK <= now) {
            let late = now - at;
            self.fail(|| format!("a deadline of {id} has passed {late:?} ago, and nothing was done"));
        }
    }

    fn happen(&mut self, what: Happening) {
        self.note(|| format!("{what:?}"));
        match what {
            Happening::Comes(id) => self.comes(id),
            Happening::Says(id) => self.says(id),
            Happening::Hears(id) => self.hears(id),
            Happening::HasSaid(id) => self.has_said(id),
            Happening::Leaves(id) => self.leaves(id),
            Happening::BreaksOff(id) => self.breaks_off(id),
            Happening::Writable(id) => {
                self.sockets[id].edge.writable = true;
                self.sockets[id].awaits_writable -= 1;
            }
            Happening::Connects(id) => self.connects(id),
            Happening::Nudge => {}
            Happening::Mail(to, answer) => self.post(to, answer),
            Happening::Dials(id) => self.asks_to_dial(id),
            Happening::Switch => {
                if let Some(policy) = self.switch.clone() {
                    self.switched = true;
                    self.policy = policy.clone();
                    let _ = self.command_queue.push(Command::Policy(policy));
                }
            }
            Happening::Runs(Offloaded(job)) => job(),
            Happening::Over if !self.is_all_over() => {}
            Happening::Over | Happening::Drain if self.drained_at.is_some() => {}
            Happening::Over | Happening::Drain => {
                self.drained_at = Some(self.now);
                let _ = self.command_queue.push(Command::Drain);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn note_said(&mut self) {
        self.silent_turns.get_or_insert(self.turns);
    }

    /// Notes when the last peer has heard an echo of all it has to say.
    #[cfg(test)]
    pub(super) fn note_heard(&mut self) {
        let has = |socket: &SimulatedSocket| {
            socket.heard == socket.part.says || socket.part.hears == Hearing::Never
        };
        let all = || self.sockets.iter().all(has);
        if self.all_heard.is_none() && all() {
            self.all_heard = self.silent_turns.map(|before| (self.turns - before, self.now));
        }
    }

    fn post(&mut self, to: Mailbox<u64>, answer: u64) {
        match to.send(answer).map_err(MailboxError::from) {
            Err(MailboxError::Full) => self.config(Duration::from_millis(1), Happening::Mail(to, answer)),
            Err(MailboxError::Stopped) => self.expected.mail_lost += 1,
            Ok(()) => {}
        }
    }

    fn asks_to_dial(&mut self, id: usize) {
        let dial = Dial::to(super::socket::address(id)).tag(id as u64);
        match self.command_queue.push(Command::Dial(dial.into())) {
            Ok(()) => self.expected.dialled += 1,
            Err(MailboxError::Full) => self.config(Duration::from_millis(1), Happening::Dials(id)),
            Err(MailboxError::Stopped) => {}
        }
    }

    /// What of the peer's doings is next, happens now: in the middle of what the loop is doing.
    pub(super) fn suddenly(&mut self) {
        if !self.chance(self.moods.sudden) {
            return;
        }
        let own = |what: &Happening| {
            use Happening::{Comes, Connects, Dials, Drain, Nudge, Over, Switch};
            matches!(what, Over | Drain | Switch | Dials(_) | Comes(_) | Connects(_) | Nudge)
        };
        let soon = self.agenda.iter().take(3).find(|(_, what)| !own(what)).map(|(key, _)| *key);
        if let Some(what) = soon.and_then(|key| self.agenda.remove(&key)) {
            self.moved = true;
            self.happen(what);
        }
    }
}
