//! The target of a request: its form, and whether that is allowed (RFC 9112, section 3.2).

use std::borrow::Cow;

use super::authority::{Authority, has_whole_escapes};
use super::fault::RequestError;
use super::head::Method;
use super::scan::{NO_TARGET, NOT_IN_TARGET, PERCENT, class_of};

/// A parsed target.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestTarget<'a> {
    /// Path and query; `*` for the server as a whole. Empty for `CONNECT`.
    pub(super) path: Cow<'a, str>,
    /// Host and port of the absolute form, or of `CONNECT`.
    pub(super) authority: Option<&'a str>,
    /// Whether the Host field determines the authority (or, with `*`, may be empty).
    pub(super) is_asterisk: bool,
}

impl<'a> RequestTarget<'a> {
    #[inline]
    pub(super) fn parse(method: Method, text: &'a str) -> Result<Self, RequestError> {
        let classes = text.bytes().fold(0, |classes, byte| classes | class_of(byte));
        if classes & NOT_IN_TARGET != 0 {
            return Err(RequestError::bad(NO_TARGET));
        }
        match text.as_bytes() {
            [b'/', ..] if method != Method::Connect && classes & PERCENT == 0 => {
                Ok(Self { path: Cow::Borrowed(text), authority: None, is_asterisk: false })
            }
            [b'/', ..] if method != Method::Connect => Self::escaped(None, Cow::Borrowed(text)),
            b"*" if method == Method::Options => {
                Ok(Self { path: Cow::Borrowed(text), authority: None, is_asterisk: true })
            }
            _ if method == Method::Connect => Self::tunnel(text),
            _ => Self::absolute(text),
        }
    }

    /// Checks the escapes of a path.
    #[cold]
    fn escaped(authority: Option<&'a str>, path: Cow<'a, str>) -> Result<Self, RequestError> {
        // A query may contain a bare percent sign: browsers leave it unchanged.
        let end = path.find('?').unwrap_or(path.len());
        if !has_whole_escapes(path.as_bytes().get(..end).unwrap_or_default()) {
            return Err(RequestError::bad(
                "a percent sign is not followed by two digits (RFC 3986, section 2.1)",
            ));
        }
        Ok(Self { path, authority, is_asterisk: false })
    }

    #[cold]
    fn absolute(text: &'a str) -> Result<Self, RequestError> {
        const NO_FORM: &str = "the target is neither a path nor a URL of HTTP (RFC 9112, section 3.2)";
        let rest = ["http://", "https://"].iter().find_map(|scheme| {
            text.get(..scheme.len()).filter(|start| start.eq_ignore_ascii_case(scheme))?;
            text.get(scheme.len()..)
        });
        let rest = rest.ok_or(RequestError::bad(NO_FORM))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        match Authority::parse(authority.as_bytes()) {
            Some(parsed) if !parsed.host.is_empty() => {}
            _ => return Err(RequestError::bad("the target has no valid host (RFC 9110, section 4.2.1)")),
        }
        let path = if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("/{path}")) };
        Self::escaped(Some(authority), path)
    }

    #[cold]
    fn tunnel(text: &'a str) -> Result<Self, RequestError> {
        match Authority::parse(text.as_bytes()) {
            Some(Authority { host, port: Some(_) }) if !host.is_empty() => {
                Ok(Self { path: Cow::Borrowed(""), authority: Some(text), is_asterisk: false })
            }
            _ => Err(RequestError::bad(
                "the target of CONNECT must be host and port (RFC 9112, section 3.2.3)",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(method: Method, text: &str) -> Option<(String, Option<&str>)> {
        RequestTarget::parse(method, text).ok().map(|target| (target.path.into_owned(), target.authority))
    }

    #[test]
    fn each_method_has_its_forms() {
        for (text, path, authority) in [
            ("/", "/", None),
            ("/a/b?c=%zz&d[]={\"", "", None),
            ("/a?b=%zz&c[]={|}^`\\", "/a?b=%zz&c[]={|}^`\\", None),
            ("//host/a", "//host/a", None),
            ("http://host/a?b", "/a?b", Some("host")),
            ("HTTPS://host:443", "/", Some("host:443")),
            ("http://host?b", "/?b", Some("host")),
            ("http://[::1]:80/", "/", Some("[::1]:80")),
        ] {
            let expected = (!path.is_empty()).then(|| (path.to_owned(), authority));
            assert_eq!(parsed(Method::Get, text), expected, "{text}");
        }
        for text in [
            "*",
            "a",
            "host:80",
            "",
            "/a#b",
            "/%",
            "/%4g",
            "http:///a",
            "http://",
            "http:/a",
            "http:a",
            "http://u@host/",
            "http://x:80:90/",
            "http://[::1/",
            "http://%zz/",
            "ftp://host/",
            "?a",
            "http://:80/",
        ] {
            assert_eq!(parsed(Method::Get, text), None, "{text}");
        }
        assert_eq!(parsed(Method::Options, "*"), Some(("*".into(), None)));
        assert_eq!(parsed(Method::Connect, "host:443"), Some((String::new(), Some("host:443"))));
        for text in ["/", "host", "host:", ":443", "http://host:443/", "*"] {
            assert_eq!(parsed(Method::Connect, text), None, "{text}");
        }
    }
}
