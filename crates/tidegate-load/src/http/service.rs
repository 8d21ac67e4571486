//! Makes HTTP sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate::{Dial, Origin, Peer, Refusal, Service};

use super::dialling::Places;
use super::{Common, HttpSession};
use crate::crew::Crew;
use crate::plan::HttpShape;

/// Makes HTTP sessions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpLoad {
    common: Arc<Common>,
    /// Which connections of the plan have had their first attempt.
    first: Arc<[AtomicBool]>,
}

impl HttpLoad {
    pub(crate) fn new(crew: Arc<Crew>, shape: HttpShape) -> Self {
        let first = (0..crew.plan.connections).map(|_| AtomicBool::new(false)).collect();
        let common = Common { requests: shape.requests(), places: Places::new(&crew), shape, crew };
        Self { common: Arc::new(common), first }
    }

    /// Makes connection `tag` of the plan; `false` if none is needed now.
    pub(crate) fn open_place(&self, tag: u64) -> bool {
        if self.common.shape.keep_alive {
            return self.common.crew.dial(tag, None);
        }
        // A connection that carries one request only exists for it.
        self.common.next(tag, tag as usize % self.common.crew.threads())
    }

    /// Begins what is due on connections of their own; nothing to do where connections are kept.
    pub(crate) fn pace(&self) {
        self.common.pace();
    }

    fn first_attempt_ended(&self, tag: u64, stands: bool) {
        let crew = &self.common.crew;
        if self.first.get(tag as usize).is_some_and(|first| !first.swap(true, Relaxed)) {
            crew.first_attempts_ended.fetch_add(1, Relaxed);
            crew.first_attempts_stand.fetch_add(u64::from(stands), Relaxed);
        }
    }
}

impl Service for HttpLoad {
    type Session = HttpSession;

    fn open(&self, peer: &Peer) -> Result<HttpSession, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        self.first_attempt_ended(tag, true);
        Ok(HttpSession::new(self.common.clone(), tag, peer.thread))
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        let thread = dial.thread.unwrap_or(0);
        self.first_attempt_ended(dial.tag, false);
        let mut tally = self.common.crew.tally(thread);
        let why = || format!("connecting failed: {error}");
        if self.common.shape.keep_alive {
            tally.first_error.get_or_insert_with(why);
        } else {
            // The request this connection was to carry.
            tally.failed(1, why);
            drop(tally);
            self.common.next(dial.tag, thread);
        }
    }
}
