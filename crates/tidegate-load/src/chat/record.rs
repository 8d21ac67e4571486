//! What was heard: the same for everybody, with one number after the other.

use std::collections::HashSet;

/// What a speaker said, as its message carries it: `tg SPEAKER COUNT DUE_NS …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    pub(super) speaker: u32,
    pub(super) count: u64,
    /// When it was due, in nanoseconds since the speakers began.
    pub(super) due_ns: u64,
}

/// What happened in a room, as a line says it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RoomEvent {
    /// With this number; a message of this run if it has a stamp.
    Numbered(u64, Option<Stamp>),
    /// The member is in, and what happened up to this number it need not know.
    Joined(u64),
    /// The server refuses something.
    Refused,
    /// An answer that says nothing here.
    Other,
}

/// Takes a line apart.
pub(super) fn read(line: &[u8]) -> RoomEvent {
    match line.first() {
        Some(b'#') => {
            let Some((number, rest)) = number(&line[1..]) else { return RoomEvent::Other };
            RoomEvent::Numbered(number, stamp(rest))
        }
        Some(b'!') => RoomEvent::Refused,
        _ if line.starts_with(b"= joined ") => {
            let at = memchr::memmem::rfind(line, b"at #").map(|at| &line[at + 4..]);
            at.and_then(number).map_or(RoomEvent::Other, |(number, _)| RoomEvent::Joined(number))
        }
        _ => RoomEvent::Other,
    }
}

/// The stamp of ` NICK: tg SPEAKER COUNT DUE_NS …`.
fn stamp(text: &[u8]) -> Option<Stamp> {
    let rest = &text[memchr::memmem::find(text, b": tg ")? + 5..];
    let (speaker, rest) = number(rest)?;
    let (count, rest) = number(rest.strip_prefix(b" ")?)?;
    let (due_ns, _) = number(rest.strip_prefix(b" ")?)?;
    Some(Stamp { speaker: u32::try_from(speaker).ok()?, count, due_ns })
}

/// A number at the front, and what is behind it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((number, &text[digits..]))
}

/// One message of a room, as the members of one thread heard it.
#[derive(Debug)]
struct RecordedMessage {
    text: Box<[u8]>,
    stamp: Stamp,
    heard: u64,
    /// How long it took to the last one, in µs.
    worst_us: u64,
}

/// The messages of a room, by number.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The number of the first one.
    base: u64,
    entries: Vec<Option<RecordedMessage>>,
}

impl Record {
    /// A member has heard a message; `false` if another one heard something else under this number.
    pub(super) fn note(&mut self, number: u64, text: &[u8], stamp: Stamp, latency_us: u64) -> bool {
        if self.entries.is_empty() {
            self.base = number;
        }
        // Everybody was in before the first message: nobody begins before it.
        let Some(at) = number.checked_sub(self.base).map(|at| at as usize) else { return false };
        if at >= self.entries.len() {
            self.entries.resize_with(at + 1, || None);
        }
        let entry = self.entries[at].get_or_insert_with(|| RecordedMessage {
            text: text.into(),
            stamp,
            heard: 0,
            worst_us: 0,
        });
        entry.heard += 1;
        entry.worst_us = entry.worst_us.max(latency_us);
        *entry.text == *text
    }

    /// Adds what another thread's members heard of the same room; `false` if that was something else.
    pub(super) fn merge(&mut self, other: Self) -> bool {
        let mut same = true;
        for (at, entry) in other.entries.into_iter().enumerate() {
            let Some(entry) = entry else { continue };
            same &= self.note(other.base + at as u64, &entry.text, entry.stamp, entry.worst_us);
            let at = (other.base + at as u64)
                .checked_sub(self.base)
                .and_then(|at| self.entries.get_mut(at as usize));
            if let Some(Some(own)) = at {
                own.heard += entry.heard - 1; // one was noted
            }
        }
        same
    }

    /// How long each message took to the last member, in µs.
    pub(super) fn worst_us(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().flatten().map(|entry| entry.worst_us)
    }

    /// Messages that not exactly `members` have heard, or that are here under two numbers.
    pub(super) fn wrong(&self, members: u64) -> u64 {
        let mut stamps = HashSet::new();
        let wrong = |entry: &&RecordedMessage| entry.heard != members || !stamps.insert(entry.stamp);
        self.entries.iter().flatten().filter(wrong).count() as u64
    }

    /// Messages.
    pub(super) fn len(&self) -> u64 {
        self.entries.iter().flatten().count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { speaker: 3, count: 4, due_ns: 5 };

    #[test]
    fn lines_are_taken_apart() {
        assert_eq!(read(b"#17 m3: tg 3 4 5 xxx"), RoomEvent::Numbered(17, Some(STAMP)));
        assert_eq!(read(b"#17 + ann"), RoomEvent::Numbered(17, None));
        assert_eq!(read(b"#17 ann: tg 3 x 5"), RoomEvent::Numbered(17, None));
        assert_eq!(read(b"= joined r as m, 5 here, at #12"), RoomEvent::Joined(12));
        assert_eq!(read(b"! the room is busy"), RoomEvent::Refused);
        for line in [&b""[..], b"#", b"#x", b"= you are m", b"= joined r"] {
            assert_eq!(read(line), RoomEvent::Other);
        }
    }

    #[test]
    fn a_message_that_somebody_missed_or_heard_twice_is_found() {
        let other = Stamp { count: 5, ..STAMP };
        let mut record = Record::default();
        assert!(record.note(10, b"a", STAMP, 1) && record.note(10, b"a", STAMP, 7));
        assert!(record.note(12, b"b", other, 1));
        assert_eq!((record.len(), record.wrong(2), record.wrong(1)), (2, 1, 1));
        assert!(record.note(12, b"b", other, 1));
        assert_eq!(record.wrong(2), 0);
        assert_eq!(record.worst_us().collect::<Vec<_>>(), [7, 1]);
        assert!(!record.note(12, b"c", other, 1), "not what the others heard");
        assert!(!record.note(9, b"z", STAMP, 1), "before the first");
        assert!(record.note(13, b"a", STAMP, 1));
        assert!(record.wrong(1) > 0, "the same message under two numbers");
    }

    #[test]
    fn what_two_threads_heard_is_brought_together() {
        let (mut a, mut b) = (Record::default(), Record::default());
        for record in [&mut a, &mut b] {
            assert!(record.note(10, b"a", STAMP, 1));
        }
        assert!(b.note(10, b"a", STAMP, 9));
        assert!(a.merge(b));
        assert_eq!((a.wrong(3), a.worst_us().max()), (0, Some(9)));
        let mut c = Record::default();
        assert!(c.note(10, b"other", STAMP, 1));
        assert!(!a.merge(c));
    }
}
