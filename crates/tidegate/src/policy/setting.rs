//! Parses and formats values of limits: `64k`, `30s`, `spin:50ms`, `none`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::{DatagramPath, FastPath, LONGEST, MinRate, PostedAccepts, ReceiveStyle, Wait, WhenFull};

/// The type of a limit's value, and its syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number.
    Count,
    /// Bytes: `4096`, `64k`, `16KiB`, `1MiB`.
    Bytes,
    /// Bytes a second.
    Rate,
    /// A time: `500ms`, `30s`, `5m`.
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
            Self::Count => "N",
            Self::Bytes => "SIZE",
            Self::Rate => "BYTES",
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

/// A value of a limit.
pub(super) trait Setting: Sized {
    fn parse(text: &str, unit: Unit) -> Result<Self, String>;
    fn text(&self, unit: Unit) -> String;
    /// The number that ranges and relations compare, or nanoseconds. `None` is not compared.
    fn number(&self) -> Option<u128>;
    /// The required value, if it contradicts itself.
    fn flaw(&self) -> Option<&'static str> {
        None
    }
}

/// A field of a policy, whatever its type.
pub(super) trait PolicyField {
    fn read(&mut self, text: &str, unit: Unit) -> Result<(), String>;
    fn show(&self, unit: Unit) -> String;
    fn measure(&self) -> Option<u128>;
    fn flaw(&self) -> Option<&'static str>;
}

impl<T: Setting> PolicyField for T {
    fn read(&mut self, text: &str, unit: Unit) -> Result<(), String> {
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
        Setting::flaw(self)
    }
}

