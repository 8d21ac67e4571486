//! A byte-by-byte scanner of a request's head (RFC 9112, sections 2 to 5).
//!
//! The result must not depend on how the network splits the input. So each byte is examined once, in a state that
//! determines which bytes are allowed, and the first wrong byte decides: earlier bytes cannot, and later ones are not
//! awaited. A complete head that arrives in one piece need not be scanned (see [`head`](super::head)); everything
//! accepted there is accepted here.
use super::fault::{RequestError, Status};

/// Maximum header fields of a request.
pub(super) const MOST_FIELDS: usize = 100;

/// The progress of parsing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes examined.
    seen: u32,
    fields: u8,
    at: At,
}

/// The position of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The first byte of the method, and the others.
    Start,
    Method,
    /// The first byte of the target, and the others.
    TargetStart,
    Target,
    /// The version, after so many bytes: 1.x, or another one.
    Version(u8),
    OtherVersion(u8),
    /// The LF of the request line.
    RequestLf,
    /// The first byte of a field line, or of the empty line.
    Line,
    Name,
    Value,
    /// The LF of a field line, and of the empty line.
    FieldLf,
    EndLf,
}

const NO_REQUEST: &str = "this is not an HTTP request (RFC 9112, section 3)";
const NO_VERSION: &str = "the request line does not end in an HTTP version (RFC 9112, section 2.3)";
const NO_LINE_END: &str = "a line does not end in CR LF (RFC 9112, section 2.2)";
const NO_NAME: &str = "a header field has an invalid name (RFC 9112, section 5)";
/// The error for a target with a byte that is not allowed in it.
pub(super) const NO_TARGET: &str =
    "the target has a character that must be percent-encoded, or a fragment (RFC 9112, section 3.2)";

/// The characters before the digits of a version.
const NAME: &[u8; 5] = b"HTTP/";

impl Scan {
    pub(crate) const fn new() -> Self {
        Self { seen: 0, fields: 0, at: At::Start }
    }

    /// The initial state.
    #[inline]
    pub(super) fn is_new(self) -> bool {
        self.seen == 0
    }

    /// Examines the new part of `input`, which begins with the head; returns its length if it is complete.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<Option<usize>, RequestError> {
        for (place, &byte) in input.iter().enumerate().skip(self.seen as usize) {
            if (self.at, byte) == (At::EndLf, b'\n') {
                return Ok(Some(place + 1));
            }
            self.at = self.after(byte)?;
        }
        self.seen = u32::try_from(input.len()).unwrap_or(u32::MAX);
        Ok(None)
    }

    /// The error for a head that is incomplete after `limit` bytes.
    pub(super) fn too_large(self, limit: usize) -> RequestError {
        match self.at {
            At::Start | At::Method => RequestError {
                status: Status::NotImplemented,
                why: format!("no method has {limit} bytes; this server answers GET and HEAD").into(),
            },
            At::TargetStart | At::Target | At::Version(_) | At::OtherVersion(_) | At::RequestLf => {
                RequestError {
                    status: Status::UriTooLong,
                    why: format!("the request line is longer than {limit} bytes").into(),
                }
            }
            At::Line | At::Name | At::Value | At::FieldLf | At::EndLf => RequestError::head_too_large(limit),
        }
    }

    /// The state transition for a byte.
    fn after(&mut self, byte: u8) -> Result<At, RequestError> {
        Ok(match (self.at, byte) {
            (At::Start | At::Method, byte) if is_token(byte) => At::Method,
            (At::Method, b' ') => At::TargetStart,
            (At::TargetStart | At::Target, byte) if class_of(byte) & NOT_IN_TARGET == 0 => At::Target,
            (At::Target, b' ') => At::Version(0),
            (At::Version(n @ 0..5), byte) if byte == NAME[usize::from(n)] => At::Version(n + 1),
            (At::Version(5), b'1') => At::Version(6),
            (At::Version(5), b'0'..=b'9') => At::OtherVersion(6),
            (At::Version(6), b'.') => At::Version(7),
            (At::Version(7), b'0'..=b'9') => At::Version(8),
            (At::Version(8), b'\r') => At::RequestLf,
            (At::OtherVersion(6), b'.') => At::OtherVersion(7),
            (At::OtherVersion(7), b'0'..=b'9') => At::OtherVersion(8),
            (At::OtherVersion(8), b'\r') => return Err(wrong_version()),
            (At::RequestLf | At::FieldLf, b'\n') => At::Line,
            (At::Line, b'\r') => At::EndLf,
            (At::Line, byte) if is_token(byte) => {
                if usize::from(self.fields) >= MOST_FIELDS {
                    return Err(RequestError::too_many_fields(MOST_FIELDS));
                }
                self.fields += 1;
                At::Name
            }
            (At::Name, byte) if is_token(byte) => At::Name,
            (At::Name, b':') => At::Value,
            (At::Value, b'\t' | b' '..=b'~' | 0x80..) => At::Value,
            (At::Value, b'\r') => At::FieldLf,
            _ => return Err(self.fault(byte)),
        })
    }

    #[cold]
    fn fault(&self, byte: u8) -> RequestError {
        RequestError::bad(match (self.at, byte) {
            (At::RequestLf | At::FieldLf | At::EndLf, _) => NO_LINE_END,
            (At::Value | At::Line | At::Version(8) | At::OtherVersion(8), b'\n') => NO_LINE_END,
            (At::Start, b'\r' | b'\n') => NO_LINE_END,
            (At::Start | At::Method, _) => NO_REQUEST,
            (At::TargetStart | At::Target, b' ' | b'\t' | b'\r' | b'\n') => NO_REQUEST,
            (At::TargetStart | At::Target, _) => NO_TARGET,
            (At::Version(_) | At::OtherVersion(_), _) => NO_VERSION,
            (At::Line, b' ' | b'\t') => {
                "a header field goes on in the next line, or has no name (RFC 9112, section 5.2)"
            }
            (At::Line | At::Name, _) => NO_NAME,
            (At::Value, _) => "a header field has an invalid value (RFC 9110, section 5.5)",
        })
    }
}

