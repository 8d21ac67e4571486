//! Echo sessions: what comes back is compared byte for byte with what was sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Dial, Flow, Mail, Origin, Outbox, Peer, Refusal, Service, Session};

use crate::crew::{Crew, Stage};
use crate::pacer::WakeUp;
use crate::plan::BLOCK;
use crate::tally::{Cause, Flight};

/// Makes echo sessions.
pub(crate) struct EchoLoad {
    pub(crate) crew: Arc<Crew>,
    pattern: Pattern,
    pace: Option<u64>,
    window: usize,
}

/// Bytes that every message is a slice of: messages of one connection begin at different places, so a lost,
/// doubled or swapped piece does not match, and neither sending nor comparing makes any bytes.
#[derive(Clone)]
struct Pattern {
    bytes: Bytes,
    size: usize,
}

/// Places a message may begin at: a prime, so that steps reach all of them.
const PLACES: u64 = 65_521;

impl Pattern {
    fn new(size: usize) -> Self {
        // SplitMix64 (Steele, Lea, Flood 2014): fixed seed, so that a failure can be seen again.
        let mut state = 0x7469_6465_6761_7465u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let words = (PLACES as usize + size).div_ceil(8);
        let bytes: Vec<u8> = (0..words).flat_map(|_| next().to_le_bytes()).collect();
        Self { bytes: bytes.into(), size }
    }

    fn place(tag: u64, message: u64) -> usize {
        ((tag.wrapping_mul(40_503) ^ tag >> 16).wrapping_add(message.wrapping_mul(7_919)) % PLACES) as usize
    }

    fn message(&self, tag: u64, message: u64) -> Bytes {
        let at = Self::place(tag, message);
        self.bytes.slice(at..at + self.size)
    }

    /// What comes at `offset` of a message and after, to its end.
    fn rest(&self, tag: u64, message: u64, offset: usize) -> &[u8] {
        let at = Self::place(tag, message);
        &self.bytes[at + offset..at + self.size]
    }
}

impl EchoLoad {
    pub(crate) fn new(crew: Arc<Crew>, size: usize, window: usize) -> Self {
        Self { pattern: Pattern::new(size), pace: crew.plan.rate_bytes_per_s_per_block, window, crew }
    }

    /// How long a connection rests between messages, and when its first one is due, so that its block sends evenly.
    fn schedule(&self, tag: u64) -> Option<Schedule> {
        let rate = self.pace?;
        let part = self.crew.plan.its_part();
        let (total, tag) = (part.connections(), part.number(tag));
        let first = tag / BLOCK as u64 * BLOCK as u64;
        let block = (total - first.min(total - 1)).min(BLOCK as u64).max(1);
        let interval = Duration::from_secs_f64(block as f64 * self.pattern.size as f64 / rate as f64);
        let due = Instant::now() + interval.mul_f64((tag % BLOCK as u64) as f64 / block as f64);
        Some(Schedule { interval, due })
    }
}

#[derive(Clone, Copy)]
struct Schedule {
    interval: Duration,
    due: Instant,
}

/// One echo connection.
pub(crate) struct EchoSession {
    crew: Arc<Crew>,
    pattern: Pattern,
    tag: u64,
    thread: usize,
    schedule: Option<Schedule>,
    window: usize,
    /// Messages to send in all.
    quota: u64,
    /// Messages begun and messages that came back.
    sent: u64,
    back: u64,
    /// Bytes of the message in question that came back.
    offset: usize,
    /// The messages in flight.
    flights: VecDeque<Flight>,
    wake_up: WakeUp,
}

impl Service for EchoLoad {
    type Session = EchoSession;

