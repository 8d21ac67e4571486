//! Parses and formats values of limits: `64k`, `30s`, `spin:50ms`, `none`.
//!
//! One rule for command lines and configuration files: counts take `k` and `M` (thousands), sizes `k`, `KiB`, `M`
//! (powers of 1,024), times `us`, `ms`, `s`, `m` and `h`. A plain number is a count, bytes, or seconds.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::{
    DatagramPath, FastPath, LONGEST, MinRate, ParseDatagramPathError, PostedAccepts, ReceiveStyle, Wait,
    WhenFull,
};

/// The type of a limit's value, and its syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number: `100`, `10k`, `1M`.
    Count,
    /// Bytes: `4096`, `64k`, `16KiB`, `1MiB`.
    Bytes,
    /// Bytes a second.
    Rate,
    /// A time: `500ms`, `30s`, `5m`, or plain seconds.
    Time,
    /// On or off.
    Switch,
    /// One of these keywords.
    Words(&'static [&'static str]),
    /// Anything else; the word is its placeholder in a synopsis.
    Other(&'static str),
}

impl Unit {
    /// The placeholder of a value in a synopsis.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Count => "COUNT",
            Self::Bytes => "SIZE",
            Self::Rate => "SIZE_PER_S",
            Self::Time => "TIME",
            Self::Switch => "",
            Self::Words(_) => "WHAT",
            Self::Other(word) => word,
        }
    }

    /// Formats a numeric value; times are in nanoseconds.
    pub(super) fn show(self, measure: u128) -> String {
        match self {
            Self::Bytes => show_size(measure),
            Self::Time | Self::Other("HOW") => show_time(measure),
            _ => measure.to_string(),
        }
    }
}

/// A text that is not a value, or that a limit does not take, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseLimitError {
    /// Not the syntax of its type; contains the expected one.
    Syntax(String),
    /// A value outside of the limit's range; contains the allowed values.
    Range(String),
    /// The limit needs another one, which is not set; contains the name of that one.
    Needs(&'static str),
}

impl ParseLimitError {
    fn syntax(expected: impl Into<String>) -> Self {
        Self::Syntax(expected.into())
    }

    /// The same, where the limit may also be unset.
    fn or_none(self) -> Self {
        match self {
            Self::Syntax(expected) => Self::Syntax(format!("{expected}, or none")),
            other => other,
        }
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(expected) => f.write_str(expected),
            Self::Range(must) => write!(f, "must be {must}"),
            Self::Needs(name) => write!(f, "has no effect without {name}"),
        }
    }
}

impl std::error::Error for ParseLimitError {}

/// A value of a limit.
#[doc(hidden)]
pub trait LimitValue: Sized {
    fn parse(text: &str, unit: Unit) -> Result<Self, ParseLimitError>;
    fn text(&self, unit: Unit) -> String;
    /// The number that ranges and relations compare, or nanoseconds. `None` is not compared.
    fn number(&self) -> Option<u128>;
    /// The required value, if it contradicts itself.
    fn flaw(&self) -> Option<&'static str> {
        None
    }
}

/// A field of a policy, whatever its type.
#[doc(hidden)]
pub trait PolicyField {
    fn read(&mut self, text: &str, unit: Unit) -> Result<(), ParseLimitError>;
    fn show(&self, unit: Unit) -> String;
    fn measure(&self) -> Option<u128>;
    fn flaw(&self) -> Option<&'static str>;
}

impl<T: LimitValue> PolicyField for T {
    fn read(&mut self, text: &str, unit: Unit) -> Result<(), ParseLimitError> {
        *self = T::parse(text, unit)?;
        Ok(())
    }

    fn show(&self, unit: Unit) -> String {
        self.text(unit)
    }

    fn measure(&self) -> Option<u128> {
        self.number()
    }

    fn flaw(&self) -> Option<&'static str> {
        LimitValue::flaw(self)
    }
}