macro_rules! numbers {
    ($($type:ty: $get:expr;)*) => { $(
        impl Setting for $type {
            fn parse(text: &str, unit: Unit) -> Result<Self, String> {
                let none = || format!("not a number from {} to {}", <$type>::MIN, <$type>::MAX);
                match unit {
                    Unit::Bytes => size(text)?.to_string().parse().map_err(|_| none()),
                    _ => text.parse().map_err(|_| none()),
                }
            }

            fn text(&self, unit: Unit) -> String {
                unit.show(Setting::number(self).unwrap_or_default())
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
    NonZeroUsize: |n| n.get() as u128;
    NonZeroU32: |n| u128::from(n.get());
}

impl Setting for Duration {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        read_time(text, LONGEST, "a century")
    }

    fn text(&self, _: Unit) -> String {
        show_time(self.as_nanos())
    }

    fn number(&self) -> Option<u128> {
        Some(self.as_nanos())
    }
}

impl Setting for bool {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        text.parse().map_err(|_| "write true or false".into())
    }

    fn text(&self, _: Unit) -> String {
        self.to_string()
    }

    fn number(&self) -> Option<u128> {
        None
    }
}

impl<T: Setting> Setting for Option<T> {
    fn parse(text: &str, unit: Unit) -> Result<Self, String> {
        match (text, unit) {
            ("none", _) | ("false", Unit::Switch) => Ok(None),
            _ => T::parse(text, unit).map(Some).map_err(|e| format!("{e}, or none")),
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
        self.as_ref().and_then(Setting::number)
    }

    fn flaw(&self) -> Option<&'static str> {
        self.as_ref().and_then(Setting::flaw)
    }
}

/// Only whether it is set: its limits have their own rows.
impl Setting for FastPath {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        if text == "true" { Ok(Self::default()) } else { Err("write true or false".into()) }
    }

    fn text(&self, _: Unit) -> String {
        "true".into()
    }

    fn number(&self) -> Option<u128> {
        None
    }
}

/// Without the grace, which has its own row.
impl Setting for MinRate {
    fn parse(text: &str, unit: Unit) -> Result<Self, String> {
        NonZeroU32::parse(text, unit).map(|bytes_per_s| Self { bytes_per_s, grace: Self::GRACE })
    }

    fn text(&self, unit: Unit) -> String {
        Setting::text(&self.bytes_per_s, unit)
    }

    fn number(&self) -> Option<u128> {
        Setting::number(&self.bytes_per_s)
    }
}

impl Setting for PostedAccepts {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        let number = |text: &str| text.parse::<NonZeroU32>().ok();
        let parsed = text.split_once(':').and_then(|(low, high)| Some((number(low)?, number(high)?)));
        let (low, high) = parsed.ok_or("write LOW:HIGH, such as 2:16")?;
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

impl Setting for Wait {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        match (text, text.strip_prefix("spin:")) {
            ("block", _) => Ok(Self::Block),
            ("spin", _) => Ok(Self::Spin),
            (_, Some(limit)) => Duration::parse(limit, Unit::Time).map(Self::SpinThenBlock),
            _ => Err("write block, spin, or spin:50ms to spin for that long and then block".into()),
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

impl Setting for DatagramPath {
    fn parse(text: &str, _: Unit) -> Result<Self, String> {
        text.parse()
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

        impl Setting for $type {
            fn parse(text: &str, _: Unit) -> Result<Self, String> {
                match text {
                    $($word => Ok($value),)*
                    _ => Err(format!("write {}", Self::WORDS.join(" or "))),
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
/// The expected syntax.
pub fn wait(text: &str) -> Result<Wait, String> {
    Setting::parse(text, Unit::Other("HOW"))
}

/// Splits `64KiB` into number and unit.
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

/// Parses a size in bytes: `4096`, `64k`, `16KiB`, `1M`, `1GiB`. All units are powers of 1,024.
///
/// # Errors
/// The expected syntax.
pub fn size(text: &str) -> Result<usize, String> {
    let parsed = number_and_unit(text).and_then(|(number, unit)| {
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            _ => return None,
        };
        usize::try_from(number.checked_mul(factor)?).ok()
    });
    parsed.ok_or_else(|| "not a size; write bytes, or 64k, 16KiB, 1MiB".into())
}

fn show_size(bytes: u128) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Parses a time: `50us`, `500ms`, `30s`, `5m`, `1h`; at most a year.
///
/// # Errors
/// The expected syntax.
pub fn time(text: &str) -> Result<Duration, String> {
    read_time(text, Duration::from_secs(366 * 24 * 3600), "a year")
}

fn read_time(text: &str, most: Duration, most_text: &str) -> Result<Duration, String> {
    let parsed = number_and_unit(text).and_then(|(number, unit)| {
        let factor_ns = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60 * 1_000_000_000,
            "h" => 3600 * 1_000_000_000,
            _ => return None,
        };
        number.checked_mul(factor_ns).map(Duration::from_nanos).filter(|time| *time <= most)
    });
    parsed.ok_or_else(|| format!("not a time; write 50us, 500ms, 30s, 5m or 1h (at most {most_text})"))
}

fn show_time(nanos: u128) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let whole = units.into_iter().find(|(factor, _)| nanos.is_multiple_of(*factor));
    whole.map_or_else(|| format!("{nanos}ns"), |(factor, unit)| format!("{}{unit}", nanos / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64k", 65_536), ("16KiB", 16_384), ("1 MiB", 1 << 20)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
            assert_eq!(size(&show_size(bytes as u128)), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1.5k", "1x", "99999999999999999999", "18446744073709551615k"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_a_unit_or_are_none() {
        assert_eq!(time("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        let optional = |text| <Option<Duration> as Setting>::parse(text, Unit::Time);
        assert_eq!(optional("none"), Ok(None));
        assert_eq!(optional("30s"), Ok(Some(Duration::from_secs(30))));
        assert!(optional("30").unwrap_err().ends_with("or none"));
        for text in ["", "30", "s", "-1s", "1d", "none", "99999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["1ns", "50us", "1500ms", "0s", "300s"] {
            assert_eq!(time(text).map(|time| show_time(time.as_nanos())), Ok(text.into()));
        }
        assert_eq!(Duration::parse(&show_time(LONGEST.as_nanos()), Unit::Time), Ok(LONGEST));
        assert!(time(&show_time(LONGEST.as_nanos())).unwrap_err().contains("a year"));
    }

    #[test]
    fn waiting_and_watermarks_are_read_or_explained() {
        assert_eq!(wait("spin:2ms"), Ok(Wait::SpinThenBlock(Duration::from_millis(2))));
        assert_eq!((wait("block"), wait("spin")), (Ok(Wait::Block), Ok(Wait::Spin)));
        let marks = |text| <PostedAccepts as Setting>::parse(text, Unit::Other("LOW:HIGH"));
        let marks_2_16 = marks("2:16").unwrap();
        assert_eq!((marks_2_16.low.get(), marks_2_16.high.get()), (2, 16));
        for text in ["", "sleep", "spin:", "spin:x"] {
            assert!(wait(text).is_err(), "{text}");
        }
        for text in ["", "2", "0:1", "a:b", ":"] {
            assert!(marks(text).is_err(), "{text}");
        }
    }
}
