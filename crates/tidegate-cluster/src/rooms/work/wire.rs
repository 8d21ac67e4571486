//! What nodes tell each other, and where: things that happened in a room go into its subject of the stream, everything
//! else to all nodes at once.

use serde::{Deserialize, Serialize};
use tidegate_services::chat::{Batch, Happened, MOST_NUMBER, is_name};

use crate::text;
use crate::wire::{WireError, decode};

/// The stream that gives rooms their order and keeps what happened last.
pub(super) const STREAM: &str = "tidegate-chat";
/// Its subjects.
pub(super) const ROOMS: &str = "tidegate.chat.room.*";
/// Where nodes talk about themselves.
pub(super) const NODES: &str = "tidegate.chat.nodes";

const ROOM: &str = "tidegate.chat.room.";

/// The subject of a room: letters, digits and `-` as they are, any other byte as `_` and two hexadecimal digits. So a
/// name is always one word of a subject, whatever it holds, and no two names are the same one.
pub(super) fn of_room(name: &str) -> String {
    let mut subject = String::from(ROOM);
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => subject.push(byte.into()),
            _ => subject.push_str(&format!("_{byte:02x}")),
        }
    }
    subject
}

/// The name of the room whose subject this is; none if [`of_room`] would not have written it.
pub(super) fn room_of(subject: &str) -> Option<String> {
    let mut rest = subject.strip_prefix(ROOM)?.as_bytes();
    let mut name = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        if *first == b'_' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            name.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after.get(2..)?;
        } else {
            name.push(*first);
            rest = after;
        }
    }
    let name = String::from_utf8(name).ok()?;
    (of_room(&name) == subject).then_some(name)
}

/// What happened in a room, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    /// Who put it here.
    pub(super) node: u64,
    /// Which of its messages it is; the same one again has the same.
    pub(super) serial: u64,
    /// The place in the stream of what happened before in this room; 0 is nothing.
    pub(super) after: u64,
    /// The number of the first.
    pub(super) first: u64,
    /// Whether it was said, and the text.
    pub(super) all: Vec<(bool, String)>,
}

impl Said {
    /// One that a node can have put here, as far as it alone tells; `most` is the cost of the largest batch.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(payload: &[u8], most: usize) -> Result<Self, WireError> {
        // JSON doubles a quote at most.
        check_length(payload, most.saturating_mul(2).saturating_add(4096))?;
        let said: Self = decode(payload)?;
        let last = said.first.checked_add(said.all.len() as u64);
        if said.first == 0 || said.all.is_empty() || last.is_none_or(|last| last > MOST_NUMBER) {
            return Err(WireError::Bound("a number in a room"));
        }
        Ok(said)
    }

    /// What happened.
    pub(super) fn batch(self) -> Batch {
        let all = self.all.into_iter().map(|(said, text)| Happened { said, text });
        Batch { first: self.first, all: all.collect() }
    }
}

fn check_length(payload: &[u8], most: usize) -> Result<(), WireError> {
    if payload.len() > most {
        return Err(WireError::Long { bytes: payload.len(), most });
    }
    Ok(())
}

/// Most bytes of what a node says about itself.
const TELL_BYTES: usize = 256 << 10;

/// Most names in one list.
pub(super) const NICKS: usize = 4_000;

/// What a node says about itself, to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub(super) enum NodeMessage {
    /// It lives.
    Beat {
        node: u64,
        name: String,
        /// When the stream was made that it reads, in nanoseconds since 1970.
        stream: i64,
        /// How far in it it has come.
        seen: u64,
    },
    /// It wants to know who lives where: everybody says it.
    Hail { node: u64 },
    /// Who lives in a room at this node.
    Here { node: u64, room: String, members: usize, nicks: Vec<String> },
    /// It ends.
    Bye { node: u64 },
}

