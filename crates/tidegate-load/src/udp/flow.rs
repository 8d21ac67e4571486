//! One flow: sends what may be sent, then looks what has come back, in turns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tidegate::DatagramClient;
use tidegate_os::socket::is_out_of_buffers;

use super::message::{Block, MessageHeader};
use super::tracker::{Seen, Tracker};
use super::{Expect, UdpPlan, UdpReport};
use crate::plan::Amount;
use crate::procs::{Share, this_thread};
use crate::run_state::remedy;
use crate::thread_stats::histogram;

/// A message that leaves later than this is late.
const LATE: Duration = Duration::from_millis(2);

/// How long what was due in time may still be sent after the end.
const GRACE: Duration = Duration::from_millis(20);

/// The longest sleep: so often a flow looks at the clock.
const NAP: Duration = Duration::from_millis(50);

/// So many sends that the kernel refused without one answer are enough.
const ENOUGH: u64 = 100;

/// Most bytes of messages sent in one turn: answers should not wait for long.
const TURN_BYTES: usize = 1 << 20;

/// What a flow did in one second.
pub(super) struct Slice {
    pub(super) second: u64,
    pub(super) length: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) corrupt: u64,
    pub(super) late: u64,
    pub(super) in_flight: u64,
    pub(super) latency_us: Histogram<u64>,
    pub(super) service_us: Histogram<u64>,
}

