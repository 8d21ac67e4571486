//! An echo server with state and timers: each connection gets its bytes back at a bounded rate.
//! The tutorial (docs/tutorial.md) builds it step by step.

// ANCHOR: state
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Outbox, Peer, Refusal, Service, Session};

/// Echoes at most `bytes_per_s` on each connection.
pub struct Throttle {
    /// Bytes a second of one connection.
    pub bytes_per_s: usize,
    /// Bytes of all connections together, for anyone who wants to look.
    pub echoed: Arc<AtomicU64>,
}

/// The state of one connection.
pub struct Throttled {
    bytes_per_s: usize,
    echoed: Arc<AtomicU64>,
    /// No further byte before this time.
    ready_at: Option<Instant>,
    bytes: usize,
}

impl Service for Throttle {
    type Session = Throttled;

    fn open(&self, _peer: &Peer) -> Result<Throttled, Refusal> {
        Ok(Throttled {
            bytes_per_s: self.bytes_per_s,
            echoed: Arc::clone(&self.echoed),
            ready_at: None,
            bytes: 0,
        })
    }
}
// ANCHOR_END: state

// ANCHOR: session
impl Session for Throttled {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let now = out.now();
        let is_ready = self.ready_at.is_none_or(|when| when <= now);
        let most = if is_ready { (self.bytes_per_s / 10).max(1) } else { 0 };
        let bytes = input.len().min(most);
        if bytes > 0 {
            out.write(&input[..bytes]);
            self.bytes += bytes;
            self.ready_at = Some(now + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64));
        }
        if let (true, Some(when)) = (bytes < input.len(), self.ready_at) {
            out.set_activity(Activity::Work); // input that is left stays, and no more is received
            out.wake_at(when);
        }
        Consumed::bytes(bytes)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if matches!(mail, Mail::Timer) {
            out.set_activity(Activity::Nothing); // on_bytes is called again with what was left
        }
        Flow::Continue
    }

    fn on_close(&mut self, _why: CloseReason) {
        self.echoed.fetch_add(self.bytes as u64, Ordering::Relaxed);
    }
}
// ANCHOR_END: session
