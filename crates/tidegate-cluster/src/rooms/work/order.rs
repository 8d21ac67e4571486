//! How what waits in one room gets its place in the order. The broker takes a message only if nothing has come into the
//! room since the last that this node has seen (the expected last sequence of the subject), and the message carries the
//! numbers it then has. So a place is had or not, whatever became of an answer: saying the same again is always safe.

use std::time::{Duration, Instant};

/// After a place was had, the room is left to other nodes for so long: one that is near the broker could always be
/// first otherwise. What comes meanwhile goes in one message.
pub(super) const ROOM_QUANTUM: Duration = Duration::from_millis(10);

/// What is said again if nothing was heard of it for so long.
const AGAIN: Duration = Duration::from_secs(1);

/// The way of one room into the order.
#[derive(Debug, Default)]
pub(super) struct RoomOrder {
    /// Place in the stream of what came last.
    pub(super) last: u64,
    /// Place of what was believed last.
    pub(super) taken: u64,
    /// Something may wait.
    pub(super) wanted: bool,
    under_way: Option<PendingMessage>,
    /// The place of which it was asked what came there.
    asked: u64,
    /// When it is its turn again.
    turn: Option<Instant>,
}

#[derive(Debug)]
struct PendingMessage {
    serial: u64,
    /// When it was first said.
    since: Instant,
    /// When it was said last.
    said: Instant,
    message: Vec<u8>,
    /// The broker says that something else has come before it; usually that is about to arrive here.
    disputed: bool,
}

/// What is to be done in a room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due<'a> {
    /// Nothing, until then if ever.
    Rest(Option<Instant>),
    /// To put what waits together, if anything does.
    Offer,
    /// To ask the broker what came last: what it says does not fit what arrived here.
    Ask,
    /// To say the message of this serial number, for the first time or again.
    Say(u64, &'a [u8]),
}

