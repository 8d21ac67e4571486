//! A request's head: what it asks for, how its body is framed, and what becomes of the connection.

use std::mem::MaybeUninit;

use httparse::Status::{Complete, Partial};

use super::fault::{Fault, Status};

/// Most header fields in a request.
pub(super) const MOST_FIELDS: usize = 100;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    /// Known, and of no use on this page.
    Other,
    /// Like `Other`. What follows it may already be meant for the tunnel, not for us.
    Connect,
    Unknown,
}

/// What becomes of the connection after the answer (RFC 9112, section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// HTTP/1.1: it persists, and that need not be said.
    Persists,
    /// HTTP/1.0 with `Connection: keep-alive`: it persists, and that must be said.
    KeptAlive,
    /// It ends.
    Closes,
}

/// How the body is framed (RFC 9112, section 6.3). No body is a length of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

/// A complete head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of it, with the empty line at its end.
    pub(super) bytes: usize,
    pub(super) method: Method,
    pub(super) framing: Framing,
    pub(super) connection: Connection,
    /// The client waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
    pub(super) expects_continue: bool,
}

/// What a head says besides, for who answers.
#[derive(Clone, Copy)]
pub struct Spoken<'a> {
    pub target: &'a str,
    pub fields: &'a [httparse::Header<'a>],
}

/// Reads a head of at most `limit` bytes from the front of the input, and has `then` look at it; `None` if it is not complete yet.
#[inline]
pub(super) fn parse<T>(
    input: &[u8],
    limit: usize,
    then: impl FnOnce(Head, Spoken<'_>) -> T,
) -> Result<Option<T>, Fault> {
    let within = input.get(..limit).unwrap_or(input);
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(within, &mut fields) {
        Ok(Complete(bytes)) => {
            let head = describe(bytes, &request)?;
            let target = request.path.unwrap_or_default();
            Ok(Some(then(head, Spoken { target, fields: request.headers })))
        }
        Ok(Partial) if input.len() >= limit => Err(Fault::head_too_large(limit)),
        Ok(Partial) => Ok(None),
        Err(error) => invalid(error, within).map(|()| None),
    }
}

/// What is wrong; nothing, if that can not be told yet.
#[cold]
fn invalid(error: httparse::Error, input: &[u8]) -> Result<(), Fault> {
    match error {
        httparse::Error::TooManyHeaders => Err(Fault::too_many_fields(MOST_FIELDS)),
        httparse::Error::Version => wrong_version(input),
        httparse::Error::HeaderName => {
            Err(Fault::bad("a header field has an invalid name (RFC 9112, section 5)"))
        }
        httparse::Error::HeaderValue => Err(Fault::bad("a header field has an invalid value")),
        _ => Err(Fault::bad("this is not an HTTP request (RFC 9112, section 3)")),
    }
}

/// Tells another version (505) from what is none at all (400).
fn wrong_version(input: &[u8]) -> Result<(), Fault> {
    const FORM: &[u8; 8] = b"HTTP/0.0";
    let version = input.splitn(3, |&b| b == b' ').nth(2).unwrap_or_default();
    let of_form = |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if !version.iter().zip(FORM).all(of_form) {
        return Err(Fault::bad("the request line does not end in an HTTP version (RFC 9112, section 2.3)"));
    }
    if version.len() < FORM.len() {
        return Ok(()); // the parser is sure of its no earlier than this can be told
    }
    Err(Fault {
        status: Status::VersionNotSupported,
        why: "this server speaks HTTP/1.1 and HTTP/1.0 only".into(),
    })
}

/// What the fields say that decide about framing and connection.
#[derive(Default)]
struct Fields {
    hosts: usize,
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
fn describe(bytes: usize, request: &httparse::Request<'_, '_>) -> Result<Head, Fault> {
    let is_1_1 = request.version == Some(1);
    let mut fields = Fields::default();
    for field in request.headers.iter() {
        fields.take_in(field.name, field.value)?;
    }
    // RFC 9112, section 3.2: one Host field, in HTTP/1.1 exactly one.
    if fields.hosts != 1 && (is_1_1 || fields.hosts > 1) {
        return Err(Fault::bad("the request must have exactly one Host field (RFC 9112, section 3.2)"));
    }
    let method = match request.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "OPTIONS" | "TRACE" | "PATCH" => Method::Other,
        "CONNECT" => Method::Connect,
        _ => Method::Unknown,
    };
    let connection = match (is_1_1, fields.close, fields.keep_alive) {
        (_, true, _) | (false, _, false) => Connection::Closes,
        (true, ..) => Connection::Persists,
        (false, ..) => Connection::KeptAlive,
    };
    let framing = fields.framing(is_1_1)?;
    // HTTP/1.0 clients do not know of 100 Continue (RFC 9110, section 10.1.1).
    let expects_continue = fields.expects_continue && is_1_1 && framing != Framing::Length(0);
    Ok(Head { bytes, method, framing, connection, expects_continue })
}

impl Fields {
    #[inline]
    fn take_in(&mut self, name: &str, value: &[u8]) -> Result<(), Fault> {
        // The length rules nearly all fields out before a byte is compared.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                self.hosts += 1;
                if !value.iter().all(|&b| may_stand_in_host(b)) {
                    return Err(Fault::bad("the Host field is no host (RFC 9110, section 7.2)"));
                }
            }
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

    /// RFC 9112, section 6.3, point 5: only digits, and the same number wherever it is repeated.
    fn content_length(&mut self, value: &[u8]) -> Result<(), Fault> {
        for number in list(value) {
            if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
                return Err(Fault::bad("Content-Length is not a number"));
            }
            // Larger than 64 bits is larger than any limit.
            let length = number.iter().fold(0_u64, |length, digit| {
                length.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
            });
            if self.length.is_some_and(|other| other != length) {
                return Err(Fault::bad("the request has two different Content-Lengths"));
            }
            self.length = Some(length);
        }
        Ok(())
    }

    #[inline]
    fn framing(&self, is_1_1: bool) -> Result<Framing, Fault> {
        if !self.codings.present {
            return Ok(Framing::Length(self.length.unwrap_or(0)));
        }
        // RFC 9112, section 6.1: any of these might be an attempt to smuggle a request.
        let codings = &self.codings;
        if self.length.is_some() {
            return Err(Fault::bad(
                "the request has both Transfer-Encoding and Content-Length (RFC 9112, section 6.3)",
            ));
        }
        if !is_1_1 {
            return Err(Fault::bad("Transfer-Encoding does not exist in HTTP/1.0 (RFC 9112, section 6.1)"));
        }
        if !codings.last_is_chunked || codings.chunked > 1 {
            return Err(Fault::bad("the last transfer coding, and no other, must be chunked"));
        }
        if codings.count > 1 {
            return Err(Fault {
                status: Status::NotImplemented,
                why: "no transfer coding other than chunked is implemented".into(),
            });
        }
        Ok(Framing::Chunked)
    }
}

