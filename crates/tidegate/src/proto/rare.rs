//! State that only few connections have at a time.

use std::sync::Arc;
use std::time::Instant;

use super::connection::Shortage;
use super::mail::SessionWaker;
use super::outbox::SessionState;
use super::session_timers::KeyedTimers;
use crate::policy::timeouts::Pace;
use crate::types::CloseReason;

/// What only few connections have: made when it is needed for the first time, and kept until the connection ends, so
/// that no message allocates it again.
#[derive(Debug, Default)]
pub(super) struct RareState {
    /// Input the session left, or that arrived while the outbox was full. Owns no memory while empty.
    pub(super) input: Vec<u8>,
    /// Input that a layer buffers for the session inside, and what that one leaves unconsumed.
    pub(super) kept: [usize; 2],
    /// The session's waker, if it has asked for one.
    pub(super) waker: Option<Arc<SessionWaker>>,
    pub(super) keyed: Option<Box<KeyedTimers>>,
    /// Most bytes that the session takes at once in a pipe.
    pub(super) splice_room: usize,
    /// Number of layers around the owner of the timer that fires now.
    pub(super) fired: u32,
    /// Offloaded jobs and dials whose result has not come back.
    pub(super) jobs: u32,
    /// Since when the session, which asked for the rest of its input again, has waited for other connections.
    pub(super) again: Option<Instant>,
    /// Draining and idle: until when the peer may still send a last request. Output of this end does not extend it.
    pub(super) last_word: Option<Instant>,
    /// Why it ends, if not for the session's reason.
    pub(super) ends_by: Option<CloseReason>,
    /// How far it is ahead of the minimum rate, if one is set.
    pub(super) pace: Option<Box<Pace>>,
    /// The kernel had no memory for it.
    pub(super) shortage: Option<Box<Shortage>>,
}

static NOTHING: RareState = RareState {
    input: Vec::new(),
    kept: [0; 2],
    waker: None,
    keyed: None,
    splice_room: 0,
    fired: 0,
    jobs: 0,
    again: None,
    last_word: None,
    ends_by: None,
    pace: None,
    shortage: None,
};

impl SessionState {
    #[inline]
    pub(super) fn rare(&self) -> &RareState {
        self.rare.as_deref().unwrap_or(&NOTHING)
    }

    #[inline]
    pub(super) fn rare_mut(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }
}