macro_rules! numbers {
    ($($type:ty: $get:expr;)*) => { $(
        impl LimitValue for $type {
            fn parse(text: &str, unit: Unit) -> Result<Self, ParseLimitError> {
                let none = || {
                    ParseLimitError::Syntax(format!("not a number from {} to {}", <$type>::MIN, <$type>::MAX))
                };
                let number = match unit {
                    Unit::Bytes | Unit::Rate => size(text)? as u64,
                    _ => count(text).map_err(|_| none())?,
                };
                number.to_string().parse().map_err(|_| none())
            }

            fn text(&self, unit: Unit) -> String {
                unit.show(LimitValue::number(self).unwrap_or_default())
            }

            fn number(&self) -> Option<u128> {
                let get: fn(&$type) -> u128 = $get;
                Some(get(self))
            }
        }
    )* };
}

numbers! {
    usize: |n| *n as u128;
    u32: |n| u128::from(*n);
    u64: |n| u128::from(*n);
    NonZeroUsize: |n| n.get() as u128;
    NonZeroU32: |n| u128::from(n.get());
}

impl LimitValue for Duration {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        read_time(text, LONGEST, "a century")
    }

    fn text(&self, _: Unit) -> String {
        show_time(self.as_nanos())
    }

    fn number(&self) -> Option<u128> {
        Some(self.as_nanos())
    }
}

impl LimitValue for bool {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        text.parse().map_err(|_| ParseLimitError::syntax("write true or false"))
    }

    fn text(&self, _: Unit) -> String {
        self.to_string()
    }

    fn number(&self) -> Option<u128> {
        None
    }
}

impl<T: LimitValue> LimitValue for Option<T> {
    fn parse(text: &str, unit: Unit) -> Result<Self, ParseLimitError> {
        match (text, unit) {
            ("none", _) | ("false", Unit::Switch) => Ok(None),
            _ => T::parse(text, unit).map(Some).map_err(ParseLimitError::or_none),
        }
    }

    fn text(&self, unit: Unit) -> String {
        match (self, unit) {
            (Some(value), _) => value.text(unit),
            (None, Unit::Switch) => "false".into(),
            (None, _) => "none".into(),
        }
    }

    fn number(&self) -> Option<u128> {
        self.as_ref().and_then(LimitValue::number)
    }

    fn flaw(&self) -> Option<&'static str> {
        self.as_ref().and_then(LimitValue::flaw)
    }
}

/// Only whether it is set: its limits have their own rows.
impl LimitValue for FastPath {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        if text == "true" { Ok(Self::default()) } else { Err(ParseLimitError::syntax("write true or false")) }
    }

    fn text(&self, _: Unit) -> String {
        "true".into()
    }

    fn number(&self) -> Option<u128> {
        None
    }
}

/// Without the grace, which has its own row.
impl LimitValue for MinRate {
    fn parse(text: &str, unit: Unit) -> Result<Self, ParseLimitError> {
        NonZeroU32::parse(text, unit).map(|bytes_per_s| Self { bytes_per_s, grace: Self::GRACE })
    }

    fn text(&self, unit: Unit) -> String {
        LimitValue::text(&self.bytes_per_s, unit)
    }

    fn number(&self) -> Option<u128> {
        LimitValue::number(&self.bytes_per_s)
    }
}

impl LimitValue for PostedAccepts {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        let number = |text: &str| NonZeroU32::new(count(text).ok()?);
        let parsed = text.split_once(':').and_then(|(low, high)| Some((number(low)?, number(high)?)));
        let (low, high) = parsed.ok_or_else(|| ParseLimitError::syntax("write LOW:HIGH, such as 2:16"))?;
        Ok(Self { low, high })
    }

    fn text(&self, _: Unit) -> String {
        format!("{}:{}", self.low, self.high)
    }

    fn number(&self) -> Option<u128> {
        None
    }

    fn flaw(&self) -> Option<&'static str> {
        (self.low > self.high).then_some("LOW:HIGH, the low watermark at most the high one")
    }
}