/// The members of a comma-separated list, without the white space around them.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii)
}

/// Characters of a host and port (RFC 3986, section 3.2.2), of no user and no path.
fn may_stand_in_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8], limit: usize) -> Result<Option<Head>, Fault> {
        super::parse(input, limit, |head, _| head)
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
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Connection::Persists),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", Connection::Persists),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", Connection::Closes),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: te, close\r\n\r\n", Connection::Closes),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nconnection: close\r\n\r\n", Connection::Closes),
            ("GET / HTTP/1.0\r\n\r\n", Connection::Closes),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", Connection::KeptAlive),
            ("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", Connection::Closes),
        ] {
            assert_eq!(head(text).connection, expected, "{text:?}");
        }
    }

    #[test]
    fn another_version_is_told_from_none_however_it_is_cut() {
        for (text, expected) in [
            ("GET / HTTP/2.0\r\n", Status::VersionNotSupported),
            ("GET / HTTP/1.2\r\n", Status::VersionNotSupported),
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
        assert_eq!(head(&post("Content-Length: 5\r\nContent-Length: 5, 5")).framing, Framing::Length(5));
        assert_eq!(head(&post("Transfer-Encoding: Chunked")).framing, Framing::Chunked);
        let huge = head(&post("Content-Length: 99999999999999999999999"));
        assert_eq!(huge.framing, Framing::Length(u64::MAX));
    }

    #[test]
    fn there_is_one_host() {
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), Status::BadRequest);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), Status::BadRequest);
        assert_eq!(status("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), Status::BadRequest);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), Status::BadRequest);
        assert_eq!(head("GET / HTTP/1.1\r\nHost:\r\n\r\n").method, Method::Get);
        assert_eq!(head("GET / HTTP/1.1\r\nhOST: [::1]:80\r\n\r\n").method, Method::Get);
    }

    #[test]
    fn the_limits_are_exact() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(parse(text.as_bytes(), text.len()).unwrap().is_some());
        let fault = parse(text.as_bytes(), text.len() - 1).unwrap_err();
        assert_eq!(fault.status, Status::FieldsTooLarge);
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
