//! The service of the library's own scripts: its sessions do what a script says, and check their timers and mail.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::observed::TICK;
use super::script::Acts;
use super::socket::{SimulatedSocket, id_of};
use super::world::{Happening, with};
use crate::service::{
    Activity, Consumed, Flow, Mail, Outbox, Peer, Recipient, Refusal, Service, ServiceOptions, Session,
};

/// Makes the session that the script has for each peer.
pub(super) struct ScriptService {
    pub(super) speaks_first: bool,
}

impl Service for ScriptService {
    type Session = Actor;

    fn open(&self, peer: &Peer) -> Result<Actor, Refusal> {
        let id = id_of(peer.addr.ok_or(Refusal)?);
        match with(|world| world.sockets[id].part.acts) {
            Acts::Refused => Err(Refusal),
            acts => Ok(Actor {
                id,
                acts,
                wake: None,
                wakes: 0,
                due: BTreeMap::new(),
                works: false,
                spins: 0,
                owed: 0,
                last: None,
            }),
        }
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(self.speaks_first).peer_addr(true)
    }
}

/// One session.
pub(super) struct Actor {
    id: usize,
    acts: Acts,
    /// When it wants to be woken, and when it asked for that.
    wake: Option<(Instant, Instant)>,
    wakes: u32,
    /// The same of its timers under keys.
    due: BTreeMap<u64, (Instant, Instant)>,
    /// It is at work.
    works: bool,
    /// How often it has mailed itself.
    spins: u32,
    /// Pieces of mail that have not come yet.
    owed: u32,
    /// How it ends once nothing is owed.
    last: Option<Flow>,
}

impl Recipient for Actor {
    /// Bytes to answer with.
    type Message = u64;
}

impl Session for Actor {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.acts {
            Acts::Wakes { every_ms, .. } => self.wake_in(every_ms, out),
            Acts::Produces { .. } => return self.produce(out),
            Acts::Keyed { .. } => self.set_timers(out),
            _ => {}
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if out.is_full() {
            self.fail(|| "input is shown while the outbox is full".into());
        }
        let (used, flow) = self.take(input, out);
        let consumed = Consumed::bytes(used).then(flow);
        if matches!(self.acts, Acts::Units { singly: true, .. }) { consumed.again() } else { consumed }
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.acts {
            Acts::Produces { .. } => self.produce(out),
            _ => Flow::Continue,
        }
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.acts {
            Acts::Produces { .. } => Flow::Continue,
            Acts::Mails { .. } if self.owed > 0 => {
                self.last = Some(Flow::Close);
                Flow::Continue
            }
            Acts::Units { answer, .. } => {
                self.say(answer, out);
                Flow::Shutdown
            }
            Acts::Ends { flow, .. } => flow,
            _ => Flow::Close,
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match (mail, self.acts) {
            (Mail::Timer, Acts::Works { keyed: false, .. }) => {
                self.check_wake();
                return self.end_work(out);
            }
            (Mail::KeyedTimer(key), Acts::Works { keyed: true, .. }) => {
                self.check_timer(key);
                return self.end_work(out);
            }
            (Mail::KeyedTimer(key), Acts::Keyed { .. }) => {
                self.check_timer(key);
                self.say(10, out);
            }
            (Mail::Message(_), Acts::Spins { .. }) => self.spin(out),
            (Mail::Timer, Acts::Wakes { every_ms, times }) => {
                self.check_wake();
                self.wakes += 1;
                self.say(100, out);
                if self.wakes < times {
                    self.wake_in(every_ms, out);
                }
            }
            (Mail::Message(answer), Acts::Mails { .. }) => {
                let answer = Self::unpack(answer);
                self.owed -= 1;
                self.say(answer, out);
                if self.owed == 0 {
                    out.set_activity(Activity::Nothing);
                    return self.last.unwrap_or_default();
                }
            }
            (mail, _) => self.fail(|| format!("{mail:?} for session {}, which asked for none", self.id)),
        }
        Flow::Continue
    }
}

impl Actor {
    #[track_caller]
    fn fail(&self, what: impl FnOnce() -> String) {
        with(|world| world.fail(what));
    }