impl LimitValue for Wait {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        match (text, text.strip_prefix("spin:")) {
            ("block", _) => Ok(Self::Block),
            ("spin", _) => Ok(Self::Spin),
            (_, Some(limit)) => Duration::parse(limit, Unit::Time).map(Self::SpinThenBlock),
            _ => Err(ParseLimitError::syntax(
                "write block, spin, or spin:50ms to spin for that long and then block",
            )),
        }
    }

    fn text(&self, _: Unit) -> String {
        match self {
            Self::Block => "block".into(),
            Self::Spin => "spin".into(),
            Self::SpinThenBlock(time) => format!("spin:{}", show_time(time.as_nanos())),
        }
    }

    fn number(&self) -> Option<u128> {
        match self {
            Self::Block | Self::Spin => None,
            Self::SpinThenBlock(time) => Some(time.as_nanos()),
        }
    }
}

impl LimitValue for DatagramPath {
    fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
        text.parse().map_err(|e: ParseDatagramPathError| ParseLimitError::Syntax(e.to_string()))
    }

    fn text(&self, _: Unit) -> String {
        self.name().into()
    }

    fn number(&self) -> Option<u128> {
        None
    }
}

macro_rules! words {
    ($($type:ty: $($word:literal = $value:path),*;)*) => { $(
        impl $type {
            /// All keywords.
            pub(super) const WORDS: &'static [&'static str] = &[$($word),*];
        }

        impl LimitValue for $type {
            fn parse(text: &str, _: Unit) -> Result<Self, ParseLimitError> {
                match text {
                    $($word => Ok($value),)*
                    _ => Err(ParseLimitError::Syntax(format!("write {}", Self::WORDS.join(" or ")))),
                }
            }

            fn text(&self, _: Unit) -> String {
                match self { $($value => $word,)* }.into()
            }

            fn number(&self) -> Option<u128> {
                None
            }
        }
    )* };
}

words! {
    WhenFull: "wait" = WhenFull::Wait, "refuse" = WhenFull::Refuse;
    ReceiveStyle: "posted" = ReceiveStyle::Posted, "zero-byte" = ReceiveStyle::ZeroByte;
}

/// Parses how an I/O thread waits: `block`, `spin`, or `spin:50ms`.
///
/// # Errors
/// [`ParseLimitError::Syntax`], the expected one.
pub fn wait(text: &str) -> Result<Wait, ParseLimitError> {
    LimitValue::parse(text, Unit::Other("HOW"))
}

/// Splits `64KiB` into number and unit.
fn number_and_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// The most decimals of a number.
const DECIMALS: usize = 9;

/// A decimal number times `factor`, rounded down, and whether nothing was lost by that.
fn scaled(number: &str, factor: u64) -> Option<(u64, bool)> {
    let (whole, decimals) = match number.split_once('.') {
        Some((_, decimals)) if decimals.is_empty() || decimals.len() > DECIMALS => return None,
        Some((whole, decimals)) => (whole, decimals),
        None => (number, ""),
    };
    let digits: u128 = format!("{whole}{decimals}").parse().ok()?;
    let (value, power) = (digits.checked_mul(u128::from(factor))?, 10u128.pow(decimals.len() as u32));
    Some((u64::try_from(value / power).ok()?, value.is_multiple_of(power)))
}

/// The same where nothing may be lost.
fn exactly(number: &str, factor: u64) -> Option<u64> {
    scaled(number, factor).and_then(|(value, is_exact)| is_exact.then_some(value))
}

/// Factor of the unit of a count.
fn thousands(unit: &str) -> Option<u64> {
    match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        _ => None,
    }
}

