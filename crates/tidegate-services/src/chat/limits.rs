//! Limits of rooms and members.

use std::num::NonZeroU32;

use tidegate::policy::{Limit, Limited};
use tidegate::{Policy, PolicyError};

use crate::websocket::{WebSocketLimits, check_head, frame_is_input};

/// Default of [`ChatLimits::burst`].
const BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();

tidegate::limits! {
/// Limits of rooms and members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatLimits, as "" of ChatLimits, at |limits| Some(limits);
    parts {}

    /// An empty one keeps its history until its slot is needed.
    rooms: usize = 1_000 => {
        what: "Maximum rooms",
        cost: "each room stores its history",
        option: "rooms",
        unit: Count,
        range: Within(1, 16_000_000),
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    members: usize = 100_000 => {
        what: "Maximum members of a room",
        cost: "memory for each",
        option: "members",
        unit: Count,
        range: Within(1, 16_000_000),
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// The minimum has room for commands with names.
    line_bytes: usize = 1024 => {
        what: "Longest line or message from a member; a longer one ends the connection",
        cost: "memory for each connection that holds a partial line",
        option: "line-bytes",
        unit: Bytes,
        range: Within(256, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
        relation: Some(frame_is_input!("line_bytes")),
    }
    /// Commands count, too; those that are refused get a response. `None` is unlimited.
    lines_per_s: Option<NonZeroU32> = NonZeroU32::new(10) => {
        what: "Lines per second that a member may send, or none for unlimited; more are refused",
        cost: "fewer: members that paste are refused",
        option: "lines-per-s",
        unit: Count,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    burst: NonZeroU32 = BURST => {
        what: "Burst of lines that a member may send after a pause",
        cost: "more: a member floods its room for longer",
        option: "burst",
        unit: Count,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    history: usize = 50 => {
        what: "Messages of a room shown to a new member",
        cost: "memory for each room",
        option: "history",
        unit: Count,
        range: Within(0, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    history_bytes: usize = 64 * 1024 => {
        what: "Bytes of that history, stored for each room",
        cost: "this much memory for each room",
        option: "history-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
        relation: Some(Relation {
            holds: AtMostPart(2),
            other: "behind_bytes",
            remedy: "a newcomer would be cut off by more than half of it; lower `history_bytes` or raise `behind_bytes`",
        }),
    }
    /// Such a member is reset. The kernel's buffers come on top. Members share the memory of a message; each costs
    /// about 40 bytes for it.
    behind_bytes: usize = 256 * 1024 => {
        what: "Unsent output above which a member is disconnected",
        cost: "this much memory for each member that reads slowly",
        option: "behind-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
        relation: Some(Relation {
            holds: AtLeast(10),
            other: "line_bytes",
            remedy: "it must hold ten longest lines; raise `behind_bytes` or lower `line_bytes`",
        }),
    }
    /// A room that fills to n members costs n²/2 of these messages.
    announced: usize = 200 => {
        what: "Largest room whose members are notified of joins and leaves, and most members listed",
        cost: "more: messages of every member to every other",
        option: "announced",
        unit: Count,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// Where rooms are federated ([`Chat::federated`](super::Chat::federated)). Each event counts as its text and 32
    /// bytes.
    waiting_bytes: usize = 64 * 1024 => {
        what: "Bytes queued per room for the broker; more is refused",
        cost: "this much memory for each room",
        option: "waiting-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
        relation: Some(Relation {
            holds: AtLeast(2),
            other: "line_bytes",
            remedy: "it must hold two longest lines; raise `waiting_bytes` or lower `line_bytes`",
        }),
        with: Some("nats"),
    }
}

impl Limited for ChatLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl ChatLimits {
    /// Checks the limits, also against the policy of the service; `bind` does the same.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        check_head(policy)?;
        self.check_under(policy)
    }

    /// The minimum [`Policy::input_bytes`] for these limits.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.websocket().input_bytes()
    }

    pub(super) fn websocket(&self) -> WebSocketLimits {
        WebSocketLimits { message_bytes: self.line_bytes, ..WebSocketLimits::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_contradict_each_other_are_refused_with_what_to_do() {
        let policy = Policy::default();
        let good = ChatLimits::default();
        assert_eq!(good.check(&policy), Ok(()));
        for (limits, says) in [
            (ChatLimits { rooms: 0, ..good }, "`rooms` is 0; it must be between 1"),
            (ChatLimits { members: 0, ..good }, "`members` is 0; it must be between 1"),
            (ChatLimits { line_bytes: 255, ..good }, "`line_bytes` is 255; it must be between 256"),
            (ChatLimits { behind_bytes: 10_000, history_bytes: 5_000, ..good }, "ten longest lines"),
            (ChatLimits { waiting_bytes: 1024, ..good }, "two longest lines"),
            (ChatLimits { history_bytes: 200 * 1024, ..good }, "lower `history_bytes`"),
            (
                ChatLimits { line_bytes: 1 << 20, behind_bytes: 1 << 24, waiting_bytes: 1 << 22, ..good },
                "raise `input_bytes`",
            ),
        ] {
            let message = limits.check(&policy).unwrap_err().to_string();
            assert!(message.contains(says), "{says:?} in {message:?}");
        }
    }
}
