//! Validates messages of other nodes as strictly as those of members; the broker is not trusted.

use super::command::{NAME_BYTES, is_text, name};
use super::federation::Batch;
use super::limits::ChatLimits;
use super::remote::Happened;

/// The highest number in a room; after it numbering starts again. Every JSON parser represents it exactly (RFC 8259,
/// section 6).
pub const MOST_NUMBER: u64 = 1 << 53;

/// Why a message cannot come from a valid node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Implausible {
    /// It contains no event, or an invalid number.
    #[error("no event, or an invalid number")]
    Number,
    /// No member could have caused it.
    #[error("a text that no member can have written")]
    Text,
    /// Invalid room or member name.
    #[error("an invalid name: letters, digits, - _ and . only, at most 32 bytes")]
    Name,
    /// Members would be disconnected by it.
    #[error(
        "a text of {bytes} bytes is more than members of this node accept ({most}); give all nodes the same \
         --line-bytes and --behind-bytes"
    )]
    Long {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The same, for the whole batch.
    #[error(
        "a batch of {bytes} bytes is more than members of this node accept ({most}); give all nodes the same \
         --waiting-bytes and --behind-bytes"
    )]
    Much {
        /// Its size.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}

/// Whether a room, member or node name is valid, by the rules for local members.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && name(text).is_ok()
}

impl ChatLimits {
    /// Maximum size of one event: the slowest permitted member can queue ten of them.
    pub(super) fn happened_bytes(&self) -> usize {
        self.behind_bytes / 10 + NAME_BYTES + 2
    }

    /// Maximum bytes of a batch, each event counted as its text and 32 bytes.
    pub(super) fn batch_bytes(&self) -> usize {
        self.waiting_bytes.max(self.behind_bytes / 2)
    }
}

/// Checks that a batch could have been offered by a valid node.
pub(super) fn check(batch: &Batch, limits: &ChatLimits) -> Result<(), Implausible> {
    let last = batch.first.checked_add(batch.all.len() as u64);
    if batch.first == 0 || batch.all.is_empty() || last.is_none_or(|last| last > MOST_NUMBER) {
        return Err(Implausible::Number);
    }
    let most = limits.happened_bytes();
    if let Some(long) = batch.all.iter().find(|happened| happened.text.len() > most) {
        return Err(Implausible::Long { bytes: long.text.len(), most });
    }
    let (bytes, most) = (batch.all.iter().map(Happened::cost).sum(), limits.batch_bytes());
    if bytes > most {
        return Err(Implausible::Much { bytes, most });
    }
    if batch.all.iter().all(is_as_noted) { Ok(()) } else { Err(Implausible::Text) }
}

/// Whether a text has the form in which a room writes its events.
fn is_as_noted(happened: &Happened) -> bool {
    let text = &*happened.text;
    if !is_text(text) {
        return false;
    }
    if happened.said {
        return text.split_once(": ").is_some_and(|(nick, _)| is_name(nick));
    }
    let alone = text.strip_prefix("+ ").or_else(|| text.strip_prefix("- "));
    let renamed = || text.split_once(" ~ ").is_some_and(|(old, new)| is_name(old) && is_name(new));
    alone.is_some_and(is_name) || renamed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: u64, all: &[(bool, &str)]) -> Batch {
        let happened = |&(said, text): &(bool, &str)| Happened { said, text: text.into() };
        Batch { first, all: all.iter().map(happened).collect() }
    }

    #[test]
    fn what_a_room_writes_is_taken() {
        let all = [
            (true, "ann: hello"),
            (true, "ann: a: b\tc"),
            (false, "+ jörg.2"),
            (false, "- ann"),
            (false, "ann ~ 潮"),
        ];
        assert_eq!(check(&batch(1, &all), &ChatLimits::default()), Ok(()));
        assert_eq!(check(&batch(MOST_NUMBER - 5, &all), &ChatLimits::default()), Ok(()));
    }

    #[test]
    fn what_nobody_could_have_done_is_not() {
        let limits = ChatLimits::default();
        for (said, text) in [
            (true, "hello"),
            (true, ": hello"),
            (true, "a b: hello"),
            (true, "ann: \u{1b}[2J"),
            (true, "ann\u{1b}[2J: hello"),
            (true, "ann: one\n#9 bob: two"),
            (true, "ann: exe.\u{202e}gpj"),
            (true, "ann: \u{61c}"),
            (false, "ann: hello"),
            (false, "+ "),
            (false, "+ a b"),
            (false, "= node b is lost"),
            (false, "ann ~ "),
        ] {
            assert_eq!(check(&batch(1, &[(said, text)]), &limits), Err(Implausible::Text), "{text:?}");
        }
        let well = (true, "ann: hello");
        for (first, all) in [(0, &[well][..]), (1, &[]), (MOST_NUMBER, &[well]), (u64::MAX, &[well])] {
            assert_eq!(check(&batch(first, all), &limits), Err(Implausible::Number), "{first}");
        }
        let long = format!("ann: {}", "x".repeat(limits.happened_bytes()));
        assert!(matches!(check(&batch(1, &[(true, &long)]), &limits), Err(Implausible::Long { .. })));
        let lines = vec![(true, "ann: hello"); limits.batch_bytes() / 42 + 1];
        assert!(matches!(check(&batch(1, &lines), &limits), Err(Implausible::Much { .. })));
    }
}
