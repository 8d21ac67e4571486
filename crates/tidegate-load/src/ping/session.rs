//! One ping-pong connection, and what all of them share.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tidegate::{CloseReason, Consumed, Dial, Flow, Origin, Outbox, Peer, Refusal, Service, Session};

use super::{PingPlan, STAMP};
use crate::plan::Amount;
use crate::run_state::not_connected;

/// Messages up to this size are copied into the outbox in one piece.
const COPIED: usize = 4096;

/// How often who waits looks whether it has been interrupted.
const NAP: Duration = Duration::from_millis(50);

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum PingStage {
    /// Round trips do not count yet.
    WarmingUp,
    Measuring,
    /// No more messages.
    Over,
}

/// What all sessions share. They touch nothing but `stage` while messages fly.
pub(super) struct PingShared {
    begun: Instant,
    stage: AtomicU8,
    message: Bytes,
    /// Round trips of each connection that count.
    quota: u64,
    state: Mutex<PingTotals>,
    changed: Condvar,
}

/// Connections by what became of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) established: usize,
    pub(super) failed: usize,
    pub(super) ended: usize,
}

/// What the sessions have left.
pub(super) struct PingTotals {
    pub(super) count: Count,
    pub(super) nanos: Histogram<u64>,
    /// Round trips that did not come to their end, or not as they should.
    pub(super) lost: u64,
    pub(super) wrong: u64,
    pub(super) first_error: Option<String>,
}

/// 1 ns to 1 min with three digits.
pub(super) fn histogram() -> Histogram<u64> {
    // Within what the histogram can do.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

impl PingShared {
    pub(super) fn new(plan: &PingPlan) -> Self {
        let quota = match plan.amount {
            Amount::Requests(n) => n.div_ceil(plan.connections as u64),
            Amount::Time(_) => u64::MAX,
        };
        // The places where bytes are swapped, lost or doubled show in a sequence without a short period.
        let message: Vec<u8> =
            (0..plan.size as u64).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        Self {
            begun: Instant::now(),
            stage: AtomicU8::new(PingStage::WarmingUp as u8),
            message: message.into(),
            quota,
            state: Mutex::new(PingTotals {
                count: Count::default(),
                nanos: histogram(),
                lost: 0,
                wrong: 0,
                first_error: None,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PingTotals> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, stage: PingStage) {
        self.stage.store(stage as u8, Relaxed);
    }

    fn is(&self, stage: PingStage) -> bool {
        self.stage.load(Relaxed) == stage as u8
    }

    /// Waits for a condition; `false` if it is not met in time, or before somebody interrupts.
    pub(super) fn wait(
        &self,
        interrupted: &AtomicBool,
        limit: Duration,
        met: impl Fn(Count) -> bool,
    ) -> bool {
        let begun = Instant::now();
        let unmet = |state: &mut PingTotals| !met(state.count);
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let waited = self.changed.wait_timeout_while(self.state(), left.min(NAP), unmet);
            if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return true;
            }
            if left <= NAP || interrupted.load(Relaxed) {
                return false;
            }
        }
    }

    /// Notes what went wrong, unless something did before.
    pub(super) fn note(&self, why: impl FnOnce() -> String) {
        self.state().first_error.get_or_insert_with(why);
    }

    fn change(&self, change: impl FnOnce(&mut PingTotals)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// Makes ping-pong sessions.
pub(super) struct PingLoad(pub(super) Arc<PingShared>);

impl Service for PingLoad {
    type Session = PingSession;

    fn open(&self, peer: &Peer) -> Result<PingSession, Refusal> {
        let Origin::Dialled { .. } = peer.origin else { return Err(Refusal) };
        Ok(PingSession {
            shared: self.0.clone(),
            sent_at: 0,
            stamp: [0; STAMP],
            back: 0,
            nanos: histogram(),
            in_flight: false,
            ended: false,
            scratch: self.0.message.to_vec(),
        })
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.0.change(|state| {
            state.count.failed += 1;
            state.first_error.get_or_insert_with(|| not_connected(&dial.to, error));
        });
    }
}

/// One connection with one message in flight.
pub(super) struct PingSession {
    shared: Arc<PingShared>,
    /// When the message in flight left, in nanoseconds of the run, and how that is written.
    sent_at: u64,
    stamp: [u8; STAMP],
    /// Bytes of it that are back.
    back: usize,
    nanos: Histogram<u64>,
    in_flight: bool,
    ended: bool,
    /// The message with its time, to be copied out in one piece.
    scratch: Vec<u8>,
}

impl PingSession {
    fn now(&self) -> u64 {
        self.shared.begun.elapsed().as_nanos() as u64
    }

    fn send(&mut self, now: u64, out: &mut Outbox<'_>) {
        self.sent_at = now;
        self.stamp = now.to_le_bytes();
        self.back = 0;
        self.in_flight = true;
        if self.scratch.len() <= COPIED {
            self.scratch[..STAMP].copy_from_slice(&self.stamp);
            out.write(&self.scratch);
        } else {
            out.write(&self.stamp);
            out.share(self.shared.message.slice(STAMP..));
        }
    }

    /// Whether these bytes are what was sent, from where the answer has got to.
    fn is_right(&self, input: &[u8]) -> bool {
        let Some(end) = self.back.checked_add(input.len()).filter(|&end| end <= self.shared.message.len())
        else {
            return false;
        };
        let (stamp, rest) = input.split_at(STAMP.saturating_sub(self.back).min(input.len()));
        let stamp_right = stamp.is_empty() || *stamp == self.stamp[self.back..self.back + stamp.len()];
        stamp_right && *rest == self.shared.message[end - rest.len()..end]
    }

    /// The message is back: counts it and sends the next, if there is to be one.
    fn answered(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.in_flight = false;
        let now = self.now();
        if self.shared.is(PingStage::Measuring) {
            self.nanos.saturating_record((now - self.sent_at).max(1));
        }
        if self.shared.is(PingStage::Over) || self.nanos.len() >= self.shared.quota {
            return self.end();
        }
        self.send(now, out);
        Flow::Continue
    }

    fn end(&mut self) -> Flow {
        self.leave(None);
        Flow::Close
    }

    /// Leaves what was measured; once.
    fn leave(&mut self, trouble: Option<String>) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        let nanos = mem::replace(&mut self.nanos, Histogram::new(1).expect("a digit"));
        let lost = u64::from(self.in_flight);
        self.shared.change(|state| {
            state.count.ended += 1;
            // The bounds are the same, so nothing can be out of range.
            let _ = state.nanos.add(&nanos);
            state.lost += lost;
            state.wrong += u64::from(trouble.is_some() && lost == 0);
            state.first_error = state.first_error.take().or(trouble);
        });
    }
}

impl Session for PingSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.shared.change(|state| state.count.established += 1);
        self.send(self.now(), out);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if !self.is_right(input) {
            self.in_flight = false;
            self.leave(Some("a message came back other than it was sent".into()));
            return Consumed::all(input).then(Flow::Abort);
        }
        self.back += input.len();
        let flow = if self.back == self.scratch.len() { self.answered(out) } else { Flow::Continue };
        Consumed::all(input).then(flow)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.leave(Some(format!("closed while a message was under way ({why})")));
    }
}
