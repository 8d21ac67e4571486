//! What nodes tell each other, and where: things that happened in a room go into its subject of the stream, everything else to all nodes at
//! once.

use serde::{Deserialize, Serialize};

/// The stream that gives rooms their order and keeps what happened last.
pub(super) const STREAM: &str = "tidegate-chat";
/// Its subjects.
pub(super) const ROOMS: &str = "tidegate.chat.room.*";
/// Where nodes talk about themselves.
pub(super) const NODES: &str = "tidegate.chat.nodes";

const ROOM: &str = "tidegate.chat.room.";

/// The subject of a room: letters, digits and `-` as they are, any other byte as `_` and two hexadecimal digits. So a name is always one
/// word of a subject, whatever it holds, and no two names are the same one.
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

/// What a node says about itself, to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub(super) enum Tell {
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

#[cfg(test)]
mod tests {
    use super::*;

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
