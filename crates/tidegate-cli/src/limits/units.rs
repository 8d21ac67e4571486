//! How sizes, times and other values of limits are written on the command line.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::policy::{PostedAccepts, Wait};

/// A time, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optional(pub Option<Duration>);

/// Splits `64KiB` into the number and the unit.
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

/// A size in bytes: `4096`, `64k`, `16KiB`, `1M`, `1GiB`. All units are powers of 1,024.
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

/// A time: `500ms`, `30s`, `5m`, `1h`; a year at most.
pub fn time(text: &str) -> Result<Duration, String> {
    const MOST_US: u64 = 366 * 24 * 3600 * 1_000_000;
    let parsed = number_and_unit(text).and_then(|(number, unit)| {
        let factor_us = match unit {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60 * 1_000_000,
            "h" => 3600 * 1_000_000,
            _ => return None,
        };
        number.checked_mul(factor_us).filter(|&us| us <= MOST_US).map(Duration::from_micros)
    });
    parsed.ok_or_else(|| "not a time; write 50us, 500ms, 30s, 5m or 1h (at most a year)".into())
}

/// A [`time`], or `none`.
pub fn time_or_none(text: &str) -> Result<Optional, String> {
    if text == "none" {
        return Ok(Optional(None));
    }
    time(text).map(|time| Optional(Some(time))).map_err(|e| format!("{e}, or none"))
}

/// How to wait: `block`, `spin`, or `spin:50ms` for a time and then block.
pub fn wait(text: &str) -> Result<Wait, String> {
    match (text, text.strip_prefix("spin:")) {
        ("block", _) => Ok(Wait::Block),
        ("spin", _) => Ok(Wait::Spin),
        (_, Some(limit)) => time(limit).map(Wait::SpinThenBlock),
        _ => Err("write block, spin, or spin:50ms to spin for that long and then block".into()),
    }
}

/// Two watermarks: `2:16`.
pub fn marks(text: &str) -> Result<PostedAccepts, String> {
    let parsed = text.split_once(':').and_then(|(low, high)| {
        let number = |text: &str| text.parse::<NonZeroU32>().ok();
        Some(PostedAccepts { low: number(low)?, high: number(high)? })
    });
    parsed.ok_or_else(|| "write LOW:HIGH, such as 2:16".into())
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
        assert_eq!(time_or_none("none"), Ok(Optional(None)));
        assert_eq!(time_or_none("30s"), Ok(Optional(Some(Duration::from_secs(30)))));
        for text in ["", "30", "s", "-1s", "1d", "none", "99999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn waiting_and_watermarks_are_read_or_explained() {
        assert_eq!(wait("spin:2ms"), Ok(Wait::SpinThenBlock(Duration::from_millis(2))));
        assert_eq!((wait("block"), wait("spin")), (Ok(Wait::Block), Ok(Wait::Spin)));
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
