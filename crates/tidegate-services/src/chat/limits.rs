//! Limits of rooms and members.

use std::num::NonZeroU32;

use tidegate::Policy;

use crate::websocket::{WebSocketLimits, WebSocketLimitsError};

/// Limits of rooms and members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatLimits {
    /// Maximum rooms. Default 1,000. An empty room keeps its history until its slot is needed.
    pub rooms: usize,
    /// Members of a room. Default 100,000.
    pub members: usize,
    /// Bytes of a line or message from a member; a longer one ends the connection. Default 1 KiB.
    pub line_bytes: usize,
    /// Lines per second that a member may send, including commands; more are refused, each with a response. `None` is
    /// unlimited. Default 10.
    pub lines_per_s: Option<NonZeroU32>,
    /// Burst: lines that a member may send together after a pause. Default 20.
    pub burst: NonZeroU32,
    /// Messages of a room shown to a new member. Default 50.
    pub history: usize,
    /// Bytes of them. Default 64 KiB. Each room stores this much.
    pub history_bytes: usize,
    /// Output that may be queued for a member. A member that is further behind is disconnected with a reset. Default
    /// 256 KiB, in addition to the kernel's buffers. Members share the memory of a message; each costs about 40 bytes
    /// for it.
    pub behind_bytes: usize,
    /// Joins, leaves and renames are announced in rooms with at most this many members, and at most this many are
    /// listed. Default 200: a room that fills to n members costs n²/2 of these messages.
    pub announced: usize,
    /// Bytes of events that may wait in a room to be ordered, where rooms are federated
    /// ([`Chat::federated`](super::Chat::federated)); more is refused. Default 64 KiB. Each event counts as its text
    /// and 32 bytes.
    pub waiting_bytes: usize,
}

impl Default for ChatLimits {
    fn default() -> Self {
        Self {
            rooms: 1_000,
            members: 100_000,
            line_bytes: 1024,
            lines_per_s: NonZeroU32::new(10),
            burst: NonZeroU32::new(20).unwrap_or(NonZeroU32::MIN),
            history: 50,
            history_bytes: 64 * 1024,
            behind_bytes: 256 * 1024,
            announced: 200,
            waiting_bytes: 64 * 1024,
        }
    }
}

/// Invalid limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatLimitsError {
    /// A limit of 0 would refuse everything.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// Commands with names do not fit.
    #[error("line_bytes is {0}; it must be at least {LEAST_LINE_BYTES}, so that names fit")]
    Line(usize),
    /// New members would be disconnected by the history they are shown.
    #[error(
        "history_bytes ({history_bytes}) is more than half of behind_bytes ({behind_bytes}): a newcomer would be cut off \
         by the history; lower history_bytes or raise behind_bytes"
    )]
    History {
        /// [`ChatLimits::history_bytes`].
        history_bytes: usize,
        /// [`ChatLimits::behind_bytes`].
        behind_bytes: usize,
    },
    /// The longest message would disconnect every member.
    #[error(
        "behind_bytes ({behind_bytes}) is less than ten longest lines ({line_bytes} bytes each); raise it or \
         lower line_bytes"
    )]
    Behind {
        /// [`ChatLimits::behind_bytes`].
        behind_bytes: usize,
        /// [`ChatLimits::line_bytes`].
        line_bytes: usize,
    },
    /// The longest message could not be passed on.
    #[error(
        "waiting_bytes ({waiting_bytes}) is less than two longest lines ({line_bytes} bytes each); raise it or \
         lower line_bytes"
    )]
    Waiting {
        /// [`ChatLimits::waiting_bytes`].
        waiting_bytes: usize,
        /// [`ChatLimits::line_bytes`].
        line_bytes: usize,
    },
    /// The policy's limits are too small.
    #[error(transparent)]
    WebSocket(#[from] WebSocketLimitsError),
}

/// Minimum of [`ChatLimits::line_bytes`].
const LEAST_LINE_BYTES: usize = 256;

impl ChatLimits {
    /// Checks the limits, also against the policy of the service.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), ChatLimitsError> {
        let Self { rooms, members, line_bytes, history_bytes, behind_bytes, waiting_bytes, .. } = *self;
        for (name, value) in [("rooms", rooms), ("members", members)] {
            if value == 0 {
                return Err(ChatLimitsError::Zero(name));
            }
        }
        if line_bytes < LEAST_LINE_BYTES {
            return Err(ChatLimitsError::Line(line_bytes));
        }
        if behind_bytes / 10 < line_bytes {
            return Err(ChatLimitsError::Behind { behind_bytes, line_bytes });
        }
        if waiting_bytes / 2 < line_bytes {
            return Err(ChatLimitsError::Waiting { waiting_bytes, line_bytes });
        }
        if history_bytes > behind_bytes / 2 {
            return Err(ChatLimitsError::History { history_bytes, behind_bytes });
        }
        Ok(self.websocket().check(policy)?)
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
            (ChatLimits { rooms: 0, ..good }, "rooms is 0"),
            (ChatLimits { members: 0, ..good }, "members is 0"),
            (ChatLimits { line_bytes: 255, ..good }, "at least 256"),
            (ChatLimits { behind_bytes: 10_000, ..good }, "ten longest lines"),
            (ChatLimits { waiting_bytes: 1024, ..good }, "two longest lines"),
            (ChatLimits { history_bytes: 200 * 1024, ..good }, "lower history_bytes"),
            (
                ChatLimits { line_bytes: 1 << 20, behind_bytes: 1 << 24, waiting_bytes: 1 << 22, ..good },
                "raise input_bytes",
            ),
        ] {
            let message = limits.check(&policy).unwrap_err().to_string();
            assert!(message.contains(says), "{says:?} in {message:?}");
        }
    }
}
