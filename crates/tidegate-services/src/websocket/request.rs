//! The HTTP request in front: an upgrade to WebSocket (RFC 6455, section 4), or a page that is asked for.

use httparse::Status::{Complete, Partial};
use tungstenite::handshake::derive_accept_key;

use super::HEAD_BYTES;

/// Most header fields in a request.
const MOST_FIELDS: usize = 64;

/// A complete request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// Bytes of its head.
    pub(super) bytes: usize,
    /// Path and query.
    pub(super) path: &'a str,
    pub(super) wants: Wants,
}

/// What it asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// A WebSocket: the value of `Sec-WebSocket-Accept`.
    WebSocket(String),
    /// A page.
    Page,
    /// A page's head.
    PageHead,
}

/// The answer to a request that is none, or not one for here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    status: &'static str,
    why: &'static str,
    /// A header field that goes with it.
    field: &'static str,
}

impl Fault {
    const fn bad(why: &'static str) -> Self {
        Self { status: "400 Bad Request", why, field: "" }
    }

    pub(super) const NOT_FOUND: Self =
        Self { status: "404 Not Found", why: "there is nothing at this path", field: "" };
    const METHOD: Self = Self {
        status: "405 Method Not Allowed",
        why: "only GET and HEAD are known here",
        field: "Allow: GET, HEAD\r\n",
    };
    const LARGE: Self = Self {
        status: "431 Request Header Fields Too Large",
        why: "the head of the request is larger than 8 KiB, or has more than 64 fields",
        field: "",
    };
    const VERSION: Self = Self {
        status: "426 Upgrade Required",
        why: "only version 13 of WebSocket is spoken here (RFC 6455, section 4.4)",
        field: "Sec-WebSocket-Version: 13\r\n",
    };

    /// The whole answer.
    pub(super) fn answer(&self) -> String {
        let Self { status, why, field } = self;
        let length = why.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{field}\r\n{why}\n"
        )
    }
}

/// The head of the answer that opens the WebSocket (section 4.2.2).
pub(super) fn switch(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// The head of the answer with a page of so many bytes. It may do nothing but what is in it, and speak to where it came from.
pub(super) fn page(length: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html; charset=utf-8\r\nCache-Control: no-cache\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self' ws: wss:\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Reads the request at the front of the input; `None` if it is not complete yet.
pub(super) fn parse(input: &[u8]) -> Result<Option<Request<'_>>, Fault> {
    let within = input.get(..HEAD_BYTES).unwrap_or(input);
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let bytes = match request.parse(within) {
        Ok(Complete(bytes)) => bytes,
        Ok(Partial) if input.len() >= HEAD_BYTES => return Err(Fault::LARGE),
        Ok(Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::LARGE),
        Err(_) => return Err(Fault::bad("this is not an HTTP/1 request")),
    };
    let path = request.path.unwrap_or_default();
    let plain = match request.method {
        Some("GET") => Wants::Page,
        Some("HEAD") => Wants::PageHead,
        _ => return Err(Fault::METHOD),
    };
    let is_upgrade = has_token(request.headers, "upgrade", "websocket");
    let wants = match is_upgrade && plain == Wants::Page {
        true => Wants::WebSocket(key(request.headers, request.version)?),
        false => plain,
    };
    Ok(Some(Request { bytes, path, wants }))
}

/// What accepts the key of an upgrade (section 4.2.1).
fn key(fields: &[httparse::Header<'_>], version: Option<u8>) -> Result<String, Fault> {
    if version != Some(1) {
        return Err(Fault::bad("an upgrade needs HTTP/1.1"));
    }
    if !has_token(fields, "connection", "upgrade") {
        return Err(Fault::bad("an upgrade needs Connection: Upgrade"));
    }
    if only(fields, "sec-websocket-version") != Some(b"13") {
        return Err(Fault::VERSION);
    }
    let key = only(fields, "sec-websocket-key").unwrap_or_default();
    // 16 bytes in base64: 22 characters and two of padding.
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    match key.split_at_checked(22) {
        Some((text, b"==")) if text.iter().all(is_base64) => Ok(derive_accept_key(key)),
        _ => Err(Fault::bad("Sec-WebSocket-Key must be there once, with 16 bytes in base64")),
    }
}

/// Whether a field that is a list has this member.
fn has_token(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    let lists = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    let mut members = lists.flat_map(|field| field.value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
    members.any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
}

/// The value of a field that is there once.
fn only<'a>(fields: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    let mut values = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    match (values.next(), values.next()) {
        (Some(field), None) => Some(field.value.trim_ascii()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str =
        "Host: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n";
    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    fn status(text: &str) -> &'static str {
        parse(text.as_bytes()).unwrap_err().status
    }

    #[test]
    fn an_upgrade_is_accepted_as_the_rfc_has_it() {
        let text = format!("GET /chat?a=b HTTP/1.1\r\n{FIELDS}{KEY}\r\n");
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Ok(None));
        }
        let whole = format!("{text}\x01");
        let request = parse(whole.as_bytes()).unwrap().unwrap();
        assert_eq!((request.bytes, request.path), (text.len(), "/chat?a=b"));
        // RFC 6455, section 1.3.
        assert_eq!(request.wants, Wants::WebSocket("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into()));
    }

    #[test]
    fn an_upgrade_that_lacks_something_is_refused() {
        let get = |fields: &str| status(&format!("GET / HTTP/1.1\r\n{fields}\r\n"));
        assert_eq!(get(FIELDS), "400 Bad Request");
        assert_eq!(get(&format!("{FIELDS}{KEY}{KEY}")), "400 Bad Request");
        assert_eq!(
            get(&format!("{FIELDS}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ===\r\n")),
            "400 Bad Request"
        );
        assert_eq!(
            get(&format!("{FIELDS}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n")),
            "400 Bad Request"
        );
        assert_eq!(get(&format!("{}{KEY}", FIELDS.replace("13", "8"))), "426 Upgrade Required");
        assert_eq!(
            get(&format!("{}{KEY}", FIELDS.replace("keep-alive, Upgrade", "close"))),
            "400 Bad Request"
        );
        assert_eq!(status(&format!("GET / HTTP/1.0\r\n{FIELDS}{KEY}\r\n")), "400 Bad Request");
        assert_eq!(status(&format!("POST / HTTP/1.1\r\n{FIELDS}{KEY}\r\n")), "405 Method Not Allowed");
        assert_eq!(status("\0"), "400 Bad Request");
    }

    #[test]
    fn pages_are_asked_for_without_an_upgrade() {
        let wants = |text: &str| parse(text.as_bytes()).unwrap().unwrap().wants;
        assert_eq!(wants("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Wants::Page);
        assert_eq!(wants("HEAD / HTTP/1.0\r\n\r\n"), Wants::PageHead);
        assert_eq!(wants("GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"), Wants::Page);
    }

    #[test]
    fn a_head_without_end_is_too_large() {
        let head = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES));
        assert_eq!(status(&head), Fault::LARGE.status);
        assert_eq!(parse(&head.as_bytes()[..HEAD_BYTES - 1]), Ok(None));
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65))), Fault::LARGE.status);
    }
}
