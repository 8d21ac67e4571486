//! The service under test, and what its sessions make sure of each time they are called.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::script::Acts;
use super::socket::{SimulatedSocket, id_of};
use super::world::{Happening, with};
use crate::service::{
    Activity, CloseReason, Consumed, Dial, Flow, Mail, Outbox, Peer, Refusal, Service, Session,
};

/// How exact deadlines are.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// Makes the session that the script has for each peer.
pub(super) struct Stage {
    pub(super) speaks_first: bool,
}

impl Service for Stage {
    type Session = Actor;

    fn open(&self, peer: &Peer) -> Result<Actor, Refusal> {
        let id = id_of(peer.addr.ok_or(Refusal)?);
        let acts = with(|world| {
            let acts = world.lines[id].part.acts;
            match acts {
                Acts::Refused => world.tally.refusals += 1,
                _ => world.tally.sessions += 1,
            }
            acts
        });
        match acts {
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

    fn speaks_first(&self) -> bool {
        self.speaks_first
    }

    fn needs_peer_addr(&self) -> bool {
        true
    }

    fn dial_failed(&self, _: &Dial, _: &std::io::Error) {
        with(|world| world.tally.dial_failures += 1);
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

impl Session for Actor {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            let now = world.now;
            world.tally.live += 1;
            if world.tally.live > world.policy.max_connections as u64 && !world.switched {
                world.fail(|| "more than max_connections are open".into());
            }
            let log = &mut world.lines[self.id].log;
            (log.moved, log.took) = (now, now);
            if log.opened.replace(now).is_some() {
                world.fail(|| format!("session {} is opened twice", self.id));
            }
        });
        self.call("on_open", out, |actor, out| match actor.acts {
            Acts::Wakes { every_ms, .. } => {
                actor.wake_in(every_ms, out);
                Flow::Continue
            }
            Acts::Produces { .. } => actor.produce(out),
            Acts::Keyed { .. } => {
                actor.set_timers(out);
                Flow::Continue
            }
            _ => Flow::Continue,
        })
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut bytes = 0;
        with(|world| world.lines[self.id].log.wants_look = false);
        let flow = self.call("on_bytes", out, |actor, out| {
            actor.check_input(input, out);
            let (used, flow) = actor.take(input, out);
            with(|world| {
                let line = &mut world.lines[actor.id];
                line.log.consumed += used as u64;
                line.log.lingers = flow == Flow::Close && used < input.len();
            });
            bytes = used;
            flow
        });
        let consumed = Consumed::bytes(bytes).then(flow);
        if matches!(self.acts, Acts::Units { singly: true, .. }) { consumed.again() } else { consumed }
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        let above = with(|world| out.queued() > world.policy.outbox.low && !world.switched);
        if above {
            self.fail(|| "on_drained above the low mark".into());
        }
        with(|world| world.lines[self.id].log.filled = false);
        self.call("on_drained", out, |actor, out| match actor.acts {
            Acts::Produces { .. } => actor.produce(out),
            _ => Flow::Continue,
        })
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            let line = &mut world.lines[self.id];
            let (arrived, shown) = (line.arrived, line.log.shown);
            let twice = std::mem::replace(&mut line.log.ended, true);
            let consumed = world.lines[self.id].log.consumed;
            // What it left for the time of its work, it has to be shown before.
            let too_early = matches!(self.acts, Acts::Works { .. }) && consumed != shown;
            if twice || !world.lines[self.id].end_seen || arrived != shown || too_early {
                world.fail(|| {
                    format!("session {}: on_end after {consumed} of {shown} of {arrived} bytes", self.id)
                });
            }
        });
        self.call("on_end", out, |actor, out| match actor.acts {
            Acts::Produces { .. } => Flow::Continue,
            Acts::Mails { .. } if actor.owed > 0 => {
                actor.last = Some(Flow::Close);
                Flow::Continue
            }
            Acts::Units { answer, .. } => {
                actor.say(answer, out);
                Flow::Shutdown
            }
            Acts::Ends { flow, .. } => flow,
            _ => Flow::Close,
        })
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            world.mail_shown += usize::from(!matches!(mail, Mail::Timer | Mail::KeyedTimer(_)));
            world.moved = true;
        });
        self.call("on_mail", out, |actor, out| match (mail, actor.acts) {
            (Mail::Timer, Acts::Works { keyed: false, .. }) => {
                actor.check_wake();
                actor.end_work(out)
            }
            (Mail::KeyedTimer(key), Acts::Works { keyed: true, .. }) => {
                actor.check_timer(key);
                actor.end_work(out)
            }
            (Mail::KeyedTimer(key), Acts::Keyed { .. }) => {
                actor.check_timer(key);
                actor.say(10, out);
                Flow::Continue
            }
            (Mail::Message(_), Acts::Spins { .. }) => {
                actor.spin(out);
                Flow::Continue
            }
            (Mail::Timer, Acts::Wakes { every_ms, times }) => {
                actor.check_wake();
                actor.wakes += 1;
                actor.say(100, out);
                if actor.wakes < times {
                    actor.wake_in(every_ms, out);
                }
                Flow::Continue
            }
            (Mail::Message(answer), Acts::Mails { .. }) => {
                let answer = answer.downcast::<u64>().map_or(0, |n| *n);
                actor.owed -= 1;
                actor.say(answer, out);
                if actor.owed > 0 {
                    return Flow::Continue;
                }
                out.set_activity(Activity::Nothing);
                actor.last.unwrap_or_default()
            }
            (mail, _) => {
                actor.fail(|| format!("{mail:?} for session {}, which asked for none", actor.id));
                Flow::Continue
            }
        })
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            let stops = world.drained_at.is_some() && out.is_draining();
            let before = std::mem::replace(&mut world.lines[self.id].log.drained, true);
            if before || !stops {
                world.fail(|| format!("session {} is told of a stop twice, or without one", self.id));
            }
        });
        self.call("on_drain", out, |_, _| Flow::Continue)
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        self.call("on_leave", out, |_, _| Flow::Continue);
        with(|world| {
            let log = &mut world.lines[self.id].log;
            if !std::mem::replace(&mut log.drained, true) || std::mem::replace(&mut log.left, true) {
                world.fail(|| format!("session {} leaves without having been told of a stop", self.id));
            }
        });
    }

    fn on_close(&mut self, why: CloseReason) {
        with(|world| {
            world.note(|| format!("  {} on_close {why}", self.id));
            world.moved = true;
            world.tally.live -= 1;
            let log = &mut world.lines[self.id].log;
            let (opened, before) = (log.opened, log.closed.replace(why));
            if opened.is_none() || before.is_some() {
                world.fail(|| format!("session {} is closed by {why}, and was by {before:?}", self.id));
            }
            world.check_reason(self.id, why);
        });
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        with(|world| {
            let log = &mut world.lines[self.id].log;
            let never_closed = log.opened.is_some() && log.closed.is_none();
            if std::mem::replace(&mut log.dropped, true) || never_closed {
                world.fail(|| format!("session {} is gone without on_close", self.id));
            }
        });
    }
}

