//! Accepting in a completion loop: how many accepts are posted, what they bring, and which thread serves it.

use std::io;
use std::net::SocketAddr;

use tidegate_os::socket::is_exhaustion;

use super::super::{Close, HandOn};
use super::{CompletionDriver, CompletionEntry, CompletionLoop, Phase};
use crate::engine::worker::admission::count_refusal;
use crate::engine::worker::command_queue::Accepted;
use crate::engine::worker::loop_driver::LoopDriver;
use crate::policy::accept::{ACCEPT_QUANTUM, ACCEPTS_NEAR_LIMIT, Admission};
use crate::proto::Event;

/// Accepts that are posted.
#[derive(Default)]
pub(super) struct OutstandingAccepts {
    /// One that completes without end.
    endless: bool,
    /// Single ones.
    single: usize,
    /// What they brought since they were looked after last.
    at_once: usize,
    /// That was more than are to be accepted in a row: they are single until one finds nobody.
    in_batches: bool,
    /// How many single ones were last outstanding at most, and how many it should be because the server is behind.
    most: usize,
    boost: usize,
    /// A connection has found none since they were looked at last.
    behind: bool,
    /// All were asked to end.
    pub(super) stopping: bool,
    /// How often connections were looked for after the order to stop.
    last_looks: u32,
}

impl OutstandingAccepts {
    pub(super) fn are_posted(&self) -> bool {
        self.endless || self.single > 0
    }

    /// All that were posted are used up: next time it is twice as many.
    fn note_exhausted(&mut self) {
        if self.single == 0 {
            self.boost = self.most.saturating_mul(2);
        }
    }

    /// How many single ones are to be outstanding: `high`, or more while the server is behind. Then it is one more than
    /// now at least: that a connection has found none is said again only after another one was posted.
    fn wanted(&mut self, high: usize) -> usize {
        let least = if std::mem::take(&mut self.behind) { self.single + 1 } else { 0 };
        let wanted = high.max(self.boost).max(least);
        self.boost /= 2;
        wanted
    }

    /// Whether accepts are to be single ones, a few at a time: from when the endless one has brought more at once than
    /// are to be accepted in a row, until a single one finds nobody. Many at once keep the others waiting; and of a
    /// thousand that are accepted, then read, then answered and then closed, nothing is left in the processor's cache
    /// from one step to the next. `idle`: single ones that have certainly found nobody.
    fn go_in_batches(&mut self, at_once: usize, batch: usize, idle: usize) -> bool {
        self.in_batches = match self.endless {
            true => at_once > batch,
            false => self.in_batches && idle == 0,
        };
        self.in_batches
    }

    /// Whether connections wait that single accepts take a few at a time.
    pub(super) fn are_in_batches(&self) -> bool {
        self.in_batches && self.single > 0
    }

    /// A connection has found none of them, although some are left: silent connections hold those, or some were posted
    /// since. So more are posted, twice as many as last; if none is left, that was noted.
    pub(super) fn note_behind(&mut self) {
        if self.single > 0 {
            self.boost = self.boost.max(self.most.max(self.single).saturating_mul(2));
            self.behind = true;
        }
    }
}

/// How often a thread that stops looks for connections nobody was woken for. If somebody still waits by then, there are
/// many, and each new one wakes another ring.
const LAST_LOOKS: u32 = 8;

impl<P: CompletionDriver> CompletionLoop<P> {
    /// Whether connections wait that another ring was perhaps not woken for. The kernel wakes one accept for each
    /// connection (`poll_exclusive` of IORING_OP_ACCEPT); if that was one of this ring and was being ended, nobody else
    /// hears of it.
    pub(super) fn is_owed(&self) -> bool {
        let waits = || self.listener.as_ref().is_some_and(|listener| P::has_waiting(listener));
        self.room() > 0 && self.accepts.last_looks < LAST_LOOKS && !self.loop_state.out_of_time() && waits()
    }

    /// Counts the accepts that are posted.
    pub(super) fn count_accepts(&self) {
        let without_end = if self.accepts.endless { self.port.accepts_without_end() } else { 0 };
        self.loop_state.worker.counters.accepts_posted.set((self.accepts.single + without_end) as u64);
    }

