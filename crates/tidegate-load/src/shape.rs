//! The form of an HTTP request, and the expected response.

use std::ops::RangeInclusive;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::http_answer::BodyRule;
use crate::plan::LoadError;

/// What becomes of a connection after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterResponse {
    /// It carries further requests.
    #[default]
    KeepAlive,
    /// It is closed in order; each request has its own.
    Close,
    /// It is reset; each request has its own. Both sides are spared the packets of an orderly end, and neither keeps it
    /// in TIME_WAIT: an easier load than [`Close`](Self::Close), and not what browsers do.
    Reset,
}

/// The shape of HTTP requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpShape {
    /// The Host field.
    pub host: String,
    /// The paths requested, with their queries; each connection uses them in turn.
    pub paths: Vec<String>,
    /// The method.
    pub method: String,
    /// Additional fields, and replacements of default ones (Host, User-Agent, Connection, Content-Length).
    pub headers: Vec<(String, String)>,
    /// The body; if set, Content-Length is sent.
    pub body: Bytes,
    /// What becomes of a connection after a response.
    pub after_response: AfterResponse,
    /// Requests in flight on each connection (RFC 9112, section 9.3.2).
    pub pipeline: usize,
    /// Expected statuses.
    pub right_status: Vec<RangeInclusive<u16>>,
    /// Text that response bodies must contain; costs a search of every response.
    pub body_contains: Option<Bytes>,
}