impl Actor {
    #[track_caller]
    fn fail(&self, what: impl FnOnce() -> String) {
        with(|world| world.fail(what));
    }

    /// What holds before and after each call.
    fn call(
        &mut self,
        name: &str,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut Self, &mut Outbox<'_>) -> Flow,
    ) -> Flow {
        let id = self.id;
        let (queued, now) = (out.queued() as u64, out.now());
        let was_empty = with(|world| {
            let line = &world.lines[id];
            let log = &line.log;
            let open = log.opened.is_some() && log.closed.is_none();
            let going = matches!(log.flow, Flow::Continue | Flow::Shutdown) && !log.left;
            if !open || !going {
                let flow = log.flow;
                world.fail(|| format!("session {id}: {name} after {flow:?}"));
                return true;
            }
            let expected = log.written - line.confirmed;
            if queued != expected || now != world.now {
                world.fail(|| format!("session {id}: {queued} bytes are queued, and {expected} should be"));
            }
            expected == 0
        });
        let flow = f(self, out);
        with(|world| {
            let now = world.now;
            world.note(|| format!("  {id} {name}: {flow:?}, {} queued", out.queued()));
            let log = &mut world.lines[id].log;
            log.filled |= out.is_full();
            if was_empty {
                log.took = now;
            }
            if log.flow != Flow::Shutdown || flow != Flow::Continue {
                log.flow = flow;
            }
            if flow == Flow::Linger || log.lingers {
                log.moved = now;
            }
        });
        flow
    }