impl NodeMessage {
    /// One that a node can have said.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(payload: &[u8]) -> Result<Self, WireError> {
        check_length(payload, TELL_BYTES)?;
        let message: Self = decode(payload)?;
        let wrong = match &message {
            Self::Beat { name, .. } if !text::is_name(name) => "the name of a node",
            Self::Beat { seen, .. } if *seen > MOST_NUMBER => "a place in the stream",
            Self::Here { room, .. } if !is_name(room) => "the name of a room",
            Self::Here { members, nicks, .. } if nicks.len() > NICKS.min(*members) => "the number of names",
            Self::Here { nicks, .. } if !nicks.iter().all(|nick| is_name(nick)) => "the name of a member",
            _ => return Ok(message),
        };
        Err(WireError::Bound(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode;

    #[test]
    fn what_a_node_cannot_have_said_is_refused_by_its_field() {
        let nicks = |all: &[&str]| all.iter().map(|&nick| nick.to_owned()).collect::<Vec<_>>();
        let beat = |name: &str, seen| NodeMessage::Beat { node: 1, name: name.into(), stream: 5, seen };
        let here =
            |room: &str, members, nicks| NodeMessage::Here { node: 1, room: room.into(), members, nicks };
        for tell in [
            beat("n-1.example_x", MOST_NUMBER),
            here("tide", 2, nicks(&["ann"])),
            here("潮", 0, nicks(&[])),
            here("tide", usize::MAX, nicks(&["ann", "bob"])),
        ] {
            assert_eq!(NodeMessage::read(&encode(&tell).unwrap()), Ok(tell));
        }
        let many: Vec<String> = (0..=NICKS).map(|n| format!("n{n}")).collect();
        for (tell, field) in [
            (beat("n1", u64::MAX), "a place in the stream"),
            (beat("\u{1b}[2J", 1), "the name of a node"),
            (beat("", 1), "the name of a node"),
            (beat(&"x".repeat(65), 1), "the name of a node"),
            (here("", 1, nicks(&[])), "the name of a room"),
            (here("a b", 1, nicks(&[])), "the name of a room"),
            (here("tide", 1, nicks(&["\u{1b}[2J"])), "the name of a member"),
            (here("tide", 1, nicks(&[""])), "the name of a member"),
            (here("tide", 1, nicks(&["a", "b"])), "the number of names"),
            (here("tide", usize::MAX, many), "the number of names"),
        ] {
            assert_eq!(NodeMessage::read(&encode(&tell).unwrap()), Err(WireError::Bound(field)));
        }
        let long = encode(&beat(&"x".repeat(TELL_BYTES), 1)).unwrap();
        assert!(matches!(NodeMessage::read(&long), Err(WireError::Long { .. })));
    }

    #[test]
    fn a_message_of_a_room_has_numbers_and_a_bound() {
        let said = |first, all: usize| Said {
            node: 1,
            serial: 1,
            after: 0,
            first,
            all: vec![(true, "a: b".into()); all],
        };
        let read = |said: &Said, most| Said::read(&encode(said).unwrap(), most);
        assert_eq!(read(&said(1, 2), 100), Ok(said(1, 2)));
        for (first, all) in [(0, 1), (1, 0), (MOST_NUMBER, 1), ((1 << 63) - 2, 1), (u64::MAX, 1)] {
            assert_eq!(read(&said(first, all), 100), Err(WireError::Bound("a number in a room")));
        }
        assert!(matches!(read(&said(1, 10_000), 100), Err(WireError::Long { .. })));
    }

    #[test]
    fn a_name_can_be_no_other_subject() {
        for (name, subject) in [
            ("tide", "tidegate.chat.room.tide"),
            ("a.b", "tidegate.chat.room.a_2eb"),
            ("a_2eb", "tidegate.chat.room.a_5f2eb"),
            ("潮", "tidegate.chat.room._e6_bd_ae"),
            ("*", "tidegate.chat.room._2a"),
            ("> x\r\n", "tidegate.chat.room._3e_20x_0d_0a"),
        ] {
            assert_eq!(of_room(name), subject);
            assert_eq!(room_of(subject).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_subject_that_is_not_written_so_is_no_room() {
        for subject in [
            "tidegate.chat.nodes",
            "tidegate.chat.room.a.b",
            "tidegate.chat.room.a_",
            "tidegate.chat.room._2",
            "tidegate.chat.room._2E",
            "tidegate.chat.room._61",
            "tidegate.chat.room._ff",
            "tidegate.chat.room._zz",
            "tidegate.chat.room._+1",
        ] {
            assert_eq!(room_of(subject), None, "{subject}");
        }
    }
}
