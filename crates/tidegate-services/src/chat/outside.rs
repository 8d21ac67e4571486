//! What other nodes say is checked as what a member says is: nothing is believed because it came by a broker.

use super::command::{NAME_BYTES, name};
use super::far::Happened;
use super::limits::ChatLimits;
use super::span::Batch;

/// The highest number in a room; after it they begin again. Every reader of JSON keeps so many exactly (RFC 8259,
/// section 6).
pub const MOST_NUMBER: u64 = 1 << 53;

/// Why something cannot have come from a node like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Implausible {
    /// It says nothing, or has no number.
    #[error("nothing happened in it, or its number is none")]
    Number,
    /// No member could have said or done that.
    #[error("a text is not as members write and nodes note it")]
    Text,
    /// No room or member is called so.
    #[error("a name is none: letters, digits, - _ and . only, at most 32 bytes")]
    Name,
    /// Members would be cut off for it.
    #[error(
        "a text of {bytes} bytes is more than members of this node take ({most}); give all nodes the same --line-bytes and --behind-bytes"
    )]
    Long {
        /// Its length.
        bytes: usize,
        /// What they take.
        most: usize,
    },
    /// The same, of all of it together.
    #[error(
        "{bytes} bytes at once are more than members of this node take ({most}); give all nodes the same --waiting-bytes and --behind-bytes"
    )]
    Much {
        /// Its cost.
        bytes: usize,
        /// What they take.
        most: usize,
    },
}

/// Whether a room, a member or a node may be called so: as a local member may.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && name(text).is_ok()
}

impl ChatLimits {
    /// Most bytes of one thing that happened: members that are as slow as they may be still take ten of them.
    pub(super) fn happened_bytes(&self) -> usize {
        self.behind_bytes / 10 + NAME_BYTES + 2
    }

    /// Most bytes of a batch, each thing counted as its text and 32 bytes.
    pub(super) fn batch_bytes(&self) -> usize {
        self.waiting_bytes.max(self.behind_bytes / 2)
    }
}

/// Whether a batch may have been offered by a node like this one.
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

/// Whether it is written as a room writes what happens in it.
fn is_as_noted(happened: &Happened) -> bool {
    let text = &*happened.text;
    if text.chars().any(|c| c.is_control() && c != '\t') {
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