#[cold]
fn wrong_version() -> RequestError {
    RequestError {
        status: Status::VersionNotSupported,
        why: "this server speaks HTTP/1.1 and HTTP/1.0 only".into(),
    }
}

/// Whether it is allowed in a method or a field name (`tchar`, RFC 9110, section 5.6.2).
#[inline]
pub(crate) fn is_token(byte: u8) -> bool {
    class_of(byte) & TOKEN != 0
}

/// The classes of a byte: where it is allowed, and the percent sign. Together in one table, so that a loop over the
/// bytes of a head looks each of them up once.
#[inline]
pub(super) fn class_of(byte: u8) -> u8 {
    CLASSES[usize::from(byte)]
}

/// Not allowed in a target: all but the characters of RFC 3986, and those that browsers do not encode in a query (the
/// URL standard, query percent-encode set). A fragment is never sent.
pub(super) const NOT_IN_TARGET: u8 = 1;
/// Allowed in a method or a field name.
const TOKEN: u8 = 2;
/// Allowed in a host name: `unreserved` and `sub-delims` (RFC 3986, section 2). An escape is, too.
pub(super) const NAME_OF_HOST: u8 = 4;
/// Begins an escape (RFC 3986, section 2.1).
pub(super) const PERCENT: u8 = 8;

static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < classes.len() {
        let byte = at as u8;
        let in_target = matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'#' | b'<' | b'>');
        let in_name = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'_' | b'~');
        let in_token = in_name || matches!(byte, b'#' | b'%' | b'^' | b'`' | b'|');
        let in_host = in_name || matches!(byte, b'(' | b')' | b',' | b';' | b'=');
        classes[at] = if in_target { 0 } else { NOT_IN_TARGET }
            | if in_token { TOKEN } else { 0 }
            | if in_host { NAME_OF_HOST } else { 0 }
            | if byte == b'%' { PERCENT } else { 0 };
        at += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the head, or nothing yet, or the status.
    fn scan(input: &str, step: usize) -> Result<Option<usize>, Status> {
        let mut scan = Scan::new();
        for end in (step..input.len()).step_by(step).chain([input.len()]) {
            if let Some(bytes) = scan.advance(&input.as_bytes()[..end]).map_err(|fault| fault.status)? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    #[test]
    fn the_first_wrong_byte_decides_whatever_follows() {
        for (input, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\nx", Ok(Some(27))),
            ("GET / HTTP/1.9\r\n\r\n", Ok(Some(18))),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r", Ok(None)),
            ("GET / HTTP/2.0", Ok(None)),
            ("GET / HTTP/2.0\r", Err(Status::VersionNotSupported)),
            ("GET / HTTP/2.0x", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\rx", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\n", Err(Status::BadRequest)),
            ("GET / HTTP/1.10", Err(Status::BadRequest)),
            ("GET  ", Err(Status::BadRequest)),
            ("GET /#", Err(Status::BadRequest)),
            ("GET /\u{e9}", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\r\n ", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\r\na ", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\r\na: b\n", Err(Status::BadRequest)),
            ("GET / HTTP/1.1\r\na: b\r\n\n", Err(Status::BadRequest)),
        ] {
            for step in [1, 2, 3, 1000] {
                assert_eq!(scan(input, step), expected, "{input:?} in steps of {step}");
            }
        }
    }
}
