//! What comes from the stream: checked, and delivered to members if it can be true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::Message;
use tidegate_services::chat::{Batched, Received, is_name};

use super::state::{BridgeState, PendingBatch};
use super::wire::{Said, room_of};

/// How long the bridge leaves the I/O threads alone when queues of members are full.
const BREATH: Duration = Duration::from_millis(1);

/// Numbers that one message can have used up: each thing that happened takes at least 8 bytes of it.
const NUMBERS_EACH: u64 = 1 << 17;

/// How far numbers may have gone on while nothing of a room was seen here: the stream is another one, or has
/// forgotten the room.
const NUMBERS_UNSEEN: u64 = 1 << 32;

/// What is known here of a room when a message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The number of what comes next; none if nothing was received.
    pub(super) next: Option<u64>,
    /// The place of what came last; 0 is nothing of this stream.
    pub(super) last: u64,
    /// The place of what was taken last: something that is not believed has a place, too.
    pub(super) taken: u64,
}

/// Which node a message is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderNode {
    This,
    Other,
}

/// Whose a message is, if its number and place can be true after what is known; the error is why they cannot.
///
/// Numbers cannot be ahead of what is known by more than the messages can have used up that were not seen, so nobody
/// brings them to
/// their end. They begin again only for a sender that has seen what came last, or when nothing was there to be seen.
pub(super) fn follows(said: &Said, place: u64, sender: SenderNode, known: Known) -> Result<Batched, String> {
    if said.after >= place {
        return Err(format!("it has place {place} and says that it follows {}", said.after));
    }
    let has_seen_all = said.after == 0 || said.after == known.last;
    if let Some(next) = known.next.filter(|&next| said.first > next) {
        let unseen = match known.taken {
            0 => NUMBERS_UNSEEN,
            taken => place.saturating_sub(taken).saturating_mul(NUMBERS_EACH),
        };
        if said.first - next > unseen {
            return Err(format!("its number is {} where {next} is expected", said.first));
        }
    }
    let is_lower = known.next.is_some_and(|next| said.first < next);
    Ok(match (sender, has_seen_all && is_lower || said.after == 0) {
        (SenderNode::This, _) if is_lower => Batched::HereAnew,
        (SenderNode::This, _) => Batched::Here,
        (SenderNode::Other, true) => Batched::Anew,
        (SenderNode::Other, false) => Batched::Elsewhere,
    })
}

impl BridgeState {
    /// Something comes from the stream.
    pub(super) fn take(&mut self, message: Message) {
        let place = match message.info() {
            Ok(info) => info.stream_sequence,
            Err(e) => return self.reject(&e.to_string()),
        };
        if place <= self.seen {
            return;
        }
        match room_of(&message.subject).filter(|room| is_name(room)) {
            Some(room) => self.receive(&room.into(), place, &message.payload),
            None => {
                self.reject(&format!("a message came to {}, which is no room", message.subject));
                self.is_read_to(place);
            }
        }
    }

    /// Something has its place in the order of a room.
    pub(super) fn receive(&mut self, room: &Arc<str>, place: u64, payload: &[u8]) {
        match self.believe(room, place, payload) {
            Ok(pending) => self.go_on_telling(pending),
            Err(why) => self.pass_over(room, place, payload, &why),
        }
    }

    /// What is to be sent to members, if it can be true.
    fn believe(&mut self, room: &Arc<str>, place: u64, payload: &[u8]) -> Result<PendingBatch, String> {
        let said = Said::read(payload, self.federation.batch_bytes()).map_err(|e| e.to_string())?;
        let next = self.federation.next(room);
        let order = self.order(room);
        let known = Known { next, last: order.last, taken: order.taken };
        let is_own = order.is_own(said.serial, payload);
        let sender = if is_own { SenderNode::This } else { SenderNode::Other };
        let batched = follows(&said, place, sender, known)?;
        let batch = said.batch();
        self.federation.check(&batch).map_err(|e| e.to_string())?;
        Ok(PendingBatch { room: room.clone(), place, batch, batched, delivered: 0, again: Instant::now() })
    }

