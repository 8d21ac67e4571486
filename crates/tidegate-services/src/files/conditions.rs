//! Conditional requests (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use crate::http::head::list;

/// What a request says besides method and target, as far as it matters here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked<'a> {
    fields: &'a [httparse::Header<'a>],
    /// Whether there is any of these fields.
    pub(super) conditional: bool,
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

/// Whether an answer depends on this field.
pub(super) fn matters(name: &str) -> bool {
    // The length rules nearly all fields out before a byte is compared.
    matches!(name.len(), 5 | 8 | 13 | 15 | 17 | 19)
        && FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
}

impl<'a> Asked<'a> {
    #[inline]
    pub(super) fn of(fields: &'a [httparse::Header<'a>]) -> Self {
        let mut asked = Self { fields, ..Self::default() };
        for field in fields.iter().filter(|field| matters(field.name)) {
            match field.name.len() {
                5 => asked.range = Some(field.value),
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

    fn one(self, name: &'static str) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    fn date(self, name: &'static str) -> Option<SystemTime> {
        httpdate::parse_http_date(std::str::from_utf8(self.one(name)?).ok()?).ok()
    }
}

/// What follows from the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is answered; its range, if it has one, counts.
    Proceed,
    /// The same, but all of it is wanted.
    Whole,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// In the order of RFC 9110, section 13.2.2. `etag` is strong, and in quotes.
pub(super) fn verdict(asked: Asked<'_>, etag: &str, modified: SystemTime) -> Verdict {
    if !asked.conditional {
        return Verdict::Proceed;
    }
    let modified = whole_seconds(modified);
    let mut if_match = asked.values("if-match").peekable();
    if if_match.peek().is_some() {
        if !if_match.any(|value| names(value, etag, Comparison::Strong)) {
            return Verdict::Failed;
        }
    } else if asked.date("if-unmodified-since").is_some_and(|since| modified > since) {
        return Verdict::Failed;
    }
    let mut if_none_match = asked.values("if-none-match").peekable();
    if if_none_match.peek().is_some() {
        if if_none_match.any(|value| names(value, etag, Comparison::Weak)) {
            return Verdict::NotModified;
        }
    } else if asked.date("if-modified-since").is_some_and(|since| modified <= since) {
        return Verdict::NotModified;
    }
    // Section 13.1.5: a date counts only if it is a strong validator, and none is here: a file may change twice within
    // the second that it names (section 8.8.2.2), and then the parts would be of two files. Every answer has a strong
    // tag to ask with instead.
    let same = asked.one("if-range").is_none_or(|value| value == etag.as_bytes());
    if same { Verdict::Proceed } else { Verdict::Whole }
}

/// As a date of HTTP says it.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// How entity tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether a list of entity tags, or `*`, names this one.
fn names(value: &[u8], etag: &str, comparison: Comparison) -> bool {
    list(value).any(|tag| {
        let opaque = match comparison {
            Comparison::Strong => tag,
            Comparison::Weak => tag.strip_prefix(b"W/").unwrap_or(tag),
        };
        tag == b"*" || opaque == etag.as_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"a\"";

    fn judge(fields: &[(&'static str, &'static str)]) -> Verdict {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| httparse::Header { name, value: value.as_bytes() }).collect();
        // Half a second behind what its date says.
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        verdict(Asked::of(&fields), ETAG, modified)
    }

    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    #[test]
    fn each_condition_is_kept() {
        for (name, value, expected) in [
            ("If-Match", "\"a\"", Verdict::Proceed),
            ("If-Match", "\"b\", \"a\"", Verdict::Proceed),
            ("If-Match", "*", Verdict::Proceed),
            ("If-Match", "\"b\"", Verdict::Failed),
            ("If-Match", "W/\"a\"", Verdict::Failed),
            ("If-None-Match", "\"a\"", Verdict::NotModified),
            ("If-None-Match", "W/\"a\"", Verdict::NotModified),
            ("If-None-Match", "*", Verdict::NotModified),
            ("If-None-Match", "\"b\"", Verdict::Proceed),
            ("If-Modified-Since", THEN, Verdict::NotModified),
            ("If-Modified-Since", AFTER, Verdict::NotModified),
            ("If-Modified-Since", BEFORE, Verdict::Proceed),
            ("If-Modified-Since", "yesterday", Verdict::Proceed),
            ("If-Unmodified-Since", THEN, Verdict::Proceed),
            ("If-Unmodified-Since", BEFORE, Verdict::Failed),
            ("If-Range", "\"a\"", Verdict::Proceed),
            ("If-Range", "\"b\"", Verdict::Whole),
            ("If-Range", "W/\"a\"", Verdict::Whole),
            ("If-Range", THEN, Verdict::Whole),
            ("If-Range", AFTER, Verdict::Whole),
        ] {
            assert_eq!(judge(&[(name, value)]), expected, "{name}: {value}");
        }
    }

    #[test]
    fn tags_win_over_dates_and_the_order_is_that_of_the_rfc() {
        for (fields, expected) in [
            ([("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)], Verdict::Proceed),
            ([("If-None-Match", "\"b\""), ("If-Modified-Since", AFTER)], Verdict::Proceed),
            ([("If-Match", "\"b\""), ("If-None-Match", "\"a\"")], Verdict::Failed),
            ([("If-None-Match", "\"b\""), ("if-none-match", "\"a\"")], Verdict::NotModified),
            ([("If-None-Match", "\"a\""), ("If-Range", "\"b\"")], Verdict::NotModified),
        ] {
            assert_eq!(judge(&fields), expected, "{fields:?}");
        }
    }
}