    fn check_wake(&mut self) {
        let wake = self.wake.take();
        with(|world| match wake {
            Some((at, asked)) => {
                let latest = at.max(asked) + TICK + world.slack;
                if world.now < at || world.now > latest {
                    let (early, late) = (at - world.start, world.now.saturating_duration_since(latest));
                    world.fail(|| format!("a timer for {early:?} fires early, or {late:?} too late"));
                }
            }
            None => world.fail(|| "a timer that nobody asked for".into()),
        });
    }

    fn check_timer(&mut self, key: u64) {
        let Some(due) = self.due.remove(&key) else {
            return self.fail(|| format!("timer {key} was not asked for"));
        };
        if self.due.values().any(|other| other.0 < due.0) {
            self.fail(|| format!("timer {key} fires before one that is due earlier"));
        }
        self.wake = Some(due);
        self.check_wake();
    }

    fn set_timers(&mut self, out: &mut Outbox<'_>) {
        let Acts::Keyed { keys, within_ms } = self.acts else { return };
        for _ in 0..with(|world| world.rng.u64(0..4)) {
            let key = with(|world| world.rng.u64(0..=keys));
            self.set_timer(key, within_ms, out);
        }
        let key = with(|world| world.rng.u64(0..=keys));
        if self.due.remove(&key).is_some() != out.cancel_timer(key) {
            self.fail(|| format!("timer {key} was taken back, and it was not there, or the other way round"));
        }
    }

    fn set_timer(&mut self, key: u64, within_ms: u64, out: &mut Outbox<'_>) {
        let after = with(|world| super::script::time(&mut world.rng, within_ms));
        out.set_timer(key, out.now() + after);
        self.due.insert(key, (out.now() + after, out.now()));
    }

    /// Takes a piece, if it is not at work, and works until its timer.
    fn work(&mut self, all: usize, out: &mut Outbox<'_>) -> usize {
        let Acts::Works { piece, within_ms, keyed } = self.acts else { return all };
        if std::mem::replace(&mut self.works, true) {
            return 0;
        }
        out.set_activity(Activity::Work);
        match keyed {
            true => self.set_timer(piece, within_ms, out),
            false => self.wake_in(within_ms, out),
        }
        let used = all.min(piece as usize + 1);
        self.say(used as u64, out);
        used
    }

    fn end_work(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.works = false;
        out.set_activity(Activity::Nothing);
        with(|world| {
            let socket = &mut world.sockets[self.id];
            socket.log.wants_look = socket.log.consumed < socket.log.shown;
        });
        Flow::Continue
    }

    fn spin(&mut self, out: &mut Outbox<'_>) {
        let Acts::Spins { times, doubles } = self.acts else { return };
        for _ in 0..1 + usize::from(doubles) {
            if self.spins < times && Self::mailbox(out).send(0).is_ok() {
                self.spins += 1;
            }
        }
    }

    fn wake_in(&mut self, ms: u64, out: &mut Outbox<'_>) {
        let rest = with(|world| world.rng.u64(..1_000_000));
        let at = out.now() + Duration::from_millis(ms) + Duration::from_nanos(rest);
        self.wake = Some((at, out.now()));
        out.wake_at(at);
    }