/// Parses a whole number: `100`, `10k`, `1.5M`.
///
/// # Errors
/// [`ParseLimitError::Syntax`], the expected one.
pub fn count<N: TryFrom<u64>>(text: &str) -> Result<N, ParseLimitError> {
    let (number, unit) = number_and_unit(text);
    let whole = thousands(unit).and_then(|factor| exactly(number, factor));
    let fitting = whole.and_then(|n| N::try_from(n).ok());
    fitting.ok_or_else(|| ParseLimitError::syntax("not a whole number; write 500, 10k or 1M"))
}

/// Parses how many a second: `100`, `0.5`, `10k`.
///
/// # Errors
/// [`ParseLimitError::Syntax`], the expected one.
pub fn rate(text: &str) -> Result<f64, ParseLimitError> {
    let (number, unit) = number_and_unit(text);
    let known = thousands(unit).and_then(|factor| Some(number.parse::<f64>().ok()? * factor as f64));
    known
        .filter(|rate| rate.is_finite())
        .ok_or_else(|| ParseLimitError::syntax("not a number; write 500, 0.5, 10k or 1M"))
}

/// Parses a size in bytes: `4096`, `64k`, `16KiB`, `1M`, `1GiB`. All units are powers of 1,024.
///
/// # Errors
/// [`ParseLimitError::Syntax`], the expected one.
pub fn size(text: &str) -> Result<usize, ParseLimitError> {
    let (number, unit) = number_and_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        "g" | "gb" | "gib" => Some(1 << 30),
        _ => None,
    };
    let parsed = factor.and_then(|factor| usize::try_from(exactly(number, factor)?).ok());
    parsed.ok_or_else(|| ParseLimitError::syntax("not a size; write bytes, or 64k, 16KiB, 1MiB"))
}

fn show_size(bytes: u128) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Parses a time: `50us`, `500ms`, `30s`, `5m`, `1.5h`; a plain number is seconds; at most a year.
///
/// # Errors
/// [`ParseLimitError::Syntax`], the expected one.
pub fn time(text: &str) -> Result<Duration, ParseLimitError> {
    read_time(text, Duration::from_secs(366 * 24 * 3600), "a year")
}

fn read_time(text: &str, most: Duration, most_text: &str) -> Result<Duration, ParseLimitError> {
    let (number, unit) = number_and_unit(text);
    let factor_ns = match unit {
        "ns" => Some(1),
        "us" | "µs" => Some(1_000),
        "ms" => Some(1_000_000),
        "" | "s" => Some(1_000_000_000),
        "m" | "min" => Some(60 * 1_000_000_000),
        "h" => Some(3600 * 1_000_000_000),
        _ => None,
    };
    let nanos = factor_ns.and_then(|factor| scaled(number, factor)).map(|(nanos, _)| nanos);
    let parsed = nanos.map(Duration::from_nanos).filter(|time| *time <= most);
    parsed.ok_or_else(|| {
        ParseLimitError::Syntax(format!(
            "not a time; write 10s, 500ms, 1m or 1h; a plain number is seconds (at most {most_text})"
        ))
    })
}