impl RoomOrder {
    /// What is due now. What is to be said counts as said.
    pub(super) fn due(&mut self, now: Instant) -> Due<'_> {
        if let Some(under_way) = &mut self.under_way {
            let again = under_way.said + AGAIN;
            if now < again {
                return Due::Rest(Some(again));
            }
            under_way.said = now;
            if std::mem::take(&mut under_way.disputed) {
                return Due::Ask;
            }
            return Due::Say(under_way.serial, &under_way.message);
        }
        match self.turn.filter(|&turn| now < turn) {
            _ if !self.wanted => Due::Rest(None),
            Some(turn) => Due::Rest(Some(turn)),
            None => Due::Offer,
        }
    }

    /// This message is under way from now on; it is due at once.
    pub(super) fn begin(&mut self, serial: u64, message: Vec<u8>, now: Instant) {
        self.wanted = false;
        let said = now.checked_sub(AGAIN).unwrap_or(now);
        self.under_way = Some(PendingMessage { serial, since: now, said, message, disputed: false });
    }

    /// Whether something has come of which was not asked what it is; from now on it was.
    pub(super) fn is_to_be_asked(&mut self) -> bool {
        std::mem::replace(&mut self.asked, self.last) != self.last
    }

    /// There was no answer to that: it is asked again later, and until then nothing is put together.
    pub(super) fn ask_later(&mut self, now: Instant) {
        self.asked = 0;
        self.turn = Some(now + AGAIN);
    }

    /// Nothing waits.
    pub(super) fn rest(&mut self) {
        self.wanted = false;
    }

    /// Whether this is what is under way: its number is easily guessed, so all of it is compared.
    pub(super) fn is_own(&self, serial: u64, message: &[u8]) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.serial == serial)
            && self.is_under_way(message)
    }

    /// Whether just these bytes are under way.
    pub(super) fn is_under_way(&self, message: &[u8]) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.message == message)
    }

    /// What was under way has its place, and was of no use: the next is not said at once.
    pub(super) fn failed(&mut self, place: u64, now: Instant) {
        self.came(place);
        self.turn = Some(now + AGAIN);
    }

    /// The broker did not take this, because something else came before it.
    pub(super) fn dispute(&mut self, serial: u64) {
        if let Some(under_way) = self.under_way.as_mut().filter(|under_way| under_way.serial == serial) {
            under_way.disputed = true;
        }
    }

    /// Something has come at this place. If it is not what was under way, that has lost its place, and what waits is
    /// put together anew.
    pub(super) fn came(&mut self, place: u64) {
        self.last = place;
        if self.under_way.take().is_some() {
            self.wanted = true;
        }
    }

    /// What came was this node's: others have a turn now.
    pub(super) fn had_its_turn(&mut self, now: Instant) {
        self.turn = Some(now + ROOM_QUANTUM);
    }

    /// The broker keeps nothing before this place of what this node has seen.
    pub(super) fn move_to(&mut self, place: u64) {
        if place == self.last {
            return; // what is under way still fits
        }
        (self.last, self.taken) = (place, 0);
        self.wanted |= self.under_way.take().is_some();
    }

    /// Since when something waits for its place in vain.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.under_way.as_ref().map(|under_way| under_way.since)
    }

    /// What is under way counts its time from now.
    pub(super) fn excuse(&mut self, now: Instant) {
        if let Some(under_way) = &mut self.under_way {
            under_way.since = now;
        }
    }

    /// Says again at once what is under way, and counts its time from now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.excuse(now);
        if let Some(under_way) = &mut self.under_way {
            under_way.said = now.checked_sub(AGAIN).unwrap_or(now);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.wanted && self.under_way.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_said_again_until_something_came() {
        let start = Instant::now() + AGAIN;
        let mut order = RoomOrder { last: 7, wanted: true, ..RoomOrder::default() };
        assert_eq!(order.due(start), Due::Offer);
        order.begin(1, b"x".to_vec(), start);
        assert_eq!(order.due(start), Due::Say(1, b"x"));
        assert_eq!(order.due(start), Due::Rest(Some(start + AGAIN)));
        assert_eq!(order.due(start + AGAIN), Due::Say(1, b"x"));
        assert!(order.is_own(1, b"x") && order.stuck_since() == Some(start));
        order.dispute(2);
        assert_eq!(order.due(start + 2 * AGAIN), Due::Say(1, b"x"), "that was another message");
        order.dispute(1);
        assert_eq!(
            order.due(start + 2 * AGAIN),
            Due::Rest(Some(start + 3 * AGAIN)),
            "what came before it is on its way"
        );
        assert_eq!(order.due(start + 3 * AGAIN), Due::Ask);
        order.came(9);
        order.had_its_turn(start);
        assert!(!order.is_own(1, b"x") && order.stuck_since().is_none() && order.last == 9);
    }

    #[test]
    fn a_place_that_another_had_is_asked_for_at_once_and_ones_own_only_after_a_turn() {
        let start = Instant::now() + AGAIN;
        let mut order = RoomOrder { wanted: true, ..RoomOrder::default() };
        order.begin(1, Vec::new(), start);
        order.came(5);
        assert_eq!(order.due(start), Due::Offer, "another was first");
        order.begin(2, Vec::new(), start);
        order.came(6);
        order.had_its_turn(start);
        assert_eq!(order.due(start), Due::Rest(Some(start + ROOM_QUANTUM)));
        assert_eq!(order.due(start + ROOM_QUANTUM), Due::Offer);
        order.rest();
        assert_eq!(order.due(start + ROOM_QUANTUM), Due::Rest(None));
        assert!(order.is_idle());
    }

    #[test]
    fn what_came_is_asked_for_until_there_is_an_answer() {
        let start = Instant::now();
        let mut order = RoomOrder { wanted: true, ..RoomOrder::default() };
        assert!(!order.is_to_be_asked(), "nothing has come");
        order.came(5);
        assert!(order.is_to_be_asked() && !order.is_to_be_asked());
        order.ask_later(start);
        assert_eq!(order.due(start), Due::Rest(Some(start + AGAIN)));
        assert_eq!(order.due(start + AGAIN), Due::Offer);
        assert!(order.is_to_be_asked());
    }

    #[test]
    fn what_is_under_way_keeps_its_number_as_long_as_it_fits() {
        let start = Instant::now() + AGAIN;
        let mut order = RoomOrder { wanted: true, ..RoomOrder::default() };
        order.begin(1, Vec::new(), start);
        order.move_to(0);
        assert!(order.is_own(1, b""), "a copy of it may still be taken");
        order.move_to(4);
        assert!(!order.is_own(1, b"x") && order.due(start) == Due::Offer);
    }
    #[test]
    fn what_failed_is_not_said_again_at_once_and_nobody_else_has_said_it() {
        let start = Instant::now() + AGAIN;
        let mut order = RoomOrder { wanted: true, ..RoomOrder::default() };
        order.begin(1, b"x".to_vec(), start);
        assert!(order.is_own(1, b"x") && !order.is_own(2, b"x") && !order.is_own(1, b"y"));
        order.failed(5, start);
        assert_eq!(order.due(start), Due::Rest(Some(start + AGAIN)));
        assert_eq!(order.due(start + AGAIN), Due::Offer);
    }
}