    /// How much of the input it uses, what it says to it, and how it goes on.
    fn take(&mut self, input: &[u8], out: &mut Outbox<'_>) -> (usize, Flow) {
        let all = input.len();
        let seen = with(|world| world.sockets[self.id].log.consumed);
        let reaches =
            |after: u64| (seen + all as u64 >= after).then(|| (after.saturating_sub(seen)) as usize);
        match self.acts {
            Acts::Echo { thrifty } => (self.echo(input, thrifty, out), Flow::Continue),
            Acts::Mails { within_ms } => {
                self.ask_for_mail(all, within_ms, out);
                (all, Flow::Continue)
            }
            Acts::Units { unit, answer, singly } => {
                let most = if singly { 1 } else { usize::MAX };
                (self.units(all, unit, answer, most, out), Flow::Continue)
            }
            Acts::Works { .. } => (self.work(all, out), Flow::Continue),
            Acts::Spins { .. } => {
                self.spin(out);
                (all, Flow::Continue)
            }
            Acts::Keyed { .. } => {
                self.set_timers(out);
                (all, Flow::Continue)
            }
            Acts::Wakes { every_ms, times } => {
                if self.wakes < times && with(|world| world.chance(64)) {
                    self.wake_in(every_ms, out);
                } else if with(|world| world.chance(20)) {
                    self.wake = None;
                    out.wake_never();
                }
                (all, Flow::Continue)
            }
            Acts::Ends { after, flow } => match reaches(after) {
                Some(used) => {
                    self.say(used as u64, out);
                    // An application may say that it has used everything when it no longer cares.
                    let used = if with(|world| world.rng.bool()) { all } else { used.min(all) };
                    (used, flow)
                }
                None => {
                    self.say(all as u64, out);
                    (all, Flow::Continue)
                }
            },
            Acts::Panics { after } if reaches(after).is_some() => {
                // Without the hook, which would print it.
                std::panic::resume_unwind(Box::new("as the script says"))
            }
            Acts::Panics { .. } => (all, Flow::Continue),
            Acts::Produces { .. } | Acts::Refused | Acts::Foreign => (all, Flow::Continue),
        }
    }

    fn echo(&mut self, input: &[u8], thrifty: bool, out: &mut Outbox<'_>) -> usize {
        let mut used = 0;
        while used < input.len() && !(thrifty && out.is_full()) {
            let n = if thrifty { with(|world| world.rng.usize(1..=input.len() - used)) } else { input.len() };
            let Some(piece) = input.get(used..used + n) else { break };
            self.write(piece, out);
            used += n;
        }
        used
    }

    fn units(&mut self, all: usize, unit: u64, answer: u64, most: usize, out: &mut Outbox<'_>) -> usize {
        let (mut used, mut count) = (0, 0);
        while all - used >= unit as usize && count < most && !out.is_full() {
            used += unit as usize;
            count += 1;
            self.say(answer, out);
        }
        used
    }

    fn ask_for_mail(&mut self, answer: usize, within_ms: u64, out: &mut Outbox<'_>) {
        self.owed += 1;
        out.set_activity(Activity::Work);
        let mailbox = Self::mailbox(out);
        with(|world| {
            let after = super::script::time(&mut world.rng, within_ms);
            world.config(after, Happening::Mail(mailbox, answer as u64));
        });
    }

    fn produce(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Acts::Produces { total, piece, flow } = self.acts else { return Flow::Continue };
        while !out.is_full() {
            let left = total - with(|world| world.sockets[self.id].log.written);
            if left == 0 {
                return flow;
            }
            self.say(piece.min(left), out);
        }
        Flow::Continue
    }

    /// Sends so many of its own bytes.
    fn say(&mut self, n: u64, out: &mut Outbox<'_>) {
        let bytes = with(|world| {
            let socket: &SimulatedSocket = &world.sockets[self.id];
            socket.to_say(socket.log.written, n as usize)
        });
        self.write(&bytes, out);
    }

    /// Writes bytes, in pieces that are copied, shared, or parts of a file.
    fn write(&mut self, mut bytes: &[u8], out: &mut Outbox<'_>) {
        with(|world| world.sockets[self.id].log.written += bytes.len() as u64);
        while !bytes.is_empty() {
            let (n, share) = with(|world| (world.rng.usize(1..=bytes.len()), world.chance(80)));
            let (piece, rest) = bytes.split_at(n);
            let file = with(|world| world.shelf.is_next().then(|| world.shelf.put(piece)));
            match (file, share) {
                (Some(range), _) => out.file(range),
                (None, true) => out.share(piece.to_vec().into()),
                (None, false) => out.write(piece),
            }
            bytes = rest;
        }
    }
}