impl HttpShape {
    /// A plain GET over keep-alive connections; expects 2xx.
    #[must_use]
    pub fn get(host: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            paths: vec![path.into()],
            method: "GET".into(),
            headers: Vec::new(),
            body: Bytes::new(),
            after_response: AfterResponse::KeepAlive,
            pipeline: 1,
            right_status: vec![200..=299],
            body_contains: None,
        }
    }

    /// Whether connections carry more than one request.
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.after_response == AfterResponse::KeepAlive
    }

    /// Checks the shape.
    ///
    /// # Errors
    /// [`LoadError::Plan`] with the remedy.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: String| Err(LoadError::Plan(why));
        if !is_token(&self.method) {
            return wrong(format!("--method {:?} is not a word like GET or POST", self.method));
        }
        if self.method == "CONNECT" {
            return wrong("--method CONNECT opens a tunnel, which is not supported".into());
        }
        if !is_host(&self.host) {
            return wrong(format!(
                "the host {:?} is invalid: write a name, an IPv4 address or an [IPv6 address], and :PORT if needed",
                self.host
            ));
        }
        let odd = |text: &str| text.bytes().any(|b| b <= b' ' || b == 0x7f);
        match self.paths.iter().find(|path| odd(path) || !(path.starts_with('/') || *path == "*")) {
            Some(path) => {
                return wrong(format!(
                    "--path {path:?} must begin with / and contain no space: percent-encode it"
                ));
            }
            None if self.paths.is_empty() => return wrong("there must be at least one --path".into()),
            None => {}
        }
        for (name, value) in &self.headers {
            if !is_token(name) || value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
                return wrong(format!(
                    "-H \"{name}: {value}\" is not a header field; write -H 'Name: value' on one line"
                ));
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                return wrong(
                    "-H Transfer-Encoding is not supported: bodies are sent with Content-Length".into(),
                );
            }
        }
        if self.pipeline == 0 || self.pipeline > 1024 {
            return wrong("--pipeline must be from 1 to 1024 requests".into());
        }
        if self.pipeline > 1 && !self.keep_alive() {
            return wrong("--pipeline needs keep-alive connections: leave --no-keepalive out".into());
        }
        if self.right_status.is_empty() || self.right_status.iter().any(|range| range.is_empty()) {
            return wrong("--check-status must name a status, like 200, 2xx or 200,404".into());
        }
        if self.body_contains.as_ref().is_some_and(|text| text.is_empty()) {
            return wrong("--check-body-contains must not be empty".into());
        }
        Ok(())
    }

    /// The bytes of the requests, one for each path.
    pub(crate) fn requests(&self) -> Vec<Bytes> {
        self.paths.iter().map(|path| self.request(path)).collect()
    }

    fn request(&self, path: &str) -> Bytes {
        let mut text = format!("{} {path} HTTP/1.1\r\n", self.method);
        let mut field = |name: &str, value: &str| {
            if !self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        field("Host", &self.host);
        field("User-Agent", "tidegate-load");
        if !self.keep_alive() {
            field("Connection", "close");
        }
        // A method that is made for bodies announces an empty one too (RFC 9110, section 8.6).
        if !self.body.is_empty() || matches!(&*self.method, "POST" | "PUT" | "PATCH") {
            field("Content-Length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes.into()
    }

    /// What says whether an answer has a body.
    pub(crate) fn body_rule(&self) -> BodyRule {
        if self.method == "HEAD" { BodyRule::Never } else { BodyRule::ByHead }
    }

    /// Whether a status is right.
    #[inline]
    pub(crate) fn is_right(&self, status: u16) -> bool {
        self.right_status.iter().any(|range| range.contains(&status))
    }
}

/// `uri-host [ ":" port ]` of RFC 9110, section 7.2, and not empty: nothing else can follow it in a request.
fn is_host(text: &str) -> bool {
    let (is_named, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((v6, port))) => (v6.parse::<std::net::Ipv6Addr>().is_ok(), port),
        Some(None) => return false,
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (is_reg_name(name), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_named && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// `reg-name` of RFC 3986, section 3.2.2, which IPv4 addresses are too; not empty.
fn is_reg_name(name: &str) -> bool {
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match first {
            b'%' => match after {
                [a, b, after @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => after,
                _ => return false,
            },
            b if b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(b) => after,
            _ => return false,
        };
    }
    !name.is_empty()
}

/// `token` of RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(shape: &HttpShape) -> String {
        shape.check().unwrap();
        String::from_utf8(shape.requests().concat()).unwrap()
    }

    #[test]
    fn a_host_is_a_host_and_nothing_that_ends_a_line() {
        for host in ["a", "a.example:80", "127.0.0.1:8080", "[::1]", "[::1]:80", "a%20b", "localhost:0"] {
            assert_eq!(HttpShape::get(host, "/").check().map_err(|e| e.to_string()), Ok(()), "{host}");
        }
        for host in [
            "",
            ":80",
            "a b",
            "a\r\nX: y",
            "a\r\n\r\nGET /admin HTTP/1.1\r\nHost: b",
            "a\n",
            "a:80:90",
            "a:",
            "a:65536",
            "a:+1",
            "[::1",
            "[x]",
            "[::1]x",
            "%zz",
            "%2",
            "u@a",
            "a/b",
            "ä",
        ] {
            let why = HttpShape::get(host, "/").check().unwrap_err().to_string();
            assert!(why.contains("the host") && !why.contains(char::is_control), "{host:?}: {why}");
        }
    }

    #[test]
    fn a_request_is_written_as_asked() {
        let mut shape = HttpShape::get("h:1", "/a");
        assert_eq!(text(&shape), "GET /a HTTP/1.1\r\nHost: h:1\r\nUser-Agent: tidegate-load\r\n\r\n");
        shape.method = "POST".into();
        shape.body = Bytes::from_static(b"xyz");
        shape.headers =
            vec![("host".into(), "other".into()), ("X".into(), "1".into()), ("X".into(), "2".into())];
        shape.after_response = AfterResponse::Close;
        assert_eq!(
            text(&shape),
            "POST /a HTTP/1.1\r\nUser-Agent: tidegate-load\r\nConnection: close\r\nContent-Length: 3\r\n\
             host: other\r\nX: 1\r\nX: 2\r\n\r\nxyz"
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let get = || HttpShape::get("h", "/");
        for (shape, part) in [
            (HttpShape { method: "G T".into(), ..get() }, "--method"),
            (HttpShape { method: "CONNECT".into(), ..get() }, "tunnel"),
            (HttpShape { paths: vec!["a".into()], ..get() }, "--path"),
            (HttpShape { paths: vec!["/a b".into()], ..get() }, "--path"),
            (HttpShape { headers: vec![("A B".into(), "c".into())], ..get() }, "Name: value"),
            (HttpShape { headers: vec![("A".into(), "c\r\nB: d".into())], ..get() }, "Name: value"),
            (
                HttpShape { headers: vec![("Transfer-Encoding".into(), "chunked".into())], ..get() },
                "Content-Length",
            ),
            (HttpShape { pipeline: 0, ..get() }, "--pipeline"),
            (HttpShape { pipeline: 2, after_response: AfterResponse::Close, ..get() }, "--no-keepalive"),
            (HttpShape { right_status: vec![], ..get() }, "--check-status"),
            (HttpShape { body_contains: Some(Bytes::new()), ..get() }, "empty"),
        ] {
            let why = shape.check().unwrap_err().to_string();
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
