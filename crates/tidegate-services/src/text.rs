//! Characters in text that is shown to others.

/// Whether it is a control character or a bidirectional control.
pub(crate) fn is_control(c: char) -> bool {
    c.is_control() || is_direction(c)
}

/// Whether it controls text direction (Unicode Standard Annex 9, section 2).
fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
