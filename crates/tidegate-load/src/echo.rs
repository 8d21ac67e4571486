//! Echo sessions: replies are compared byte for byte with what was sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Dial, Flow, Mail, Origin, Outbox, Peer, Refusal, Service, Session};

use crate::pacer::WakeUp;
use crate::plan::BLOCK;
use crate::run_state::{RunState, Stage, not_connected};
use crate::thread_stats::{Cause, Flight};

/// Creates echo sessions.
pub(crate) struct EchoLoad {
    pub(crate) run_state: Arc<RunState>,
    pattern: Pattern,
    pace: Option<u64>,
    window: usize,
}

/// Bytes of which every message is a slice: messages of one connection begin at different offsets, so a lost,
/// duplicated or swapped piece does not match, and neither sending nor comparing generates bytes.
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

    /// The bytes of a message from `offset` to its end.
    fn rest(&self, tag: u64, message: u64, offset: usize) -> &[u8] {
        let at = Self::place(tag, message);
        &self.bytes[at + offset..at + self.size]
    }
}

impl EchoLoad {
    pub(crate) fn new(run_state: Arc<RunState>, size: usize, window: usize) -> Self {
        Self {
            pattern: Pattern::new(size),
            pace: run_state.plan.rate_bytes_per_s_per_block,
            window,
            run_state,
        }
    }

    /// Interval between messages of a connection, and the offset of its first one, so that its block sends evenly.
    fn schedule(&self, tag: u64) -> Option<EchoSchedule> {
        let rate = self.pace?;
        let part = self.run_state.plan.its_part();
        let (total, tag) = (part.connections(), part.number(tag));
        let first = tag / BLOCK as u64 * BLOCK as u64;
        let block = (total - first.min(total - 1)).min(BLOCK as u64).max(1);
        let interval = Duration::from_secs_f64(block as f64 * self.pattern.size as f64 / rate as f64);
        let due = Instant::now() + interval.mul_f64((tag % BLOCK as u64) as f64 / block as f64);
        Some(EchoSchedule { interval, due })
    }
}

#[derive(Clone, Copy)]
struct EchoSchedule {
    interval: Duration,
    due: Instant,
}

/// One echo connection.
pub(crate) struct EchoClient {
    run_state: Arc<RunState>,
    pattern: Pattern,
    tag: u64,
    thread: usize,
    schedule: Option<EchoSchedule>,
    window: usize,
    /// Messages to send in all.
    quota: u64,
    /// Messages started, and messages that came back.
    sent: u64,
    back: u64,
    /// Whether the last message was sent.
    has_finished: bool,
    /// Bytes of the message in question that came back.
    offset: usize,
    verified_in_window: bool,
    /// The messages in flight.
    flights: VecDeque<Flight>,
    wake_up: WakeUp,
}

impl Service for EchoLoad {
    type Session = EchoClient;

    fn open(&self, peer: &Peer) -> Result<EchoClient, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        Ok(EchoClient {
            run_state: self.run_state.clone(),
            pattern: self.pattern.clone(),
            tag,
            thread: peer.thread,
            schedule: self.schedule(tag),
            window: self.window,
            quota: self.run_state.plan.messages_each.unwrap_or(u64::MAX),
            sent: 0,
            back: 0,
            has_finished: false,
            offset: 0,
            verified_in_window: false,
            flights: VecDeque::new(),
            wake_up: None,
        })
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        self.run_state.thread_stats(0).not_connected(|| not_connected(&dial.to, error));
        self.run_state.first_attempt_ended(dial.tag);
    }
}

impl EchoClient {
    /// Sends as many messages as quota, window and schedule allow; returns whether they were the last.
    fn send(&mut self, out: &mut Outbox<'_>, cause: Cause) -> Flow {
        self.send_due(out, cause);
        let is_last = self.sent == self.quota && !self.has_finished;
        self.has_finished |= is_last;
        if is_last && self.run_state.plan.half_close { Flow::Shutdown } else { Flow::Continue }
    }

    fn send_due(&mut self, out: &mut Outbox<'_>, cause: Cause) {
        while self.sent < self.quota && self.flights.len() < self.window {
            let now = Instant::now();
            if let Some(schedule) = &self.schedule
                && schedule.due > now
            {
                return out.wake_at(schedule.due);
            }
            let Some(flight) = self.run_state.begin(now, &mut self.wake_up, out) else { return };
            let mut thread_stats = self.run_state.thread_stats(self.thread);
            if let Some(schedule) = &mut self.schedule {
                // Half an interval late: it says whether the answer before it was the reason, or this thread, which
                // did not wake up in time, and the schedule moves on.
                if now > schedule.due + schedule.interval / 2 {
                    match cause {
                        Cause::Room => thread_stats.late_sends += 1,
                        Cause::WakeUp => thread_stats.late_wake_ups += 1,
                    }
                    schedule.due = now;
                }
                schedule.due += schedule.interval;
            }
            self.run_state.begun(&mut thread_stats, flight, cause, self.pattern.size);
            drop(thread_stats);
            out.share(self.pattern.message(self.tag, self.sent));
            self.flights.push_back(flight);
            self.sent += 1;
        }
    }

