//! Makes HTTP sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate::{Dial, Origin, Peer, Refusal, Service};

use super::dialling::Places;
use super::{Common, HttpClient};
use crate::plan::HttpShape;
use crate::run_state::{RunState, not_connected};

/// Makes HTTP sessions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpLoad {
    common: Arc<Common>,
    /// Which connections of the plan have had their first attempt.
    first: Arc<[AtomicBool]>,
}

impl HttpLoad {
    pub(crate) fn new(run_state: Arc<RunState>, shape: HttpShape) -> Self {
        let first = (0..run_state.plan.connections).map(|_| AtomicBool::new(false)).collect();
        let common = Common { requests: shape.requests(), places: Places::new(&run_state), shape, run_state };
        Self { common: Arc::new(common), first }
    }

    /// Makes connection `tag` of the plan; `false` if none is needed now.
    pub(crate) fn open_place(&self, tag: u64) -> bool {
        if self.common.shape.keep_alive() {
            return self.common.run_state.dial(tag, None);
        }
        // A connection that carries one request only exists for it.
        self.common.next(tag, tag as usize % self.common.run_state.threads())
    }

    /// Begins what is due on separate connections; nothing to do where connections are kept.
    pub(crate) fn pace(&self) {
        self.common.pace();
    }

    /// An attempt to connect has ended. Returns whether it was the first of this connection.
    fn end_attempt(&self, tag: u64) -> bool {
        let is_first = self.first.get(tag as usize).is_some_and(|first| !first.swap(true, Relaxed));
        if is_first {
            self.common.run_state.first_attempt_ended(tag);
        }
        is_first
    }
}

impl Service for HttpLoad {
    type Session = HttpClient;

    fn open(&self, peer: &Peer) -> Result<HttpClient, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        if self.end_attempt(tag) {
            self.common.run_state.first_attempts_connected.fetch_add(1, Relaxed);
        }
        Ok(HttpClient::new(self.common.clone(), tag, peer.thread))
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        let thread = dial.thread.unwrap_or(0);
        self.end_attempt(dial.tag);
        let mut thread_stats = self.common.run_state.thread_stats(thread);
        let why = || not_connected(&dial.to, error);
        thread_stats.not_connected(why);
        if !self.common.shape.keep_alive() {
            // The request this connection was to carry.
            thread_stats.failed(1, why);
            drop(thread_stats);
            self.common.next(dial.tag, thread);
        }
    }
}
