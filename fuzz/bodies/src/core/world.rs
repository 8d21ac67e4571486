//! One thread: table, timers and clock, and a model of each.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use tidegate::policy::OutboxMarks;
use tidegate::proto::mail::MailSink;
use tidegate::proto::{Context, Event, Table, Timers, Token};
use tidegate::stats::{Counters, Writers, sum};
use tidegate::{CloseReason, Mail, MailboxError, Message, Policy, SendError};

use super::entry::Entry;
use crate::wire::NoWorkers;

/// Most connections at once.
const MOST: usize = 6;

const TICK: Duration = Duration::from_millis(1);

struct NoMail;

impl MailSink for NoMail {
    fn post(&self, _: Token, mail: Mail) -> std::result::Result<(), SendError<Mail>> {
        Err(SendError::new(MailboxError::Stopped, mail))
    }
}

/// What the counters have to say.
#[derive(Default)]
struct Expected {
    opened: u64,
    received: u64,
    sent: u64,
    closed: [u64; CloseReason::ALL.len()],
}

pub(super) struct World {
    table: Table<Entry>,
    timers: Timers,
    now: Instant,
    policy: Policy,
    counters: Arc<Counters>,
    mail_sink: Arc<dyn MailSink>,
    /// Every token that was ever given out, oldest first, and whether it still names a connection.
    tokens: Vec<(Token, bool)>,
    /// What the timers have to fire, by place.
    armed: BTreeMap<u32, Instant>,
    expected: Expected,
}

impl World {
    /// A world under a policy of small limits.
    pub(super) fn new(script: &mut Unstructured<'_>) -> Result<Self> {
        let low = usize::from(script.arbitrary::<u8>()? % 64);
        let mut time = |none: bool| -> Result<Option<Duration>> {
            let n: u8 = script.arbitrary()?;
            Ok((n > 0 || !none).then(|| Duration::from_millis(u64::from(n) * 3 + 1)))
        };
        let (first, idle, send) = (time(true)?, time(true)?, time(true)?);
        let linger = time(false)?.unwrap_or_default();
        let policy = Policy::default()
            .outbox(
                OutboxMarks::default().low(low).high(low + 1 + usize::from(script.arbitrary::<u8>()? % 64)),
            )
            .input_bytes(1 + usize::from(script.arbitrary::<u8>()? % 64))
            .first_byte_timeout(first)
            .idle_timeout(idle)
            .send_timeout(send)
            .linger_timeout(linger);
        let now = Instant::now();
        Ok(Self {
            table: Table::default(),
            timers: Timers::new(now),
            now,
            policy,
            counters: Arc::new(Counters::new(Writers::One)),
            mail_sink: Arc::new(NoMail),
            tokens: Vec::new(),
            armed: BTreeMap::new(),
            expected: Expected::default(),
        })
    }

    /// One thing happens.
    pub(super) fn step(&mut self, script: &mut Unstructured<'_>) -> Result<()> {
        let what: u8 = script.arbitrary()?;
        match what % 16 {
            0 => self.open(script)?,
            1 => {
                // Most waits are short; some cross several levels of the wheel.
                let n = u64::from(script.arbitrary::<u8>()?);
                let span = if what & 0x80 == 0 { n } else { n * n * 11 };
                self.wait(Duration::from_micros(span * 333));
            }
            _ => self.touch(what, script)?,
        }
        self.check();
        Ok(())
    }

    fn open(&mut self, script: &mut Unstructured<'_>) -> Result<()> {
        if self.table.len() >= MOST {
            return Ok(());
        }
        let [stream, first, second, third]: [u8; 4] = script.arbitrary()?;
        let expected = self.table.next_token();
        let context = context(&self.policy, &self.counters, &self.mail_sink, self.now, expected);
        let entry = Entry::open(stream, &[first, second], third & 1 == 1, &context);
        let token = self.table.insert(entry);
        assert_eq!(token, expected, "the token that was announced");
        assert!(self.tokens.iter().all(|&(old, _)| old != token), "a token is never used again");
        self.tokens.push((token, true));
        self.expected.opened += 1;
        self.after(token);
        Ok(())
    }

    /// Something happens to one connection, or to one that is gone.
    fn touch(&mut self, what: u8, script: &mut Unstructured<'_>) -> Result<()> {
        let [which, amount]: [u8; 2] = script.arbitrary()?;
        let recent = self.tokens.len().min(2 * MOST);
        let Some(&(token, lives)) =
            self.tokens.iter().rev().take(recent.max(1)).nth(usize::from(which) % recent.max(1))
        else {
            return Ok(());
        };
        let context = context(&self.policy, &self.counters, &self.mail_sink, self.now, token);
        let Some(entry) = self.table.get_mut(token) else {
            assert!(!lives, "a connection was lost");
            return Ok(());
        };
        assert!(lives, "a token of one that is gone finds another");
        let plan: [u8; 4] = script.arbitrary()?;
        entry.plans(&plan);
        let amount = usize::from(amount);
        match what % 16 {
            2..=4 => self.expected.received += entry.receive(amount, &context) as u64,
            5 | 6 => self.expected.sent += entry.send(amount, &context) as u64,
            7 => entry.take(amount % 5),
            8 => self.expected.sent += entry.complete(amount, &context) as u64,
            9 => entry.peer_ends(&context),
            10 => entry.finish_sending(&context),
            11 => {
                let letter = amount as u32 + 1000;
                let listens = !entry.is_closing() && !entry.probe.mind().left;
                entry.happens(Event::Mail(Mail::Message(Message::new(letter)).into()), &context);
                let came = entry.probe.mind().letters.pop();
                let deaf = entry.spoke && came.is_none();
                assert!(
                    deaf || came == listens.then_some(letter),
                    "mail comes once, while the session listens"
                );
            }
            12 => entry.happens(Event::Deadline, &context),
            13 if amount < 32 => entry.happens(Event::Drain, &context),
            14 if amount < 8 => entry.happens(Event::Stop, &context),
            15 if amount < 8 => entry.happens(Event::Failed(ErrorKind::ConnectionReset), &context),
            _ => {}
        }
        self.after(token);
        Ok(())
    }