    /// Keeps accepts posted exactly while connections may be accepted, and never more than there is room for.
    pub(super) fn look_after_accepts(&mut self) {
        let at_once = std::mem::take(&mut self.accepts.at_once);
        let Some(listener) = self.listener.clone() else { return };
        let posted = self.accepts.are_posted();
        if self.accepts.stopping {
            if posted {
                // One that is just being carried out is not found (io_uring_prep_cancel(3)) and then waits on; if
                // others were found, that does not even show. So the loop asks again, and at a stop does not sleep
                // before all have come back.
                self.port.stop_accepting();
            }
            return; // until all of them have come back
        }
        let room = self.room();
        let turns = self.has_partners();
        match self.loop_state.admission() {
            Admission::Wait if posted => self.stop_accepting(),
            Admission::Wait if self.loop_state.stop_at.is_some() => {
                if self.is_owed() && !self.loop_state.is_resting() {
                    // Takes what is there, and ends in the same breath.
                    self.accepts.last_looks += 1;
                    self.accept_singly(&listener, room.min(ACCEPTS_NEAR_LIMIT));
                    self.stop_accepting();
                } else {
                    self.close_up(room);
                }
            }
            Admission::Wait => {}
            Admission::Admit if self.accept_marks().is_some() => self.keep_posted(&listener, room),
            Admission::Admit if turns => self.accept_singly(&listener, room.min(self.quantum())),
            // More may come in at once than there is room for: the whole backlog.
            Admission::Admit if room > self.loop_state.worker.policy.accept.backlog as usize => {
                self.accept_all(&listener, at_once)
            }
            Admission::Admit if self.accepts.endless => self.stop_accepting(),
            Admission::Admit => self.accept_singly(&listener, room.min(ACCEPTS_NEAR_LIMIT)),
            Admission::Refuse if self.accepts.single == 0 => {
                self.accepts.most = 1;
                self.post_one(&listener);
            }
            Admission::Refuse => {}
        }
    }

    /// Connections that may be accepted, beside those that other threads are about to hand on.
    fn room(&self) -> usize {
        self.loop_state
            .room()
            .min(self.port.accept_room().saturating_sub(self.loop_state.places().expected()))
    }

    /// A stop has accepted all that waited. Only now are connections notified: their clients may connect again at once.
    fn close_up(&mut self, room: usize) {
        if room > 0 && !self.loop_state.is_resting() {
            self.listener = None; // later connections would not be served
        }
        if std::mem::take(&mut self.unreported) {
            self.broadcast(|| Event::Drain);
        }
    }

    /// One accept that completes without end, unless that brings too many at once.
    fn accept_all(&mut self, listener: &P::Listener, at_once: usize) {
        let batch = self.loop_state.worker.policy.accept.batch;
        // Of what a full batch of events left behind, some may be accepts.
        let idle = if self.loop_state.was_full() { 0 } else { self.accepts.single };
        let in_batches = P::TAKES_BACKLOG && self.accepts.go_in_batches(at_once, batch, idle);
        match (in_batches, self.accepts.endless) {
            (true, true) => self.stop_accepting(),
            (true, false) => self.accept_singly(listener, self.quantum()),
            (false, true) => {}
            (false, false) => {
                self.accepts.endless = true;
                self.port.accept_all(listener);
            }
        }
    }

    /// Single accepts posted together while connections wait for them.
    fn quantum(&self) -> usize {
        self.loop_state.worker.policy.accept.batch.min(ACCEPT_QUANTUM)
    }

    fn accept_singly(&mut self, listener: &P::Listener, want: usize) {
        self.accepts.most = want;
        while self.accepts.single < want && self.loop_state.claim_posted() {
            self.post_one(listener);
        }
    }

    fn post_one(&mut self, listener: &P::Listener) {
        self.accepts.single += 1;
        self.port.accept_one(listener);
    }

    /// The watermarks of single accepts, if there are to be such.
    fn accept_marks(&self) -> Option<(usize, usize)> {
        let marks = self.loop_state.worker.policy.accept.posted;
        let marks = marks.map(|marks| (marks.low.get() as usize, marks.high.get() as usize));
        marks.or_else(|| self.port.accept_marks())
    }

    /// Keeps single accepts between their watermarks; more while the server is behind.
    fn keep_posted(&mut self, listener: &P::Listener, room: usize) {
        let Some((low, high)) = self.accept_marks() else { return };
        let accept = &self.loop_state.worker.policy.accept;
        // Silent connections may hold all that wait for first data.
        let all_held = self.accepts.single == self.port.accepts_waiting();
        if self.accepts.single < low.min(room) || all_held || self.accepts.behind {
            let want = self.accepts.wanted(high).min(accept.backlog as usize).min(room);
            self.accept_singly(listener, want);
        }
    }

    fn stop_accepting(&mut self) {
        self.accepts.stopping = true;
        self.port.stop_accepting();
    }

