//! Parses a line from a member.

use crate::text::is_control;

/// A parsed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand<'a> {
    /// To say something in its room.
    Say(&'a str),
    Join {
        room: &'a str,
        nick: Option<&'a str>,
    },
    Nick(&'a str),
    Leave,
    Who,
    Help,
    Quit,
    /// An empty line.
    Nothing,
}

/// Maximum bytes of a nickname or room name.
pub(super) const NAME_BYTES: usize = 32;

/// The response to `/help`.
pub(super) const HELP: &str = "/join ROOM [NICK] · /nick NICK · /who · /leave · /quit · anything else is said to the room; \
    // for a leading /";

/// Parses a line without its line feed. The error is shown to the member.
pub(super) fn parse(line: &str) -> Result<ChatCommand<'_>, &'static str> {
    if !is_text(line) {
        return Err("control characters, also those of text direction, are not allowed");
    }
    let Some(command) = line.strip_prefix('/') else {
        return Ok(if line.trim().is_empty() { ChatCommand::Nothing } else { ChatCommand::Say(line) });
    };
    if command.starts_with('/') {
        return Ok(ChatCommand::Say(command));
    }
    let mut words = command.split_whitespace();
    let (verb, first, second) = (words.next(), words.next(), words.next());
    if words.next().is_some() {
        return Err("a name has no spaces; /help lists the commands");
    }
    match (verb, first, second) {
        (Some("join"), Some(room), nick) => {
            let nick = nick.map(name).transpose()?;
            Ok(ChatCommand::Join { room: name(room)?, nick })
        }
        (Some("join"), None, _) => Err("name a room: /join ROOM [NICK]"),
        (Some("nick"), Some(nick), None) => Ok(ChatCommand::Nick(name(nick)?)),
        (Some("nick"), ..) => Err("one nickname: /nick NICK"),
        (Some("leave"), None, _) => Ok(ChatCommand::Leave),
        (Some("who"), None, _) => Ok(ChatCommand::Who),
        (Some("help"), None, _) => Ok(ChatCommand::Help),
        (Some("quit"), None, _) => Ok(ChatCommand::Quit),
        _ => Err("no such command; /help lists them, and // begins a message with a /"),
    }
}

/// Whether a line may be shown to others: no control characters but tabs, and no bidirectional controls.
pub(super) fn is_text(line: &str) -> bool {
    !line.contains(|c| c != '\t' && is_control(c))
}

/// Checks a nickname or room name: letters and digits of any language, and `-`, `_`, `.`.
pub(super) fn name(text: &str) -> Result<&str, &'static str> {
    if text.len() > NAME_BYTES {
        return Err("a name has at most 32 bytes");
    }
    let fits = text.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if fits { Ok(text) } else { Err("a name has letters, digits, - _ and . only") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_something_to_say() {
        for (line, command) in [
            ("hello", ChatCommand::Say("hello")),
            (" hello /join x", ChatCommand::Say(" hello /join x")),
            ("//join x", ChatCommand::Say("/join x")),
            ("", ChatCommand::Nothing),
            (" \t", ChatCommand::Nothing),
            ("/join tide", ChatCommand::Join { room: "tide", nick: None }),
            ("/join  tide  jörg.2 ", ChatCommand::Join { room: "tide", nick: Some("jörg.2") }),
            ("/nick 潮", ChatCommand::Nick("潮")),
            ("/who", ChatCommand::Who),
            ("/leave", ChatCommand::Leave),
            ("/help", ChatCommand::Help),
            ("/quit", ChatCommand::Quit),
        ] {
            assert_eq!(parse(line), Ok(command), "{line:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_said_in_words() {
        for (line, says) in [
            ("/", "no such command"),
            ("/jion x", "no such command"),
            ("/who x", "no such command"),
            ("/join", "name a room"),
            ("/join a b c", "no spaces"),
            ("/join a:b", "letters, digits"),
            ("/nick", "one nickname"),
            ("/nick a b", "one nickname"),
            ("/nick ann\u{200d}", "letters, digits"),
            ("/nick aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "32 bytes"),
            ("\u{1b}[2J", "control characters"),
            ("a\rb", "control characters"),
            ("/join tide\u{202e}", "control characters"),
        ] {
            assert!(parse(line).unwrap_err().contains(says), "{line:?}");
        }
    }
}