    /// Compares received bytes; `Err` contains the difference.
    fn compare(&mut self, mut input: &[u8]) -> Result<(), String> {
        let mut thread_stats = self.run_state.thread_stats(self.thread);
        if self.run_state.is_measuring() {
            thread_stats.bytes_received += input.len() as u64;
        }
        while !input.is_empty() {
            if self.back == self.sent {
                return Err(format!("connection {}: {} more bytes than were sent", self.tag, input.len()));
            }
            let expected = self.pattern.rest(self.tag, self.back, self.offset);
            let length = expected.len().min(input.len());
            if expected[..length] != input[..length] {
                let at = expected.iter().zip(input).position(|(a, b)| a != b).unwrap_or(0);
                let at = self.back * self.pattern.size as u64 + (self.offset + at) as u64;
                return Err(format!("connection {}: byte {at} differs", self.tag));
            }
            input = &input[length..];
            self.offset += length;
            if self.offset < self.pattern.size {
                continue;
            }
            self.offset = 0;
            self.back += 1;
            if self.back == 1 {
                thread_stats.verified_connections += 1;
            }
            if let Some(flight) = self.flights.pop_front() {
                if !self.verified_in_window && self.run_state.counts(flight) {
                    self.verified_in_window = true;
                    thread_stats.verified_in_window += 1;
                }
                self.run_state.answered(&mut thread_stats, flight);
            }
        }
        Ok(())
    }
}

impl Session for EchoClient {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.run_state.first_attempts_connected.fetch_add(1, Relaxed);
        self.run_state.first_attempt_ended(self.tag);
        self.send(out, Cause::Room)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if let Err(why) = self.compare(input) {
            let mut thread_stats = self.run_state.thread_stats(self.thread);
            match self.flights.len() {
                0 => thread_stats.unasked(|| why),
                n => {
                    thread_stats.wrong += 1;
                    thread_stats.failed(n as u64, || why);
                }
            }
            self.flights.clear();
            self.quota = self.sent; // it ends here, and has been counted
            return Consumed::all(input).then(Flow::Abort);
        }
        Consumed::all(input).then(self.send(out, Cause::Room))
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        self.send(out, Cause::WakeUp)
    }

    /// The load is over: there is nothing to wait for.
    fn on_drain(&mut self, _: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        if let Some(pacer) = &self.run_state.pacer {
            pacer.orphan(self.wake_up);
        }
        if self.run_state.is(Stage::Over) {
            return;
        }
        let (tag, lost) = (self.tag, self.flights.len() as u64);
        let mut thread_stats = self.run_state.thread_stats(self.thread);
        if lost > 0 {
            thread_stats.failed(lost, || format!("connection {tag}: closed in mid-answer ({why})"));
        }
        if self.sent < self.quota && !self.run_state.is_ending() && !self.run_state.is_spent() {
            let before = || format!("connection {tag}: closed before its next message ({why})");
            thread_stats.disconnected(u64::from(lost == 0), before);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Policy;
    use tidegate::testing::TestConnection;

    use super::*;
    use crate::plan::Plan;
    use crate::plan::tests::plan;

    /// A connection in the window whose messages of one byte are this far apart; its first message was sent.
    fn paced(interval: Duration) -> (Arc<RunState>, TestConnection) {
        let bytes_per_s = (1.0 / interval.as_secs_f64()) as u64;
        let plan = Plan {
            amount: crate::plan::Amount::Time(Duration::from_secs(60)),
            rate_bytes_per_s_per_block: Some(bytes_per_s),
            ..plan()
        };
        let run_state = Arc::new(RunState::new(plan, 1, Arc::default()));
        run_state.set_stage(Stage::Measuring);
        let service = EchoLoad::new(run_state.clone(), 1, 1);
        let conn = TestConnection::open_with(&service, &Peer::dialled(0), Policy::default()).unwrap();
        assert_eq!(conn.output().len(), 1);
        (run_state, conn)
    }

    const INTERVAL: Duration = Duration::from_millis(200);

    #[test]
    fn a_message_that_waited_for_an_answer_is_late_by_the_server() {
        let (run_state, mut conn) = paced(INTERVAL);
        std::thread::sleep(INTERVAL * 2);
        let answer = conn.take_output();
        conn.receive(&answer);
        assert_eq!(conn.output().len(), 1, "the next one");
        let stats = run_state.thread_stats(0);
        assert_eq!((stats.late_sends, stats.late_wake_ups), (1, 0));
    }

    #[test]
    fn a_message_whose_wake_up_was_late_is_not_blamed_on_the_server() {
        let (run_state, mut conn) = paced(INTERVAL);
        let answer = conn.take_output();
        conn.receive(&answer);
        std::thread::sleep(INTERVAL * 2);
        conn.advance(INTERVAL * 2);
        assert_eq!(conn.output().len(), 1, "the next one");
        let stats = run_state.thread_stats(0);
        assert_eq!((stats.late_sends, stats.late_wake_ups), (0, 1));
    }

    #[test]
    fn a_connection_that_the_server_closes_between_two_messages_is_a_failure() {
        let (run_state, mut conn) = paced(Duration::from_secs(1));
        let answer = conn.take_output();
        conn.receive(&answer);
        conn.half_close();
        assert!(conn.has_finished_sending());
        let stats = run_state.thread_stats(0);
        let why = stats.first_error.clone().unwrap_or_default();
        assert_eq!((stats.requests, stats.failed, stats.in_flight), (1, 1, 0));
        assert_eq!(stats.ended(), 1, "no message was used up");
        assert!(why.contains("closed before its next message"), "{why}");
    }

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