    /// Sends members what they have not received yet.
    pub(super) fn go_on_telling(&mut self, pending: PendingBatch) {
        let PendingBatch { room, place, batched, .. } = &pending;
        let own = matches!(batched, Batched::Here | Batched::HereAnew);
        match self.federation.receive(room, &pending.batch, *batched, pending.delivered) {
            Received::Full(delivered) => {
                self.pending = Some(PendingBatch { delivered, again: Instant::now() + BREATH, ..pending });
                return;
            }
            Received::NoRoom => _ = self.orders.remove(room),
            Received::Delivered => {
                let order = self.order(room);
                order.came(*place);
                order.taken = *place;
                if own {
                    order.had_its_turn(Instant::now());
                }
            }
            Received::Void if own => self.order(room).failed(*place, Instant::now()),
            Received::Void => self.order(room).came(*place),
        }
        if self.orders.get(room).is_some_and(|order| !order.is_idle()) {
            self.active.insert(room.clone());
        }
        self.is_read_to(*place);
    }

    /// What is not believed has a place all the same.
    fn pass_over(&mut self, room: &Arc<str>, place: u64, payload: &[u8], why: &str) {
        let order = self.order(room);
        // Nothing is said again and again that is not even believed here.
        if order.is_under_way(payload) {
            order.failed(place, Instant::now())
        } else {
            order.came(place)
        }
        self.active.insert(room.clone());
        self.is_read_to(place);
        self.reject(&format!("room {room}: {why}"));
    }

    /// Something came that no node can have sent: it is counted, said now and then, and not acted upon.
    pub(super) fn reject(&mut self, why: &str) {
        self.federation.reject();
        let count = self.federation.counts().rejected;
        if self.odd.lets(Instant::now()) {
            self.report("odd-message", &format!("not believed: {why} ({count} such messages so far)"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(after: u64, first: u64) -> Said {
        Said { node: 1, serial: 1, after, first, all: vec![(true, "ann: x".into())] }
    }

    const KNOWN: Known = Known { next: Some(11), last: 20, taken: 20 };

    #[test]
    fn numbers_go_on_or_begin_again() {
        let is = |after, first, sender| follows(&said(after, first), 25, sender, KNOWN);
        assert_eq!(is(20, 11, SenderNode::Other), Ok(Batched::Elsewhere));
        assert_eq!(is(20, 11, SenderNode::This), Ok(Batched::Here));
        assert_eq!(is(24, 15, SenderNode::Other), Ok(Batched::Elsewhere), "some are not kept any more");
        assert_eq!(is(19, 10, SenderNode::Other), Ok(Batched::Elsewhere), "old; nothing is passed on");
        assert_eq!(is(0, 1, SenderNode::Other), Ok(Batched::Anew));
        assert_eq!(
            is(20, 1, SenderNode::Other),
            Ok(Batched::Anew),
            "its sender has not believed what this node has"
        );
        assert_eq!(is(20, 1, SenderNode::This), Ok(Batched::HereAnew));
        let unknown = Known { next: None, last: 0, taken: 0 };
        assert_eq!(follows(&said(24, 1_000_000), 25, SenderNode::Other, unknown), Ok(Batched::Elsewhere));
    }

    #[test]
    fn no_number_is_further_ahead_than_messages_were_missed() {
        let is = |first, known| follows(&said(20, first), 25, SenderNode::Other, known);
        let most = 11 + 5 * NUMBERS_EACH;
        assert_eq!(is(most, KNOWN), Ok(Batched::Elsewhere));
        for first in [most + 1, 1 << 40, (1 << 63) - 2, u64::MAX] {
            assert!(is(first, KNOWN).unwrap_err().contains("where 11 is expected"));
        }
        // What was not believed makes room for what comes after it: its sender goes on from there.
        assert!(is(most + 1, Known { taken: 19, ..KNOWN }).is_ok());
        let of_another_stream = Known { taken: 0, ..KNOWN };
        assert!(is(11 + NUMBERS_UNSEEN, of_another_stream).is_ok());
        assert!(is(12 + NUMBERS_UNSEEN, of_another_stream).is_err());
        for after in [25, 26, u64::MAX] {
            assert!(
                follows(&said(after, 11), 25, SenderNode::Other, KNOWN).is_err(),
                "it would come after itself"
            );
        }
    }
}
