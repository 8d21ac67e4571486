//! Parses a request's head: target, body framing, connection persistence. The only request parser: every HTTP service
//! uses it.
//!
//! Most heads arrive in one piece. They are parsed by `httparse`, which is faster, and then checked. Incomplete or
//! unusual ones are [scanned](Scan) byte by byte and parsed once complete. `httparse` accepts nothing here that the
//! scan rejects.

use std::mem::MaybeUninit;

use httparse::Status::Complete;

use super::authority;
use super::fault::{RequestError, Status};
use super::scan::MOST_FIELDS;
pub(crate) use super::scan::{Scan, is_token};
use super::target::RequestTarget;

/// The request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    /// Known, but not allowed here.
    Other,
    /// Like `Other`. May target the server as a whole.
    Options,
    /// Like `Other`. Data after it may already belong to the tunnel.
    Connect,
    Unknown,
}

/// Connection persistence after the response (RFC 9112, section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// HTTP/1.1: persistent, without a header field.
    Persists,
    /// HTTP/1.0 with `Connection: keep-alive`: persistent, with a header field.
    KeptAlive,
    /// It is closed.
    Closes,
}

/// The form of a response, as its request determines it.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForm {
    /// It has no content (RFC 9110, section 9.3.2).
    pub(crate) head_only: bool,
    pub(crate) connection: Persistence,
}

impl ResponseForm {
    /// The method that it responds to.
    #[inline]
    pub(crate) fn method(self) -> Method {
        if self.head_only { Method::Head } else { Method::Get }
    }

    /// The same, as the last one of its connection.
    pub(crate) fn closing(self) -> Self {
        Self { connection: Persistence::Closes, ..self }
    }
}

/// The framing of the body (RFC 9112, section 6.3). No body is a length of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

/// A complete head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its bytes, including the empty line at its end.
    pub(crate) bytes: usize,
    pub(crate) method: Method,
    pub(crate) framing: Framing,
    pub(crate) connection: Persistence,
    /// HTTP/1.1 or a later 1.x (RFC 9110, section 6.2), not 1.0.
    pub(crate) is_1_1: bool,
    /// The client waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
    pub(crate) expects_continue: bool,
}

/// Further parts of a head, for the code that responds.
#[derive(Clone, Copy)]
pub struct Spoken<'a> {
    /// Path and query, whatever the form of the target; `*` for the server as a whole.
    pub target: &'a str,
    /// Requested host and optional port; empty if not given.
    pub authority: &'a [u8],
    pub fields: &'a [httparse::Header<'a>],
}

impl Spoken<'_> {
    /// Nothing is said.
    pub(crate) const NOTHING: Self = Self { target: "", authority: b"", fields: &[] };
}

/// The content at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front<T> {
    /// An incomplete head or empty line.
    Part,
    /// An empty line of this many bytes before the request, which is ignored (RFC 9112, section 2.2).
    Empty(usize),
    Whole(T),
}

