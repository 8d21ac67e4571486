//! Conditional requests (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use crate::http::head::{Method, list};

/// The header fields of a request that matter here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked<'a> {
    fields: &'a [httparse::Header<'a>],
    /// Whether any of these fields is present.
    pub(super) conditional: bool,
    /// The value of a single `Range` field. Of several, a cache or proxy may use a different one.
    pub(super) range: Option<&'a [u8]>,
    pub(super) accept_encoding: bool,
}

/// The fields of [`Asked`].
const FIELDS: [&str; 7] = [
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "accept-encoding",
];

/// Whether a response depends on this field.
pub(super) fn matters(name: &str) -> bool {
    // The length excludes nearly all fields before a byte is compared.
    matches!(name.len(), 5 | 8 | 13 | 15 | 17 | 19)
        && FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
}

impl<'a> Asked<'a> {
    /// The fields of a request. A range has no meaning but for GET (RFC 9110, section 14.2).
    #[inline]
    pub(super) fn of(fields: &'a [httparse::Header<'a>], method: Method) -> Self {
        let mut asked = Self { fields, ..Self::default() };
        let mut ranges = 0_usize;
        for field in fields.iter().filter(|field| matters(field.name)) {
            match field.name.len() {
                5 => {
                    ranges += 1;
                    asked.range = (ranges == 1 && method == Method::Get).then_some(field.value);
                }
                15 => asked.accept_encoding = true,
                _ => asked.conditional = true,
            }
        }
        asked
    }

    /// The values of all fields of this name.
    pub(super) fn values(self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// A date. A repeated or invalid one is ignored (sections 13.1.3 and 13.1.4).
    fn date(self, name: &'static str) -> Option<SystemTime> {
        let mut values = self.values(name);
        let date = values.next().filter(|_| values.next().is_none())?;
        httpdate::parse_http_date(std::str::from_utf8(date).ok()?).ok()
    }
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preconditions {
    /// Respond normally; a range applies.
    Proceed,
    /// Respond with the whole document, ignoring ranges.
    Whole,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// In the order of RFC 9110, section 13.2.2. `etag` is strong, and in quotes.
pub(super) fn verdict(asked: Asked<'_>, etag: &str, modified: SystemTime) -> Preconditions {
    if !asked.conditional {
        return Preconditions::Proceed;
    }
    let modified = whole_seconds(modified);
    let mut if_match = asked.values("if-match").peekable();
    if if_match.peek().is_some() {
        if !if_match.any(|value| names(value, etag, TagComparison::Strong)) {
            return Preconditions::Failed;
        }
    } else if asked.date("if-unmodified-since").is_some_and(|since| modified > since) {
        return Preconditions::Failed;
    }
    let mut if_none_match = asked.values("if-none-match").peekable();
    if if_none_match.peek().is_some() {
        if if_none_match.any(|value| names(value, etag, TagComparison::Weak)) {
            return Preconditions::NotModified;
        }
    } else if asked.date("if-modified-since").is_some_and(|since| modified <= since) {
        return Preconditions::NotModified;
    }
    // Section 13.1.5: a date counts only if it is a strong validator, and none is here: a file may change twice within
    // the second that it names (section 8.8.2.2), and then the parts would be of two files. Every answer has a strong
    // tag to ask with instead.
    let mut if_range = asked.values("if-range");
    match (if_range.next(), if_range.next()) {
        (None, _) => Preconditions::Proceed,
        (Some(tag), None) if tag == etag.as_bytes() => Preconditions::Proceed,
        _ => Preconditions::Whole,
    }
}

/// As a date of HTTP says it.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// How entity tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum TagComparison {
    Strong,
    Weak,
}

/// Whether a list of entity tags, or `*`, names this one.
fn names(value: &[u8], etag: &str, comparison: TagComparison) -> bool {
    let named = |tag: &[u8]| {
        let opaque = match comparison {
            TagComparison::Strong => tag,
            TagComparison::Weak => tag.strip_prefix(b"W/").unwrap_or(tag),
        };
        opaque == etag.as_bytes()
    };
    value == b"*" || list(value).any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"a\"";

    fn judge(fields: &[(&'static str, &'static str)]) -> Preconditions {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| httparse::Header { name, value: value.as_bytes() }).collect();
        // Half a second behind what its date says.
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        verdict(Asked::of(&fields, Method::Get), ETAG, modified)
    }

    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    #[test]
    fn each_condition_is_kept() {
        for (name, value, expected) in [
            ("If-Match", "\"a\"", Preconditions::Proceed),
            ("If-Match", "\"b\", \"a\"", Preconditions::Proceed),
            ("If-Match", "*", Preconditions::Proceed),
            ("If-Match", "\"b\"", Preconditions::Failed),
            ("If-Match", "W/\"a\"", Preconditions::Failed),
            ("If-None-Match", "\"a\"", Preconditions::NotModified),
            ("If-None-Match", "W/\"a\"", Preconditions::NotModified),
            ("If-None-Match", "*", Preconditions::NotModified),
            ("If-None-Match", "\"b\"", Preconditions::Proceed),
            ("If-Modified-Since", THEN, Preconditions::NotModified),
            ("If-Modified-Since", AFTER, Preconditions::NotModified),
            ("If-Modified-Since", BEFORE, Preconditions::Proceed),
            ("If-Modified-Since", "yesterday", Preconditions::Proceed),
            ("If-Unmodified-Since", THEN, Preconditions::Proceed),
            ("If-Unmodified-Since", BEFORE, Preconditions::Failed),
            ("If-Range", "\"a\"", Preconditions::Proceed),
            ("If-Range", "\"b\"", Preconditions::Whole),
            ("If-Range", "W/\"a\"", Preconditions::Whole),
            ("If-Range", THEN, Preconditions::Whole),
            ("If-Range", AFTER, Preconditions::Whole),
        ] {
            assert_eq!(judge(&[(name, value)]), expected, "{name}: {value}");
        }
    }

    #[test]
    fn tags_win_over_dates_and_the_order_is_that_of_the_rfc() {
        for (fields, expected) in [
            ([("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)], Preconditions::Proceed),
            ([("If-None-Match", "\"b\""), ("If-Modified-Since", AFTER)], Preconditions::Proceed),
            ([("If-Match", "\"b\""), ("If-None-Match", "\"a\"")], Preconditions::Failed),
            ([("If-None-Match", "\"b\""), ("if-none-match", "\"a\"")], Preconditions::NotModified),
            ([("If-None-Match", "\"a\""), ("If-Range", "\"b\"")], Preconditions::NotModified),
        ] {
            assert_eq!(judge(&fields), expected, "{fields:?}");
        }
    }
}
