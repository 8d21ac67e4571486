//! Text that others wrote, for logs and terminals.

/// Most characters of a text that is shown.
const SHOWN: usize = 500;

/// Most bytes of the name of a node or an agent.
const NAME_BYTES: usize = 64;

/// Text for a log or a terminal, from any writer: nothing in it moves the cursor or turns the writing around, and it
/// has an end.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN).map(|c| if is_odd(c) { '\u{fffd}' } else { c }).collect();
    if shown.len() < text.len() && text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Controls, and what changes the direction of what follows (UAX #9).
pub(crate) fn is_odd(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Whether a node or an agent may be called so: letters and digits of any language, and `-`, `_`, `.`; at most 64
/// bytes.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= NAME_BYTES && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_moves_no_cursor_and_ends() {
        assert_eq!(
            printable("a\u{1b}[2J\r\nb\u{202e}\u{61c}"),
            "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}\u{fffd}"
        );
        assert_eq!(printable("Jörg: 潮"), "Jörg: 潮");
        assert_eq!(printable(&"ä".repeat(SHOWN)).chars().count(), SHOWN);
        assert_eq!(printable(&"ä".repeat(1_000_000)).chars().count(), SHOWN + 1);
    }

    #[test]
    fn names_are_words() {
        for name in ["n1", "host-1.example.com", "jörg_潮"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "\u{1b}[2J", "a\n", "a/b", &"x".repeat(65)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
