//! Evaluates the first request: an upgrade to WebSocket (RFC 6455, section 4), or a page. The HTTP parser is shared.

use tungstenite::handshake::derive_accept_key;

use crate::http::answer::date_now;
use crate::http::fault::{RequestError, Status};
use crate::http::head::{Framing, Head, Method, Spoken, list};

/// The request's kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// A WebSocket: the value of `Sec-WebSocket-Accept`.
    WebSocket(String),
    /// A page.
    Page,
    /// The head of a page.
    PageHead,
}

/// The head of the response that opens the WebSocket (section 4.2.2).
pub(super) fn switch(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nServer: tidegate\r\nDate: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n",
        date_now()
    )
}

/// The head of the response with a page of this length. Its content security policy allows inline content, and
/// connections to its own origin.
pub(super) fn page(length: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nServer: tidegate\r\nDate: {}\r\nConnection: close\r\nContent-Type: text/html; charset=utf-8\r\n\
         Cache-Control: no-cache\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self' ws: wss:\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: {length}\r\n\r\n",
        date_now()
    )
}

/// Classifies a request.
pub(super) fn wants(head: &Head, spoken: Spoken<'_>) -> Result<Wants, RequestError> {
    let plain = match head.method {
        Method::Get => Wants::Page,
        Method::Head => Wants::PageHead,
        Method::Unknown => {
            let why = "the method is unknown; this server answers GET and HEAD".into();
            return Err(RequestError { status: Status::NotImplemented, why });
        }
        Method::Other | Method::Options | Method::Connect => {
            let why = "this server answers GET and HEAD".into();
            return Err(RequestError { status: Status::MethodNotAllowed, why });
        }
    };
    // Upgrade has no meaning in HTTP/1.0 (RFC 9110, section 7.8).
    let is_upgrade = head.is_1_1 && has_token(spoken.fields, "upgrade", "websocket");
    if !is_upgrade || plain != Wants::Page {
        return Ok(plain);
    }
    if head.framing != Framing::Length(0) {
        return Err(RequestError::bad(
            "an upgrade must not have a body: the start of its frames would be ambiguous",
        ));
    }
    key(spoken.fields).map(Wants::WebSocket)
}

/// The accept value for the key of an upgrade (section 4.2.1).
fn key(fields: &[httparse::Header<'_>]) -> Result<String, RequestError> {
    if !has_token(fields, "connection", "upgrade") {
        return Err(RequestError::bad("an upgrade needs Connection: Upgrade"));
    }
    if only(fields, "sec-websocket-version")? != Some(b"13") {
        let why = "only version 13 of WebSocket is supported (RFC 6455, section 4.4)".into();
        return Err(RequestError { status: Status::UpgradeRequired, why });
    }
    let key = only(fields, "sec-websocket-key")?.unwrap_or_default();
    // 16 bytes in base64: 22 characters and two of padding.
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    match key.split_at_checked(22) {
        Some((text, b"==")) if text.iter().all(is_base64) => Ok(derive_accept_key(key)),
        _ => Err(RequestError::bad("Sec-WebSocket-Key must occur once, with 16 bytes in base64")),
    }
}

/// Whether a list field has this member.
fn has_token(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    let lists = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    lists.flat_map(|field| list(field.value)).any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
}

/// The value of a field that may occur once.
pub(super) fn only<'a>(
    fields: &[httparse::Header<'a>],
    name: &str,
) -> Result<Option<&'a [u8]>, RequestError> {
    let mut values = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(RequestError {
            status: Status::BadRequest,
            why: format!("the request has more than one {name}").into(),
        }),
        (field, None) => Ok(field.map(|field| field.value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::{Front, Scan, parse};

    const FIELDS: &str =
        "Host: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n";
    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    fn asked(text: &str) -> Result<Wants, Status> {
        let read = |head: Head, spoken: Spoken<'_>| wants(&head, spoken);
        match parse(&mut Scan::new(), text.as_bytes(), 8192, read) {
            Ok(Front::Whole(wants)) => wants.map_err(|fault| fault.status),
            Ok(_) => panic!("not whole: {text:?}"),
            Err(fault) => Err(fault.status),
        }
    }

    #[test]
    fn an_upgrade_is_accepted_as_the_rfc_has_it() {
        // RFC 6455, section 1.3.
        let accept = Ok(Wants::WebSocket("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into()));
        assert_eq!(asked(&format!("GET /chat?a=b HTTP/1.1\r\n{FIELDS}{KEY}\r\n\u{1}")), accept);
        assert_eq!(asked(&format!("GET / HTTP/1.2\r\n{FIELDS}{KEY}\r\n")), accept);
    }

    #[test]
    fn an_upgrade_that_lacks_something_is_refused() {
        let get = |fields: &str| asked(&format!("GET / HTTP/1.1\r\n{fields}\r\n")).unwrap_err();
        for fields in [
            FIELDS.to_owned(),
            format!("{FIELDS}{KEY}{KEY}"),
            format!("{FIELDS}Sec-WebSocket-Version: 13\r\n{KEY}"),
            format!("{FIELDS}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ===\r\n"),
            format!("{FIELDS}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n"),
            format!("{}{KEY}", FIELDS.replace("keep-alive, Upgrade", "close")),
            format!("{FIELDS}{KEY}Content-Length: 1\r\n"),
            format!("{FIELDS}{KEY}Transfer-Encoding: chunked\r\n"),
        ] {
            assert_eq!(get(&fields), Status::BadRequest, "{fields:?}");
        }
        assert_eq!(get(&format!("{}{KEY}", FIELDS.replace("13", "8"))), Status::UpgradeRequired);
        assert_eq!(asked(&format!("POST / HTTP/1.1\r\n{FIELDS}{KEY}\r\n")), Err(Status::MethodNotAllowed));
        assert_eq!(asked(&format!("BREW / HTTP/1.1\r\n{FIELDS}{KEY}\r\n")), Err(Status::NotImplemented));
    }

    #[test]
    fn pages_are_asked_for_without_an_upgrade() {
        assert_eq!(asked("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(Wants::Page));
        assert_eq!(asked("HEAD / HTTP/1.0\r\n\r\n"), Ok(Wants::PageHead));
        assert_eq!(asked("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n"), Ok(Wants::Page));
        assert_eq!(asked(&format!("GET / HTTP/1.0\r\n{FIELDS}{KEY}\r\n")), Ok(Wants::Page));
    }
}