fn show_time(nanos: u128) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let whole = units.into_iter().find(|(factor, _)| nanos.is_multiple_of(*factor));
    whole.map_or_else(|| format!("{nanos}ns"), |(factor, unit)| format!("{}{unit}", nanos / factor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Limited, Policy};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65_536),
            ("16KiB", 16_384),
            ("1 MiB", 1 << 20),
            ("1.5k", 1_536),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
            assert_eq!(size(&show_size(bytes as u128)), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "+1", "1.5", "1x", "99999999999999999999", "18446744073709551615k"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_whole_and_take_k_and_m() {
        for (text, n) in [("0", 0), ("100", 100), ("10k", 10_000), ("1.5K", 1_500), ("2M", 2_000_000)] {
            assert_eq!(count::<u64>(text), Ok(n), "{text}");
        }
        for text in ["", "k", "1.5", "-1", "10x", "1e3", "inf", "NaN", "99999999999999999999", "1.", "1.2.3k"]
        {
            assert!(count::<u64>(text).is_err(), "{text}");
        }
        assert!(count::<u16>("70k").is_err());
        assert_eq!(<usize as LimitValue>::parse("10k", Unit::Count), Ok(10_000));
        assert_eq!(<NonZeroU32 as LimitValue>::parse("1k", Unit::Rate).map(u32::from), Ok(1_024));
        assert!(
            <NonZeroU32 as LimitValue>::parse("0", Unit::Count)
                .unwrap_err()
                .to_string()
                .contains("from 1 to")
        );
    }

    #[test]
    fn rates_may_be_fractions() {
        assert_eq!((rate("0.5"), rate("10k")), (Ok(0.5), Ok(10_000.0)));
        assert!(rate("fast").is_err() && rate("-1").is_err() && rate("").is_err());
    }

    #[test]
    fn times_are_seconds_or_have_a_unit_or_are_none() {
        for (text, ms) in [("10", 10_000), ("0.5", 500), ("10s", 10_000), ("1m", 60_000), ("0.5h", 1_800_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(time("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        let optional = |text| <Option<Duration> as LimitValue>::parse(text, Unit::Time);
        assert_eq!(optional("none"), Ok(None));
        assert_eq!(optional("30s"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(optional("30"), Ok(Some(Duration::from_secs(30))));
        assert!(optional("30x").unwrap_err().to_string().ends_with("or none"));
        for text in ["", "1e3", "inf", "1 2", "s", "-1s", "1d", "none", "99999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["1ns", "50us", "1500ms", "0s", "300s"] {
            assert_eq!(time(text).map(|time| show_time(time.as_nanos())), Ok(text.into()));
        }
        assert_eq!(Duration::parse(&show_time(LONGEST.as_nanos()), Unit::Time), Ok(LONGEST));
        assert!(time(&show_time(LONGEST.as_nanos())).unwrap_err().to_string().contains("a year"));
    }

    #[test]
    fn waiting_and_watermarks_are_read_or_explained() {
        assert_eq!(wait("spin:2ms"), Ok(Wait::SpinThenBlock(Duration::from_millis(2))));
        assert_eq!((wait("block"), wait("spin")), (Ok(Wait::Block), Ok(Wait::Spin)));
        let marks = |text| <PostedAccepts as LimitValue>::parse(text, Unit::Other("LOW:HIGH"));
        let marks_2_16 = marks("2:16").unwrap();
        assert_eq!((marks_2_16.low.get(), marks_2_16.high.get()), (2, 16));
        for text in ["", "sleep", "spin:", "spin:x"] {
            assert!(wait(text).is_err(), "{text}");
        }
        for text in ["", "2", "0:1", "a:b", ":"] {
            assert!(marks(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_in_a_text_are_named_and_have_kinds() {
        let limit = |name| <Policy as Limited>::limit(name).unwrap();
        let is_syntax = |e: &ParseLimitError| matches!(e, ParseLimitError::Syntax(_));
        let error = limit("drain_budget").check_text("0").unwrap_err();
        assert!(
            matches!(&error, ParseLimitError::Range(must) if error.to_string() == format!("must be {must}"))
        );
        let error = limit("idle_timeout").check_text("soon").unwrap_err();
        assert!(is_syntax(&error) && error.to_string().starts_with("not a time; write 10s"), "{error}");
        let error = limit("wait").set(&mut Policy::default(), "sleep").unwrap_err();
        assert!(is_syntax(&error) && error.to_string().starts_with("write block, spin"), "{error}");
        let (needed, _) = limit("min_rate.grace").needs.unwrap();
        let error = limit("min_rate.grace").set(&mut Policy::default().min_rate(None), "1s").unwrap_err();
        assert_eq!(error, ParseLimitError::Needs(needed));
        assert_eq!(error.to_string(), format!("has no effect without {needed}"));
    }
}