/// Parses a head of at most `limit` bytes from the front of the input, and passes it to `then`. `scan` holds the
/// progress of earlier calls with the same head.
#[inline]
pub(crate) fn parse<T>(
    scan: &mut Scan,
    input: &[u8],
    limit: usize,
    then: impl FnOnce(Head, Spoken<'_>) -> T,
) -> Result<Front<T>, RequestError> {
    let within = input.get(..limit).unwrap_or(input);
    if scan.is_new() {
        match within {
            [b'\r'] => return Ok(Front::Part),
            [b'\r', b'\n', ..] => return Ok(Front::Empty(2)),
            [b'\r' | b'\n', ..] => {}
            _ => {
                let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
                let mut request = httparse::Request::new(&mut []);
                if let Ok(Complete(bytes)) = request.parse_with_uninit_headers(within, &mut fields)
                    && lines_end_whole(within.get(..bytes).unwrap_or_default(), request.headers)
                {
                    return describe(bytes, &request, then).map(Front::Whole);
                }
            }
        }
    }
    match scan.advance(within)? {
        None if input.len() >= limit => Err(scan.too_large(limit)),
        None => Ok(Front::Part),
        Some(bytes) => take_apart(within.get(..bytes).unwrap_or_default(), then).map(Front::Whole),
    }
}

/// Whether the lines of a head that `httparse` accepts end in CR LF: it takes a lone LF as well, but a CR only before
/// an LF. Each line but the first and the empty one begins with the name of a field.
#[inline]
fn lines_end_whole(head: &[u8], fields: &[httparse::Header<'_>]) -> bool {
    let follows_cr_lf = |field: &httparse::Header<'_>| {
        let start = field.name.as_ptr().addr().wrapping_sub(head.as_ptr().addr());
        head.get(..start).is_some_and(|before| matches!(before, [.., b'\r', b'\n']))
    };
    matches!(head, [.., b'\r', b'\n', b'\r', b'\n']) && fields.iter().all(follows_cr_lf)
}

/// Parses a complete head that the scan accepts.
#[cold]
fn take_apart<T>(head: &[u8], then: impl FnOnce(Head, Spoken<'_>) -> T) -> Result<T, RequestError> {
    let mut head = head.to_vec();
    // Later versions 1.x are read as 1.1 (RFC 9110, section 6.2); `httparse` does not know them.
    let line_end = head.iter().position(|&b| b == b'\r').unwrap_or_default();
    if let Some(minor) =
        line_end.checked_sub(1).and_then(|at| head.get_mut(at)).filter(|minor| **minor != b'0')
    {
        *minor = b'1';
    }
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(&head, &mut fields) {
        Ok(Complete(bytes)) => describe(bytes, &request, then),
        _ => Err(RequestError::bad("this is not an HTTP request (RFC 9112)")),
    }
}

/// The fields that determine framing and persistence.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    codings: Codings,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
}

/// Transfer codings, in the order they were applied.
#[derive(Default)]
struct Codings {
    present: bool,
    count: usize,
    chunked: usize,
    last_is_chunked: bool,
}

#[inline]
fn describe<T>(
    bytes: usize,
    request: &httparse::Request<'_, '_>,
    then: impl FnOnce(Head, Spoken<'_>) -> T,
) -> Result<T, RequestError> {
    let is_1_1 = request.version == Some(1);
    let method = match request.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "OPTIONS" => Method::Options,
        "POST" | "PUT" | "DELETE" | "TRACE" | "PATCH" => Method::Other,
        "CONNECT" => Method::Connect,
        _ => Method::Unknown,
    };
    let target = RequestTarget::parse(method, request.path.unwrap_or_default())?;
    let mut fields = Fields::default();
    for field in request.headers.iter() {
        fields.take_in(field.name, field.value)?;
    }
    let authority = fields.authority(&target, is_1_1)?;
    let connection = match (is_1_1, fields.close, fields.keep_alive) {
        (_, true, _) | (false, _, false) => Persistence::Closes,
        (true, ..) => Persistence::Persists,
        (false, ..) => Persistence::KeptAlive,
    };
    let framing = fields.framing(is_1_1)?;
    // HTTP/1.0 clients do not know of 100 Continue (RFC 9110, section 10.1.1).
    let expects_continue = fields.expects_continue && is_1_1 && framing != Framing::Length(0);
    let head = Head { bytes, method, framing, connection, is_1_1, expects_continue };
    Ok(then(head, Spoken { target: &target.path, authority, fields: request.headers }))
}

impl<'a> Fields<'a> {
    #[inline]
    fn take_in(&mut self, name: &str, value: &'a [u8]) -> Result<(), RequestError> {
        // The length excludes nearly all fields before a byte is compared.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => self.host(value)?,
            6 if name.eq_ignore_ascii_case("expect") => {
                self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if name.eq_ignore_ascii_case("content-length") => self.content_length(value)?,
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                self.codings.present = true;
                for coding in list(value).filter(|coding| !coding.is_empty()) {
                    self.codings.count += 1;
                    self.codings.last_is_chunked = coding.eq_ignore_ascii_case(b"chunked");
                    self.codings.chunked += usize::from(self.codings.last_is_chunked);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn host(&mut self, value: &'a [u8]) -> Result<(), RequestError> {
        match self.host.replace(value) {
            None => Ok(()),
            Some(_) => {
                Err(RequestError::bad("the request has more than one Host field (RFC 9112, section 3.2)"))
            }
        }
    }

    /// The requested authority (RFC 9112, sections 3.2 and 3.3).
    #[inline]
    fn authority(&self, target: &RequestTarget<'a>, is_1_1: bool) -> Result<&'a [u8], RequestError> {
        let Some(host) = self.host else {
            return match target.authority {
                _ if is_1_1 => {
                    Err(RequestError::bad("the request has no Host field (RFC 9112, section 3.2)"))
                }
                named => Ok(named.unwrap_or_default().as_bytes()),
            };
        };
        match authority::split(host) {
            // An empty one means that the target has no authority, which only `*` allows.
            Some((name, _)) if !name.is_empty() || host.is_empty() && target.is_asterisk => {}
            _ => return Err(RequestError::bad("the Host field is not a valid host (RFC 9110, section 7.2)")),
        }
        Ok(target.authority.map_or(host, str::as_bytes))
    }

    /// RFC 9112, section 6.3, point 5: only digits. The same number again, in a list or in a second field, may be
    /// rejected, and is: an intermediary may have interpreted it differently.
    fn content_length(&mut self, value: &[u8]) -> Result<(), RequestError> {
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(RequestError::bad("Content-Length is not a number (RFC 9110, section 8.6)"));
        }
        // Larger than 64 bits is larger than any limit.
        let length = value
            .iter()
            .fold(0_u64, |length, digit| length.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        match self.length.replace(length) {
            None => Ok(()),
            Some(_) => {
                Err(RequestError::bad("the request has more than one Content-Length (RFC 9112, section 6.3)"))
            }
        }
    }

    #[inline]
    fn framing(&self, is_1_1: bool) -> Result<Framing, RequestError> {
        if !self.codings.present {
            return Ok(Framing::Length(self.length.unwrap_or(0)));
        }
        // RFC 9112, section 6.1: each of these might be an attempt at request smuggling.
        let codings = &self.codings;
        if self.length.is_some() {
            return Err(RequestError::bad(
                "the request has both Transfer-Encoding and Content-Length (RFC 9112, section 6.3)",
            ));
        }
        if !is_1_1 {
            return Err(RequestError::bad(
                "Transfer-Encoding does not exist in HTTP/1.0 (RFC 9112, section 6.1)",
            ));
        }
        if !codings.last_is_chunked || codings.chunked > 1 {
            return Err(RequestError::bad("the last transfer coding, and no other, must be chunked"));
        }
        if codings.count > 1 {
            return Err(RequestError {
                status: Status::NotImplemented,
                why: "no transfer coding other than chunked is implemented".into(),
            });
        }
        Ok(Framing::Chunked)
    }
}

/// The members of a comma-separated list, trimmed.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the input comes to in one piece; asserts that it is the same however it is cut in two.
    fn parse(input: &[u8], limit: usize) -> Result<Option<Head>, RequestError> {
        let read = |ends: &[usize]| {
            let mut scan = Scan::new();
            let mut front = Ok(Front::Part);
            for &end in ends {
                front = super::parse(&mut scan, &input[..end], limit, |head, _| head);
                if front != Ok(Front::Part) {
                    break;
                }
            }
            match front? {
                Front::Part => Ok(None),
                Front::Whole(head) => Ok(Some(head)),
                Front::Empty(_) => panic!("no empty lines here"),
            }
        };
        let whole = read(&[input.len()]);
        for cut in 1..input.len() {
            assert_eq!(read(&[cut, input.len()]), whole, "{:?}", String::from_utf8_lossy(&input[..cut]));
        }
        assert_eq!(read(&(1..=input.len()).collect::<Vec<_>>()), whole);
        whole
    }

    fn head(text: &str) -> Head {
        parse(text.as_bytes(), 16_384).unwrap().unwrap()
    }

    fn status(text: &str) -> Status {
        parse(text.as_bytes(), 16_384).unwrap_err().status
    }

    #[test]
    fn the_connection_persists_as_each_version_has_it() {
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Persistence::Persists),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", Persistence::Persists),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", Persistence::Closes),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: te, close\r\n\r\n", Persistence::Closes),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nconnection: close\r\n\r\n", Persistence::Closes),
            ("GET / HTTP/1.0\r\n\r\n", Persistence::Closes),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", Persistence::KeptAlive),
            ("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", Persistence::Closes),
        ] {
            assert_eq!(head(text).connection, expected, "{text:?}");
        }
    }

    #[test]
    fn another_version_is_distinguished_from_none_however_it_is_cut() {
        for (text, expected) in [
            ("GET / HTTP/2.0\r\n", Status::VersionNotSupported),
            ("GET / HTTP/0.9\r\n", Status::VersionNotSupported),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Status::VersionNotSupported),
            ("GET / HTTP/2\r\n", Status::BadRequest),
            ("GET / HTCPCP/1.0\r\n", Status::BadRequest),
            ("GET / http/1.1\r\n", Status::BadRequest),
        ] {
            for end in 0..=text.len() {
                match parse(&text.as_bytes()[..end], 16_384) {
                    Ok(head) => assert!(head.is_none() && end < text.len(), "{:?}", &text[..end]),
                    Err(fault) => assert_eq!(fault.status, expected, "{:?}", &text[..end]),
                }
            }
        }
    }

    #[test]
    fn a_body_framed_in_doubt_is_refused() {
        let post = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 6",
            "Content-Length: +5",
            "Content-Length: -5",
            "Content-Length: 0x5",
            "Content-Length: 5 5",
            "Content-Length:",
            "Content-Length: 5,",
            "Content-Length: 5, 5",
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length: 5\r\ncontent-length: 5",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            "Transfer-Encoding:",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: chunked, gzip",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunked;x=y",
            "Content-Length : 5",
            "Transfer-Encoding\t: chunked",
            "X: y\r\n Transfer-Encoding: chunked",
            "X: y\rTransfer-Encoding: chunked",
            "X: a\0b",
        ] {
            assert_eq!(status(&post(fields)), Status::BadRequest, "{fields:?}");
        }
        assert_eq!(status(&post("Transfer-Encoding: gzip, chunked")), Status::NotImplemented);
        assert_eq!(status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Status::BadRequest);
        assert_eq!(head(&post("Content-Length: 5")).framing, Framing::Length(5));
        assert_eq!(head(&post("Content-Length: \t 005 ")).framing, Framing::Length(5));
        assert_eq!(head(&post("Transfer-Encoding: Chunked")).framing, Framing::Chunked);
        let huge = head(&post("Content-Length: 99999999999999999999999"));
        assert_eq!(huge.framing, Framing::Length(u64::MAX));
    }

    #[test]
    fn there_is_one_host() {
        let get = |target: &str, fields: &str| {
            let text = format!("GET {target} HTTP/1.1\r\n{fields}\r\n");
            let read = |head: Head, spoken: Spoken<'_>| {
                assert_eq!(head.bytes, text.len());
                String::from_utf8(spoken.authority.to_vec()).unwrap()
            };
            match super::parse(&mut Scan::new(), text.as_bytes(), 16_384, read) {
                Ok(Front::Whole(authority)) => Some(authority),
                Ok(front) => panic!("{front:?}"),
                Err(fault) => {
                    assert_eq!(fault.status, Status::BadRequest);
                    None
                }
            }
        };
        for (target, fields, expected) in [
            ("/", "Host: a:80\r\n", Some("a:80")),
            ("/", "hOST:[::1]:80 \r\n", Some("[::1]:80")),
            ("http://b/", "Host: a\r\n", Some("b")),
            ("http://b/", "", None),
            ("http://b/", "Host:\r\n", None),
            ("http://b/", "Host: a b\r\n", None),
            ("/", "", None),
            ("/", "Host:\r\n", None),
            ("/", "Host: :80\r\n", None),
            ("/", "Host: a\r\nHost: a\r\n", None),
            ("/", "Host: a/b\r\n", None),
            ("/", "Host: x:80:90\r\n", None),
            ("/", "Host: [::1\r\n", None),
            ("/", "Host: %zz\r\n", None),
        ] {
            assert_eq!(get(target, fields).as_deref(), expected, "{target} {fields:?}");
        }
        assert_eq!(head("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n").method, Method::Options);
        assert_eq!(head("GET / HTTP/1.0\r\n\r\n").method, Method::Get);
        assert_eq!(status("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), Status::BadRequest);
    }

    #[test]
    fn later_minor_versions_are_read_as_1_1() {
        for minor in 1..=9 {
            let head = head(&format!("GET / HTTP/1.{minor}\r\nHost: a\r\n\r\n"));
            assert_eq!((head.is_1_1, head.connection), (true, Persistence::Persists), "{minor}");
        }
        assert_eq!(status("GET / HTTP/1.2\r\n\r\n"), Status::BadRequest, "they have a Host, too");
    }

    #[test]
    fn lines_end_in_cr_lf_and_in_nothing_else() {
        for text in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\rHost: a\r\r",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(status(text), Status::BadRequest, "{text:?}");
        }
    }

    #[test]
    fn the_limits_are_exact() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(parse(text.as_bytes(), text.len()).unwrap().is_some());
        let fault = parse(text.as_bytes(), text.len() - 1).unwrap_err();
        assert_eq!(fault.status, Status::FieldsTooLarge);
        for (limit, expected) in
            [(2, Status::NotImplemented), (5, Status::UriTooLong), (15, Status::UriTooLong)]
        {
            assert_eq!(parse(text.as_bytes(), limit).unwrap_err().status, expected, "{limit}");
        }
        let with = |fields| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(fields));
        assert_eq!(head(&with(MOST_FIELDS - 1)).method, Method::Get);
        assert_eq!(status(&with(MOST_FIELDS)), Status::FieldsTooLarge);
    }

    #[test]
    fn an_expectation_counts_only_with_a_body_to_come() {
        let expects = |text: &str| head(text).expects_continue;
        assert!(expects("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n"));
        assert!(!expects("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"));
        assert!(!expects("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"));
    }
}