    /// What a loop does after an event: arms the deadline, or joins what is in flight and removes the connection.
    fn after(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        if !entry.is_closing() {
            if let Some(at) = entry.connection.deadline(&self.policy) {
                self.timers.arm_no_later(token.index, at, entry.connection.resolution(at));
                let armed = self.armed.entry(token.index).or_insert(at);
                *armed = at.min(*armed);
            }
            return;
        }
        if entry.flying > 0 {
            return;
        }
        let why = entry.probe.mind().closed;
        if let Some(why) = why {
            self.expected.closed[why as usize] += 1;
        }
        self.timers.disarm(token.index);
        self.armed.remove(&token.index);
        assert!(self.table.remove(token).is_some(), "it was there");
        assert!(self.table.remove(token).is_none(), "it is gone");
        if let Some(old) = self.tokens.iter_mut().find(|(old, _)| *old == token) {
            old.1 = false;
        }
    }

    /// Time passes, and what is due happens.
    fn wait(&mut self, time: Duration) {
        match (self.timers.sleep(self.now), self.armed.values().min()) {
            (Some(sleep), Some(&first)) => assert!(self.now + sleep < first + TICK + TICK, "overslept"),
            (sleep, first) => assert_eq!(sleep.is_some(), first.is_some(), "sleeps for ever, or for nothing"),
        }
        self.now += time;
        let mut fired = Vec::new();
        self.timers.advance(self.now, &mut fired);
        for &index in &fired {
            let at = self.armed.remove(&index).expect("fired, but not armed");
            assert!(at <= self.now, "fired early");
        }
        assert!(self.armed.values().all(|&at| at + TICK > self.now), "not fired");
        for index in fired {
            let token = self.table.token_at(index).expect("a timer of nobody");
            let context = context(&self.policy, &self.counters, &self.mail_sink, self.now, token);
            if let Some(entry) = self.table.get_mut(token) {
                entry.happens(Event::Deadline, &context);
                // A session may ask to be woken at once, again and again; it is, with every tick.
                let mut asked = entry.probe.mind().timers.values().copied().collect::<Vec<_>>();
                asked.extend(entry.probe.mind().wake);
                let next = entry.connection.deadline(&self.policy).filter(|at| !asked.contains(at));
                assert!(
                    entry.is_closing() || next.is_none_or(|at| at > self.now),
                    "a deadline without an effect"
                );
            }
            self.after(token);
        }
    }

    fn check(&mut self) {
        let live: Vec<_> = self.tokens.iter().filter(|(_, lives)| *lives).map(|(token, _)| *token).collect();
        assert_eq!(self.table.len(), live.len());
        assert_eq!(self.table.is_empty(), live.is_empty());
        let mut sorted = live.clone();
        sorted.sort_unstable();
        assert_eq!(self.table.tokens(), sorted, "the table lists what is in it");
        // Closed, and waiting for what is in flight: counted already.
        let mut closed = self.expected.closed;
        for token in live {
            let why = self.table.get_mut(token).and_then(|entry| entry.probe.mind().closed);
            if let Some(why) = why {
                closed[why as usize] += 1;
            }
        }
        let stats = sum(std::slice::from_ref(&self.counters));
        assert_eq!(stats.accepted, self.expected.opened, "connections are counted");
        let counted: Vec<_> = stats.closed().map(|(_, connections)| connections).collect();
        assert_eq!(counted, closed, "and their ends");
        assert_eq!(
            (stats.bytes_in, stats.bytes_out),
            (self.expected.received, self.expected.sent),
            "bytes are counted"
        );
    }

    /// The server stops: everything ends, and the counters balance.
    pub(super) fn end(&mut self) {
        for (token, _) in self.tokens.clone() {
            let context = context(&self.policy, &self.counters, &self.mail_sink, self.now, token);
            if let Some(entry) = self.table.get_mut(token) {
                entry.happens(Event::Stop, &context);
                assert!(entry.is_closing(), "a stop closes");
                self.expected.sent += entry.complete(usize::MAX, &context) as u64;
                self.after(token);
            }
        }
        self.check();
        assert!(self.table.is_empty(), "a connection survived the stop");
        assert_eq!(self.timers.sleep(self.now), None, "a timer survived the stop");
    }
}

fn context<'a>(
    policy: &'a Policy,
    counters: &'a Counters,
    mail_sink: &'a Arc<dyn MailSink>,
    now: Instant,
    token: Token,
) -> Context<'a> {
    Context { now, timestamp: now.into(), policy, counters, mail_sink, workers: &NoWorkers, token }
}