    pub(super) fn accepted(&mut self, outcome: io::Result<(P::Socket, Option<SocketAddr>)>, ended: bool) {
        self.accepts.at_once += usize::from(outcome.is_ok());
        let mut claimed = false;
        if ended {
            // Single accepts end with each completion; the endless one is the last to be left over.
            if self.accepts.single > 0 {
                self.accepts.single -= 1;
                claimed = self.loop_state.unpost();
                self.accepts.note_exhausted();
            } else {
                self.accepts.endless = false;
            }
        }
        let stopping = self.accepts.stopping;
        if !self.accepts.are_posted() {
            self.accepts.stopping = false;
        }
        match (&outcome, claimed) {
            (Ok(_), false) => self.loop_state.places().claim_anyway(),
            (Err(_), true) => self.loop_state.places().release(),
            _ => {}
        }
        match outcome {
            Ok((socket, peer)) => {
                let socket = match &self.listener {
                    Some(listener) => self.port.claim(listener, socket, peer),
                    None => socket,
                };
                self.place(socket, peer);
            }
            // Exhaustion counts all the same: accepts that take the last connections at a stop must rest too.
            Err(e) if stopping && !is_exhaustion(&e) => {}
            Err(e) => self.loop_state.accept_failed(&e),
        }
    }

    /// An accepted connection, which has a place here: serves it, or has another thread do so.
    fn place(&mut self, socket: P::Socket, peer: Option<SocketAddr>) {
        if self.loop_state.is_full() {
            count_refusal(&self.loop_state.worker.counters);
            self.loop_state.places().release();
            return self.port.close(self.table.next_token(), socket, Close::default());
        }
        let Some(addresses) = self.addresses.clone() else {
            self.loop_state.keep();
            return self.enter(socket, peer);
        };
        let Some(to) = self.loop_state.assign() else { return self.enter(socket, peer) };
        self.loop_state.places().release();
        match self.port.hand_on(socket, to, addresses.get(to)) {
            HandOn::UnderWay => self.leaving += 1,
            HandOn::Loose(loose) => self.loop_state.hand_on(to, Accepted::new(loose, peer)),
            HandOn::Kept(socket) => {
                self.loop_state.take_back(to);
                self.enter(socket, peer);
            }
        }
    }

    pub(super) fn handed_on(&mut self, to: usize, outcome: Result<(), P::Socket>) {
        self.leaving -= 1;
        if let Err(socket) = outcome {
            self.loop_state.take_back(to);
            self.enter(socket, None);
        }
    }

    /// Serves a connection that has its place, if the service wants it.
    pub(super) fn enter(&mut self, socket: P::Socket, peer: Option<SocketAddr>) {
        let Some(connection) = self.loop_state.admit(peer, || P::local_addr(&socket)) else {
            self.loop_state.turned_away();
            return self.port.close(self.table.next_token(), socket, Close::default());
        };
        self.loop_state.worker.counters.fast_paths.add(P::is_shared(&socket).into());
        let mut entry = CompletionEntry::new(socket, Phase::Open(connection));
        entry.once = self.data_with_accept;
        entry.is_unix = self.accepts_unix;
        let token = self.table.insert(entry);
        self.dispatch(token, Event::Opened);
        self.catch_up(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_finds_none_has_another_one_posted_whatever_was_posted_before() {
        // A burst of silent connections has raised the number to 16, which they hold; it has since come down to 8.
        let mut accepts = OutstandingAccepts { single: 16, most: 8, ..OutstandingAccepts::default() };
        assert_eq!(accepts.wanted(8), 8, "nobody waits");
        accepts.note_behind();
        assert_eq!((accepts.wanted(8), accepts.behind), (32, false));
        // Also where the boost is used up: the mark alone would post none, and nobody would be notified again.
        (accepts.behind, accepts.boost) = (true, 0);
        assert_eq!(accepts.wanted(8), 17);
    }

    #[test]
    fn when_all_are_used_up_twice_as_many_are_posted_and_then_fewer_again() {
        let mut accepts = OutstandingAccepts { single: 1, most: 8, ..OutstandingAccepts::default() };
        accepts.note_exhausted();
        assert_eq!(accepts.wanted(8), 8, "one is left");
        accepts.single = 0;
        accepts.note_exhausted();
        assert_eq!([8, 8, 8].map(|high| accepts.wanted(high)), [16, 8, 8]);
    }

    /// A burst is more than a batch; what follows it is taken by single accepts, until they find nobody.
    #[test]
    fn a_server_that_is_behind_accepts_in_batches() {
        let mut accepts = OutstandingAccepts { endless: true, ..OutstandingAccepts::default() };
        assert!(!accepts.go_in_batches(64, 64, 0), "that many may come at once");
        assert!(accepts.go_in_batches(65, 64, 0));
        accepts.endless = false; // it was asked to end, and has come back
        for at_once in [0, 16, 16] {
            assert!(accepts.go_in_batches(at_once, 64, 0), "all single ones were used up");
        }
        assert!(!accepts.go_in_batches(15, 64, 1), "one of them waits");
        assert!(!accepts.go_in_batches(16, 64, 0), "nothing says that it is behind again");
    }
}
