//! How amounts of a load are written: `10k` requests, `1.5k` a second, `30s`.

/// A whole number: `100`, `10k`, `1.5M`.
pub fn count<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    /// Beyond this not every whole number is an `f64`.
    const MOST: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let whole = number(text).filter(|n| (0.0..=MOST).contains(n) && n.fract() == 0.0);
    let fitting = whole.and_then(|n| N::try_from(n as u64).ok());
    fitting.ok_or_else(|| "not a whole number; write 500, 10k or 1M".into())
}

/// A whole number that is not 0.
pub fn positive<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    between::<N, 1, { u64::MAX }>(text)
}

/// A whole number within bounds.
pub fn between<N: TryFrom<u64>, const LEAST: u64, const MOST: u64>(text: &str) -> Result<N, String> {
    let whole = count::<u64>(text)?;
    let fitting = N::try_from(whole).ok().filter(|_| (LEAST..=MOST).contains(&whole));
    fitting.ok_or_else(|| match MOST {
        u64::MAX => format!("not a whole number from {LEAST} on; write 500, 10k or 1M"),
        _ => format!("not a whole number from {LEAST} to {MOST}; write 500, 10k or 1M"),
    })
}

/// So many a second: `100`, `0.5`, `10k`.
pub fn rate(text: &str) -> Result<f64, String> {
    number(text).ok_or_else(|| "not a number; write 500, 0.5, 10k or 1M".into())
}

/// A time in seconds: `10`, `0.5`, `10s`, `500ms`, `1m`.
pub fn span(text: &str) -> Result<f64, String> {
    let (number, unit) = number_and_unit(text);
    let factor = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = number.map(|n| n * factor).filter(|n| n.is_finite());
    seconds.ok_or_else(|| "not a time; write 10s, 500ms, 1m or 1h; a plain number is seconds".into())
}

fn number(text: &str) -> Option<f64> {
    let (number, unit) = number_and_unit(text);
    let factor = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        _ => return None,
    };
    number.map(|n| n * factor).filter(|n| n.is_finite())
}

fn number_and_unit(text: &str) -> (Option<f64>, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.parse().ok(), unit.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_whole_and_take_k_and_m() {
        for (text, n) in [("0", 0), ("100", 100), ("10k", 10_000), ("1.5K", 1_500), ("2M", 2_000_000)] {
            assert_eq!(count::<u64>(text), Ok(n), "{text}");
        }
        for text in ["", "k", "1.5", "-1", "10x", "1e3", "inf", "NaN", "99999999999999999999"] {
            assert!(count::<u64>(text).is_err(), "{text}");
        }
        assert!(count::<u16>("70k").is_err());
    }

    #[test]
    fn counts_have_bounds() {
        assert_eq!((positive::<u32>("1k"), between::<u64, 1, 1_000>("1k")), (Ok(1_000), Ok(1_000)));
        assert!(positive::<u32>("0").is_err() && positive::<u32>("5000M").is_err());
        assert!(between::<u64, 1, 1_000>("1001").is_err_and(|e| e.contains("from 1 to 1000")));
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        for (text, s) in
            [("10", 10.0), ("0.5", 0.5), ("10s", 10.0), ("500ms", 0.5), ("1m", 60.0), ("0.5h", 1800.0)]
        {
            assert_eq!(span(text), Ok(s), "{text}");
        }
        for text in ["", "s", "10x", "1e3", "nan", "inf", "1 2"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_may_be_fractions() {
        assert_eq!((rate("0.5"), rate("10k")), (Ok(0.5), Ok(10_000.0)));
        assert!(rate("fast").is_err());
    }
}