    fn open(&self, peer: &Peer) -> Result<EchoSession, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        Ok(EchoSession {
            crew: self.crew.clone(),
            pattern: self.pattern.clone(),
            tag,
            thread: peer.thread,
            schedule: self.schedule(tag),
            window: self.window,
            quota: self.crew.plan.messages_each.unwrap_or(u64::MAX),
            sent: 0,
            back: 0,
            offset: 0,
            flights: VecDeque::new(),
            wake_up: None,
        })
    }

    fn dial_failed(&self, _: &Dial, error: &std::io::Error) {
        self.crew.tally(0).first_error.get_or_insert_with(|| format!("connecting failed: {error}"));
        self.crew.first_attempts_ended.fetch_add(1, Relaxed);
    }
}

impl EchoSession {
    /// Sends as many messages as quota, window and schedule allow.
    fn send(&mut self, out: &mut Outbox<'_>, cause: Cause) {
        while self.sent < self.quota && self.flights.len() < self.window {
            let now = Instant::now();
            if let Some(schedule) = &self.schedule
                && schedule.due > now
            {
                return out.wake_at(schedule.due);
            }
            let Some(flight) = self.crew.begin(now, &mut self.wake_up, out) else { return };
            let mut tally = self.crew.tally(self.thread);
            if let Some(schedule) = &mut self.schedule {
                // Half an interval late, and the answer before it was the reason: it says so, and the schedule moves
                // on.
                if now > schedule.due + schedule.interval / 2 {
                    tally.late_sends += 1;
                    schedule.due = now;
                }
                schedule.due += schedule.interval;
            }
            tally.begun(&self.crew, flight, cause, self.pattern.size);
            drop(tally);
            out.share(self.pattern.message(self.tag, self.sent));
            self.flights.push_back(flight);
            self.sent += 1;
        }
    }

    /// Compares what came back; `Err` is where it differs.
    fn compare(&mut self, mut input: &[u8]) -> Result<(), String> {
        let mut tally = self.crew.tally(self.thread);
        if self.crew.is_measuring() {
            tally.bytes_received += input.len() as u64;
        }
        while !input.is_empty() {
            if self.back == self.sent {
                return Err(format!("connection {}: {} bytes more than were sent", self.tag, input.len()));
            }
            let expected = self.pattern.rest(self.tag, self.back, self.offset);
            let length = expected.len().min(input.len());
            if expected[..length] != input[..length] {
                let at = expected.iter().zip(input).position(|(a, b)| a != b).unwrap_or(0);
                let at = self.back * self.pattern.size as u64 + (self.offset + at) as u64;
                return Err(format!("connection {}: byte {at} came back wrong", self.tag));
            }
            input = &input[length..];
            self.offset += length;
            if self.offset < self.pattern.size {
                continue;
            }
            self.offset = 0;
            self.back += 1;
            if self.back == 1 {
                tally.verified_connections += 1;
            }
            if let Some(flight) = self.flights.pop_front() {
                tally.answered(&self.crew, flight);
            }
        }
        Ok(())
    }
}

impl Session for EchoSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.crew.first_attempts_stand.fetch_add(1, Relaxed);
        self.crew.first_attempts_ended.fetch_add(1, Relaxed);
        self.send(out, Cause::Room);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if let Err(why) = self.compare(input) {
            let mut tally = self.crew.tally(self.thread);
            tally.wrong += 1;
            tally.failed(self.flights.len() as u64, || why);
            self.flights.clear();
            return Consumed::all(input).then(Flow::Abort);
        }
        self.send(out, Cause::Room);
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        self.send(out, Cause::WakeUp);
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        if let Some(pacer) = &self.crew.pacer {
            pacer.orphan(self.wake_up);
        }
        let lost = self.flights.len() as u64;
        if lost > 0 && !self.crew.is(Stage::Over) {
            let tag = self.tag;
            self.crew
                .tally(self.thread)
                .failed(lost, || format!("connection {tag}: closed in mid-answer ({why})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_connection_differ_from_their_neighbours() {
        let pattern = Pattern::new(64);
        for tag in 0..50 {
            for message in 0..200 {
                assert_ne!(pattern.message(tag, message), pattern.message(tag, message + 1));
                assert_ne!(pattern.message(tag, message), pattern.message(tag + 1, message));
            }
        }
    }
}