    fn check_input(&self, input: &[u8], out: &Outbox<'_>) {
        with(|world| {
            let line = &world.lines[self.id];
            let (from, known) = (line.log.consumed, line.delivered);
            let right = line.is_said(from, input);
            if !right || from + input.len() as u64 != known || input.is_empty() {
                let to = from + input.len() as u64;
                world.fail(|| format!("session {}: was shown {from}..{to}, and {known} came in", self.id));
            }
            world.lines[self.id].log.shown = known;
            let policy = &world.policy;
            // What was left, and what the kernel could have received before the loop stopped it.
            let most = policy.input_bytes + (policy.buffers.next_power_of_two() + 1) * policy.buffer_bytes;
            if input.len() > most && !world.switched || out.is_full() {
                let full = out.is_full();
                world.fail(|| format!("shown {} of at most {most} bytes, outbox full: {full}", input.len()));
            }
        });
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
            let line = &mut world.lines[self.id];
            line.log.wants_look = line.log.consumed < line.log.shown;
        });
        Flow::Continue
    }

    fn spin(&mut self, out: &mut Outbox<'_>) {
        let Acts::Spins { times, doubles } = self.acts else { return };
        for _ in 0..1 + usize::from(doubles) {
            if self.spins < times && out.mailbox().send(()).is_ok() {
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
        let seen = with(|world| world.lines[self.id].log.consumed);
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
            Acts::Produces { .. } | Acts::Refused => (all, Flow::Continue),
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
        let mailbox = out.mailbox();
        with(|world| {
            let after = super::script::time(&mut world.rng, within_ms);
            world.config(after, Happening::Mail(mailbox, answer as u64));
        });
    }

    fn produce(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Acts::Produces { total, piece, flow } = self.acts else { return Flow::Continue };
        while !out.is_full() {
            let left = total - with(|world| world.lines[self.id].log.written);
            if left == 0 {
                return flow;
            }
            self.say(piece.min(left), out);
        }
        Flow::Continue
    }

    /// Says so many bytes of its own.
    fn say(&mut self, n: u64, out: &mut Outbox<'_>) {
        let bytes = with(|world| {
            let line: &SimulatedSocket = &world.lines[self.id];
            line.to_say(line.log.written, n as usize)
        });
        self.write(&bytes, out);
    }

    /// Writes bytes, in pieces that are copied, shared, or parts of a file.
    fn write(&mut self, mut bytes: &[u8], out: &mut Outbox<'_>) {
        with(|world| world.lines[self.id].log.written += bytes.len() as u64);
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

impl super::world::World {
    /// Whether a connection may be closed for this reason now, and is not too late.
    fn check_reason(&mut self, id: usize, why: CloseReason) {
        let (now, policy) = (self.now, self.policy.clone());
        let line = &self.lines[id];
        let log = &line.log;
        let timed = |since: Instant, after: Option<Duration>| {
            after.is_some_and(|after| now >= since + after && now <= since + after + TICK + self.slack)
        };
        let lingers = log.flow == Flow::Linger || log.lingers;
        let empty = log.written == line.confirmed;
        let both_ended = line.finished && line.end_seen;
        let right = match why {
            CloseReason::FirstByteTimeout => log.silent && timed(log.moved, policy.first_byte_timeout),
            CloseReason::IdleTimeout => timed(log.moved, policy.idle_timeout),
            // Who has to wait for a place to send is given the whole time once it has one.
            CloseReason::SendTimeout if policy.outstanding_sends.is_some() => {
                !empty && policy.send_timeout.is_some_and(|after| now >= log.took + after)
            }
            CloseReason::SendTimeout => !empty && timed(log.took, policy.send_timeout),
            CloseReason::MinRate => policy
                .min_rate
                .is_some_and(|rate| log.opened.is_some_and(|opened| now >= opened + rate.grace)),
            CloseReason::Finished if lingers => {
                empty && (both_ended || timed(log.moved, Some(policy.linger_timeout)))
            }
            CloseReason::Finished => {
                let leaving = self.drained_at.is_some();
                empty && (log.flow == Flow::Close || both_ended || leaving)
            }
            CloseReason::Aborted => log.flow == Flow::Abort,
            CloseReason::Panicked => matches!(line.part.acts, Acts::Panics { .. }),
            CloseReason::InputLimit => line.delivered - log.consumed > policy.input_bytes as u64,
            CloseReason::Stopped => self.drained_at.is_some_and(|at| now >= at + policy.drain_timeout),
            CloseReason::Reset | CloseReason::Error => line.broken.is_some() || log.unwatched,
        };
        if !right && !self.switched {
            let text = format!("session {id} is closed by {why}, without cause or too late: {log:?}");
            self.fail(|| text);
        }
    }
}
