//! Range requests (RFC 9110, section 14).

use crate::http::head::list;

/// Maximum parts of one response. Requests for more get the whole file, which is cheaper.
const MOST_PARTS: usize = 16;

/// A part of a file that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub(super) first: u64,
    pub(super) bytes: u64,
}

impl ByteRange {
    /// The value of Content-Range.
    pub(super) fn said(self, length: u64) -> String {
        format!("bytes {}-{}/{length}", self.first, self.first + self.bytes - 1)
    }
}

/// The result of a Range field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WantedRange {
    /// Not understood, or too many parts: 200.
    Whole,
    /// 206.
    Parts(Vec<ByteRange>),
    /// Outside of the file: 416.
    Nothing,
}

/// Evaluates the field for a file of this length.
pub(super) fn wanted(value: &[u8], length: u64) -> WantedRange {
    let unit = value.get(..6).filter(|unit| unit.eq_ignore_ascii_case(b"bytes="));
    let Some(set) = unit.and_then(|_| value.get(6..)) else { return WantedRange::Whole };
    let mut parts = Vec::new();
    let mut total = 0_u64;
    for (count, spec) in list(set).filter(|spec| !spec.is_empty()).enumerate() {
        let Some(part) = part(spec, length) else { return WantedRange::Whole };
        if count >= MOST_PARTS {
            return WantedRange::Whole;
        }
        if let Some(part) = part {
            total = total.saturating_add(part.bytes);
            parts.push(part);
        }
    }
    match parts.len() {
        0 if list(set).all(<[u8]>::is_empty) => WantedRange::Whole,
        0 => WantedRange::Nothing,
        // The same bytes repeatedly.
        _ if total > length => WantedRange::Whole,
        _ => WantedRange::Parts(parts),
    }
}

/// Parses one range: `None` if invalid, `Some(None)` if it lies past the end.
fn part(spec: &[u8], length: u64) -> Option<Option<ByteRange>> {
    let dash = spec.iter().position(|&b| b == b'-')?;
    let (first, last) = (number(&spec[..dash])?, number(&spec[dash + 1..])?);
    Some(match (first, last) {
        (None, None) => return None,
        (None, Some(suffix)) => {
            let bytes = suffix.min(length);
            (bytes > 0).then(|| ByteRange { first: length - bytes, bytes })
        }
        (Some(first), Some(last)) if last < first => return None,
        (Some(first), last) if first < length => {
            let last = last.unwrap_or(u64::MAX).min(length - 1);
            Some(ByteRange { first, bytes: last - first + 1 })
        }
        (Some(_), _) => None,
    })
}

/// Parses digits, or nothing. More than 64 bits is past every end.
fn number(digits: &[u8]) -> Option<Option<u64>> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some((!digits.is_empty()).then(|| digits.iter().fold(0, add)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[(u64, u64)]) -> WantedRange {
        WantedRange::Parts(parts.iter().map(|&(first, bytes)| ByteRange { first, bytes }).collect())
    }

    #[test]
    fn ranges_are_understood_as_the_rfc_has_them() {
        for (value, expected) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-499", parts(&[(0, 500)])),
            ("bytes=500-", parts(&[(500, 500)])),
            ("bytes=-1", parts(&[(999, 1)])),
            ("bytes=-5000", parts(&[(0, 1000)])),
            ("bytes=900-5000", parts(&[(900, 100)])),
            ("Bytes=0-0, 2-2 ,-1", parts(&[(0, 1), (2, 1), (999, 1)])),
            ("bytes=0-0,,5000-", parts(&[(0, 1)])),
            ("bytes=0-99999999999999999999999", parts(&[(0, 1000)])),
            ("bytes=1000-", WantedRange::Nothing),
            ("bytes=-0", WantedRange::Nothing),
            ("bytes=99999999999999999999999-", WantedRange::Nothing),
            ("bytes=", WantedRange::Whole),
            ("bytes=-", WantedRange::Whole),
            ("bytes=,", WantedRange::Whole),
            ("bytes=2-1", WantedRange::Whole),
            ("bytes=a-b", WantedRange::Whole),
            ("bytes=0-1,x", WantedRange::Whole),
            ("bytes=+1-2", WantedRange::Whole),
            ("lines=0-1", WantedRange::Whole),
            ("bytes", WantedRange::Whole),
            ("", WantedRange::Whole),
        ] {
            assert_eq!(wanted(value.as_bytes(), 1000), expected, "{value}");
        }
        assert_eq!(wanted(b"bytes=0-", 0), WantedRange::Nothing);
    }

    #[test]
    fn a_flood_of_ranges_gets_the_whole_file() {
        let many = |n: usize| format!("bytes={}", (0..n).map(|i| format!("{i}-{i},")).collect::<String>());
        assert!(matches!(wanted(many(MOST_PARTS).as_bytes(), 1000), WantedRange::Parts(_)));
        assert_eq!(wanted(many(MOST_PARTS + 1).as_bytes(), 1000), WantedRange::Whole);
        assert_eq!(wanted(b"bytes=0-,0-", 1000), WantedRange::Whole);
    }
}
