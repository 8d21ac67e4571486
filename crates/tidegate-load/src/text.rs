//! Numbers in sentences.

/// With commas between thousands.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun, whose plural ends in *s*: `1 round`, `2 rounds`.
#[must_use]
pub fn counted(n: usize, noun: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(n as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn one_is_not_several() {
        let counted: Vec<_> = [0, 1, 2, 20_000].map(|n| counted(n, "round")).into();
        assert_eq!(counted, ["0 rounds", "1 round", "2 rounds", "20,000 rounds"]);
    }
}
