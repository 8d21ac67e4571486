//! Wakes a session: by a flag while it runs, by mail otherwise.

use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

/// Not woken.
const IDLE: u8 = 0;
/// Mail is queued.
const SCHEDULED: u8 = 1;
/// It runs on its I/O thread.
const RUNNING: u8 = 2;
/// It runs, and was woken meanwhile: it is polled once more.
const RUNNING_WOKEN: u8 = 3;

/// The waker of a session's futures.
#[derive(Default)]
pub(crate) struct SessionWake {
    state: AtomicU8,
    /// How to reach its thread; known from the first call on.
    mail: OnceLock<Waker>,
}

impl SessionWake {
    /// The session runs; a wake that has come before is not lost. `mail` creates the waker of its thread.
    pub(crate) fn begin(&self, mail: impl FnOnce() -> Waker) {
        self.mail.get_or_init(mail);
        if let SCHEDULED | RUNNING_WOKEN = self.state.swap(RUNNING, AcqRel) {
            self.state.store(RUNNING_WOKEN, Release);
        }
    }

    /// Whether it is woken: it was not [taken](Self::take_woken) yet.
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Acquire) == RUNNING_WOKEN
    }

    /// Whether it was woken since the last call of this.
    pub(crate) fn take_woken(&self) -> bool {
        self.is_woken() // mostly not: an exchange costs as much as several loads
            && self.state.compare_exchange(RUNNING_WOKEN, RUNNING, AcqRel, Acquire).is_ok()
    }

    /// The session returns. If it was woken meanwhile it is called again, after other connections.
    pub(crate) fn end(&self) {
        if self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_err() {
            self.state.store(SCHEDULED, Release);
            self.send();
        }
    }

    /// Makes the session run again: in the current call if it runs, otherwise soon.
    pub(crate) fn wake_again(&self) {
        let next = |state| match state {
            IDLE => Some(SCHEDULED),
            RUNNING => Some(RUNNING_WOKEN),
            _ => None,
        };
        if self.state.fetch_update(AcqRel, Acquire, next) == Ok(IDLE) {
            self.send();
        }
    }

    fn send(&self) {
        if let Some(mail) = self.mail.get() {
            mail.wake_by_ref();
        }
    }
}

impl Wake for SessionWake {
    fn wake(self: Arc<Self>) {
        self.wake_again();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_an_event_is_one_of_the_event_and_none_of_the_next() {
        let wake = SessionWake::default();
        for woken in [false, true, false] {
            if woken {
                wake.wake_again();
            }
            wake.begin(|| Waker::noop().clone());
            wake.begin(|| Waker::noop().clone()); // of the same event
            assert_eq!([wake.is_woken(), wake.take_woken(), wake.take_woken()], [woken, woken, false]);
            wake.end();
        }
    }
}