impl Slice {
    pub(super) fn new(second: u64) -> Self {
        Self {
            second,
            length: Duration::ZERO,
            sent: 0,
            received: 0,
            corrupt: 0,
            late: 0,
            in_flight: 0,
            latency_us: histogram(),
            service_us: histogram(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.length = self.length.max(other.length);
        self.sent += other.sent;
        self.received += other.received;
        self.corrupt += other.corrupt;
        self.late += other.late;
        self.in_flight += other.in_flight;
        // All bounds are the same, so nothing can be out of range.
        let _ = self.latency_us.add(&other.latency_us);
        let _ = self.service_us.add(&other.service_us);
    }
}

/// What a flow tells while it runs.
pub(super) enum FlowEvent {
    /// A second is over.
    Slice(Box<Slice>),
    /// It sends nothing more.
    Sent,
}

/// For how long messages must have been refused, with no answer between, before nobody is there.
const DESERTED: Duration = Duration::from_millis(500);

/// Refusals that are further apart have nothing to do with each other: hosts send them once a second at least
/// (icmp(7), `icmp_ratelimit`).
const APART: Duration = Duration::from_millis(1_500);

/// What the other end says of messages that nobody took (ICMP), since the last answer.
struct Refusals {
    echo: bool,
    first_and_last: Option<(Duration, Duration)>,
}

impl Refusals {
    fn new(echo: bool) -> Self {
        Self { echo, first_and_last: None }
    }

    fn note(&mut self, now: Duration) {
        let is_near = |&(_, last): &(Duration, Duration)| self.echo || now.saturating_sub(last) < APART;
        let first = self.first_and_last.filter(is_near).map_or(now, |(first, _)| first);
        self.first_and_last = Some((first, now));
    }

    fn forget(&mut self) {
        self.first_and_last = None;
    }

    /// Whether nobody is there. Who expects no answers knows that from refusals alone.
    fn are_enough(&self, now: Duration) -> bool {
        self.first_and_last.is_some_and(|(first, last)| {
            let until = if self.echo { now } else { last };
            until.saturating_sub(first) >= DESERTED
        })
    }
}

/// What came of a flow.
pub(super) struct FlowResult {
    pub(super) counts: UdpReport,
    pub(super) length: Duration,
    /// It ended because nobody is there any more.
    pub(super) is_deserted: bool,
    pub(super) scheduled: u64,
    /// Answers that came after the end.
    pub(super) answered_late: u64,
    pub(super) late: u64,
    pub(super) worst_late: Duration,
    pub(super) first_error: Option<String>,
    /// Its thread, while it sent.
    pub(super) share: Option<Share>,
}

pub(super) struct DatagramFlow {
    client: DatagramClient,
    target: SocketAddr,
    refusals: Refusals,
    block: Block,
    tracker: Tracker,
    begun: Instant,
    /// No message is sent after this, or after so many.
    end: Option<Duration>,
    budget: u64,
    /// Time between two messages of this flow, and when its first is due.
    pace: Option<(f64, f64)>,
    window: Option<u64>,
    echo: bool,
    timeout: Duration,
    per_send: usize,
    size: usize,
    /// Messages that are not waited for any more.
    given_up: u64,
    last_answer: Duration,
    slice: Slice,
    events: Sender<FlowEvent>,
    /// Somebody wants the result now.
    interrupted: Arc<AtomicBool>,
    counts: UdpReport,
    answered_late: u64,
    late: u64,
    worst_late: Duration,
    first_error: Option<String>,
}

impl DatagramFlow {
    pub(super) fn new(
        plan: &UdpPlan,
        index: usize,
        client: DatagramClient,
        begun: Instant,
        events: Sender<FlowEvent>,
        interrupted: Arc<AtomicBool>,
    ) -> Self {
        let flows = plan.flows as u64;
        let (end, budget) = match plan.amount {
            Amount::Time(time) => (Some(time), u64::MAX),
            Amount::Requests(n) => (None, n / flows + u64::from((index as u64) < n % flows)),
        };
        let per_send = client.most_per_send(plan.size).min(TURN_BYTES / plan.size).max(1);
        let (echo, window) = match plan.expect {
            Expect::Echo { window } => (true, plan.rate.is_none().then_some(window as u64)),
            Expect::Nothing => (false, None),
        };
        Self {
            client,
            target: plan.target,
            refusals: Refusals::new(echo),
            block: Block::new(per_send, plan.size),
            tracker: Tracker::new(),
            begun,
            end,
            budget,
            // The flows take turns, so that all together keep the schedule.
            pace: plan.rate.map(|rate| (plan.flows as f64 / rate, index as f64 / rate)),
            window,
            echo,
            timeout: plan.timeout,
            per_send,
            size: plan.size,
            given_up: 0,
            last_answer: Duration::ZERO,
            slice: Slice::new(0),
            events,
            interrupted,
            counts: UdpReport::default(),
            answered_late: 0,
            late: 0,
            worst_late: Duration::ZERO,
            first_error: None,
        }
    }

    pub(super) fn run(mut self) -> FlowResult {
        let began = Instant::now();
        let mut now = self.begun.elapsed();
        let failing = |counts: &UdpReport| counts.send_errors >= ENOUGH && counts.received == 0;
        while self.counts.sent < self.budget
            && self.is_time(now)
            && !failing(&self.counts)
            && !self.refusals.are_enough(now)
        {
            let may = self.may_send(now);
            if may > 0 {
                self.send(may, now);
            }
            self.receive(if may > 0 { Duration::ZERO } else { self.nap(now) });
            now = self.begun.elapsed();
            self.turn_page(now);
        }
        let share = this_thread(began.elapsed());
        let _ = self.events.send(FlowEvent::Sent); // who collects outlives the flows
        let mut length = self.end.map_or(now, |end| end.min(now));
        let scheduled = self.due_until(length);
        let (stopped, is_deserted) = (now, self.refusals.are_enough(now));
        while self.echo
            && self.in_flight() > 0
            && now < stopped.max(self.last_answer) + self.timeout
            && !self.refusals.are_enough(now)
        {
            self.receive(NAP);
            now = self.begun.elapsed();
            self.turn_page(now);
        }
        if self.end.is_none() && self.echo {
            length = length.max(self.last_answer); // a fixed number ends with its last answer
        }
        self.close_page(now);
        self.counts.lost = if self.echo { self.counts.sent - self.counts.received } else { 0 };
        FlowResult {
            counts: self.counts,
            length,
            is_deserted,
            scheduled,
            answered_late: self.answered_late,
            late: self.late,
            worst_late: self.worst_late,
            first_error: self.first_error,
            share,
        }
    }

    /// Whether messages are sent now: until the end, and for a moment what was due before it; not once somebody
    /// interrupts.
    fn is_time(&self, now: Duration) -> bool {
        if self.interrupted.load(Relaxed) {
            return false;
        }
        self.end.is_none_or(|end| {
            let left_over = self.pace.is_some() && self.counts.sent < self.due_until(end);
            now < end || left_over && now < end + GRACE
        })
    }

    fn in_flight(&self) -> u64 {
        self.counts.sent - self.counts.received
    }

    /// Messages of the schedule that are due before a time.
    fn due_until(&self, time: Duration) -> u64 {
        match self.pace {
            Some((interval, first)) => ((time.as_secs_f64() - first) / interval).ceil().max(0.0) as u64,
            None => self.counts.sent,
        }
        .min(self.budget)
    }

    /// When a message is due, in nanoseconds.
    fn due_ns(&self, number: u64) -> Option<u64> {
        self.pace.map(|(interval, first)| ((first + number as f64 * interval) * 1e9) as u64)
    }

    fn may_send(&mut self, now: Duration) -> usize {
        let left = self.budget - self.counts.sent;
        let room = match (self.pace, self.window) {
            (Some(_), _) => {
                let until = self.end.map_or(now, |end| end.min(now));
                self.due_until(until).saturating_sub(self.counts.sent)
            }
            (None, Some(window)) => {
                if self.in_flight() >= window + self.given_up && now > self.last_answer + self.timeout {
                    // All of them are lost; the window starts anew.
                    self.given_up = self.in_flight();
                    self.last_answer = now;
                }
                (window + self.given_up).saturating_sub(self.in_flight())
            }
            (None, None) => u64::MAX,
        };
        room.min(left).min(self.per_send as u64) as usize
    }

    /// How long there is nothing to send.
    fn nap(&self, now: Duration) -> Duration {
        let due = self.due_ns(self.counts.sent).map(Duration::from_nanos);
        due.map_or(NAP, |due| due.saturating_sub(now).min(NAP))
    }

    fn send(&mut self, messages: usize, now: Duration) {
        let left_ns = now.as_nanos() as u64;
        let first = self.counts.sent;
        let head = |number| {
            let due_ns = match self.pace {
                Some((interval, start)) => ((start + number as f64 * interval) * 1e9) as u64,
                None => left_ns,
            };
            MessageHeader { number, due_ns, left_ns }
        };
        let bytes = self.block.fill((first..first + messages as u64).map(head));
        match self.client.send(bytes, self.size) {
            Ok(taken) => {
                self.counts.sends += 1;
                self.counts.sent += taken as u64;
                self.slice.sent += taken as u64;
                self.note_late(first, taken as u64, now);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                // An error shows again in the next send.
                let _ = self.client.wait_to_send(Duration::from_millis(1));
            }
            // The queue of the device is full (send(2), ENOBUFS), and there is nothing to wait for.
            Err(e) if is_out_of_buffers(&e) => std::thread::sleep(Duration::from_micros(100)),
            Err(e) => self.failed(&e),
        }
    }

    fn note_late(&mut self, first: u64, messages: u64, now: Duration) {
        let Some(due) = self.due_ns(first).map(Duration::from_nanos) else { return };
        let late = now.saturating_sub(due);
        self.worst_late = self.worst_late.max(late);
        if late > LATE {
            let interval = self.pace.map_or(f64::INFINITY, |(interval, _)| interval);
            let since = ((late - LATE).as_secs_f64() / interval).ceil() as u64;
            self.late += since.min(messages);
            self.slice.late += since.min(messages);
        }
    }

    /// Errors of datagrams come late and say little: counted, and not sent into again without a breath.
    fn failed(&mut self, e: &io::Error) {
        self.counts.send_errors += 1;
        let (target, remedy) = (self.target, remedy(e));
        self.first_error.get_or_insert_with(|| match e.kind() {
            io::ErrorKind::ConnectionRefused => format!("cannot send to {target}: {e}{remedy}"),
            io::ErrorKind::InvalidInput => {
                format!("the kernel refused a send: {e}; try fewer --segments, or --path batched")
            }
            _ => format!("the kernel refused a send to {target}: {e}{remedy}"),
        });
        if matches!(
            e.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        ) {
            self.refusals.note(self.begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }

    fn receive(&mut self, limit: Duration) {
        if !self.echo && limit.is_zero() {
            return;
        }
        let Self { client, block, tracker, counts, slice, first_error, begun, .. } = self;
        let sent = counts.sent;
        let mut now_ns = 0;
        let mut right = 0;
        let received = client.receive(limit, |message| {
            if now_ns == 0 {
                now_ns = begun.elapsed().as_nanos() as u64;
            }
            let Some(head) = block.read(message).filter(|head| head.number < sent) else {
                counts.corrupt += 1;
                slice.corrupt += 1;
                first_error.get_or_insert_with(|| "a received datagram differs from what was sent".into());
                return;
            };
            match tracker.see(head.number) {
                Seen::Again => {
                    counts.duplicated += 1;
                    return;
                }
                Seen::Reordered => counts.reordered += 1,
                Seen::New => {}
            }
            right += 1;
            let us = |since: u64| (now_ns.saturating_sub(since) / 1_000).max(1);
            slice.latency_us.saturating_record(us(head.due_ns));
            slice.service_us.saturating_record(us(head.left_ns));
        });
        match received {
            Ok(0) => {}
            Ok(_) => {
                counts.receives += 1;
                counts.received += right;
                slice.received += right;
                self.last_answer = Duration::from_nanos(now_ns);
                if self.end.is_some_and(|end| self.last_answer > end) {
                    self.answered_late += right;
                }
                self.refusals.forget();
            }
            Err(e) => self.failed(&e),
        }
    }

    /// Tells of a second that is over.
    fn turn_page(&mut self, now: Duration) {
        while now.as_secs() > self.slice.second {
            let next = Slice::new(self.slice.second + 1);
            self.slice.length = Duration::from_secs(1);
            self.finish_slice(next);
        }
    }

    fn close_page(&mut self, now: Duration) {
        self.slice.length = now.saturating_sub(Duration::from_secs(self.slice.second));
        self.finish_slice(Slice::new(0));
    }

    fn finish_slice(&mut self, next: Slice) {
        let mut slice = std::mem::replace(&mut self.slice, next);
        slice.in_flight = if self.echo { self.counts.sent - self.counts.received } else { 0 };
        // Who collects outlives the flows.
        let _ = self.events.send(FlowEvent::Slice(Box::new(slice)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn refusals_without_an_answer_are_enough_after_half_a_second() {
        let mut refusals = Refusals::new(true);
        assert!(!refusals.are_enough(ms(9_000)));
        refusals.note(ms(100));
        assert!(!refusals.are_enough(ms(599)));
        assert!(refusals.are_enough(ms(600)), "a slow load sends nothing meanwhile");
        refusals.forget();
        assert!(!refusals.are_enough(ms(9_000)), "somebody answered");
    }

    #[test]
    fn who_expects_no_answer_waits_for_another_refusal() {
        let mut refusals = Refusals::new(false);
        refusals.note(ms(100));
        assert!(!refusals.are_enough(ms(9_000)), "it may have come back");
        refusals.note(ms(9_000));
        assert!(!refusals.are_enough(ms(9_000)));
        refusals.note(ms(9_600));
        assert!(refusals.are_enough(ms(9_600)));
    }
}
