//! Maps the target of a request to a file name. Pure: a resulting name never begins with `/`, and never has a part that
//! is `..` or hidden.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::http::fault::{RequestError, Status};

/// Maximum bytes of a target: PATH_MAX.
const MOST_TARGET_BYTES: usize = 4096;

/// Characters that need no escaping in a path: unreserved characters (RFC 3986, section 2.3), and the slash.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A requested file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Its name relative to the served directory, with a trailing slash if the target has one. The directory itself is
    /// empty.
    pub key: Cow<'a, str>,
    /// The query, with its question mark, if there is one.
    pub query: &'a str,
}

impl Resource<'_> {
    /// The name without a trailing slash.
    #[must_use]
    pub fn name(&self) -> &str {
        name(&self.key)
    }
}

/// A key without a trailing slash.
pub(super) fn name(key: &str) -> &str {
    key.strip_suffix('/').unwrap_or(key)
}

/// Whether a key names a directory.
pub(super) fn is_folder(key: &str) -> bool {
    key.is_empty() || key.ends_with('/')
}

/// A name escaped for a URL.
pub(super) fn escaped(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

/// Parses the path and query of a target.
///
/// # Errors
/// It is not a path, escapes from the directory, or is hidden.
pub fn resource(target: &str) -> Result<Resource<'_>, RequestError> {
    if target.len() > MOST_TARGET_BYTES {
        let why = format!("the target is longer than {MOST_TARGET_BYTES} bytes").into();
        return Err(RequestError { status: Status::UriTooLong, why });
    }
    let (path, query) = target.find('?').map_or((target, ""), |at| target.split_at(at));
    let Some(path) = path.strip_prefix('/') else {
        return Err(RequestError::bad("the target is not a path (RFC 9112, section 3.2)"));
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_~/".contains(&b);
    let mut before = b'/';
    // Nearly all targets are names already: no escape, no empty part, no part with a leading dot.
    let is_plain = path.bytes().all(|b| {
        let fits = plain(b) && (b != b'/' || before != b'/') || b == b'.' && before != b'/';
        before = b;
        fits
    });
    let key = if is_plain { Cow::Borrowed(path) } else { Cow::Owned(decoded(path)?) };
    Ok(Resource { key, query })
}

fn decoded(path: &str) -> Result<String, RequestError> {
    let bytes = path.as_bytes();
    for (at, _) in path.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        match digits {
            None => {
                return Err(RequestError::bad(
                    "a percent sign is not followed by two digits (RFC 3986, section 2.1)",
                ));
            }
            // An encoded slash must not separate parts.
            Some([b'2', b'f' | b'F']) => return Err(RequestError::bad("a file name cannot contain a slash")),
            Some(_) => {}
        }
    }
    let Ok(path) = percent_decode_str(path).decode_utf8() else {
        return Err(RequestError::bad("the path is not UTF-8"));
    };
    if path.contains(|c: char| c.is_control() || c == '\\') {
        return Err(RequestError::bad("a file name cannot contain control characters or backslashes"));
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut ends_in_folder = true;
    for part in path.split('/') {
        ends_in_folder = matches!(part, "" | "." | "..");
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => {
                return Err(RequestError::bad("the path leads out of the served directory"));
            }
            ".." => {}
            hidden if hidden.starts_with('.') => return Err(not_found()),
            part => parts.push(part),
        }
    }
    let mut key = parts.join("/");
    if ends_in_folder && !key.is_empty() {
        key.push('/');
    }
    Ok(key)
}

/// No such file, or it is hidden.
pub(super) fn not_found() -> RequestError {
    RequestError { status: Status::NotFound, why: "there is no such file".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str) -> String {
        resource(target).unwrap().key.into_owned()
    }

    #[test]
    fn names_come_out_as_they_are_meant() {
        for (target, expected) in [
            ("/", ""),
            ("/a.html", "a.html"),
            ("/a/b/", "a/b/"),
            ("/a//b", "a/b"),
            ("/./a/./b/.", "a/b/"),
            ("/a/../b", "b"),
            ("/a/b/..", "a/"),
            ("/a/..", ""),
            ("/%61%20b", "a b"),
            ("/%C3%A4", "ä"),
            ("/a?x=/../..", "a"),
            ("/a%3Fb", "a?b"),
            ("/%252e%252e/a", "%2e%2e/a"),
            ("/a...b/c..", "a...b/c.."),
            ("//host/a", "host/a"),
        ] {
            assert_eq!(key(target), expected, "{target}");
        }
        assert_eq!(resource("/a?x=%zz").unwrap().query, "?x=%zz");
    }

    #[test]
    fn what_leads_out_or_is_hidden_is_refused() {
        for (target, expected) in [
            ("/..", Status::BadRequest),
            ("/a/../../b", Status::BadRequest),
            ("/%2e%2e/b", Status::BadRequest),
            ("/%2E./b", Status::BadRequest),
            ("/a%2fb", Status::BadRequest),
            ("/..%2Fb", Status::BadRequest),
            ("/a\\b", Status::BadRequest),
            ("/..%5cb", Status::BadRequest),
            ("/a%00", Status::BadRequest),
            ("/%c0%ae%c0%ae/b", Status::BadRequest),
            ("/%e0%80%ae/b", Status::BadRequest),
            ("/%ff", Status::BadRequest),
            ("/%", Status::BadRequest),
            ("/%4", Status::BadRequest),
            ("/%4g", Status::BadRequest),
            ("/a%0d%0ab", Status::BadRequest),
            ("*", Status::BadRequest),
            ("http://host/a", Status::BadRequest),
            ("a", Status::BadRequest),
            ("", Status::BadRequest),
            ("/.git/config", Status::NotFound),
            ("/a/%2ehidden", Status::NotFound),
            ("/.../a", Status::NotFound),
        ] {
            assert_eq!(resource(target).unwrap_err().status, expected, "{target}");
        }
        let long = format!("/{}", "a".repeat(MOST_TARGET_BYTES));
        assert_eq!(resource(&long).unwrap_err().status, Status::UriTooLong);
    }

    #[test]
    fn a_name_survives_the_way_through_a_url() {
        let name = "a b/%41?#\"<ü>&.txt";
        assert_eq!(key(&format!("/{}", escaped(name))), name);
    }
}
