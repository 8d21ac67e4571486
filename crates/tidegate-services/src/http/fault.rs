//! Error statuses and the bodies of their responses.

use std::borrow::Cow;

/// Statuses of error responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    PreconditionFailed,
    ContentTooLarge,
    UriTooLong,
    RangeNotSatisfiable,
    Misdirected,
    UpgradeRequired,
    FieldsTooLarge,
    InternalError,
    NotImplemented,
    Unavailable,
    VersionNotSupported,
}

impl Status {
    /// Code and reason phrase, as in the status line (RFC 9110, section 15; RFC 6585, section 5).
    pub(crate) fn line(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::PreconditionFailed => "412 Precondition Failed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::UriTooLong => "414 URI Too Long",
            Self::RangeNotSatisfiable => "416 Range Not Satisfiable",
            Self::Misdirected => "421 Misdirected Request",
            Self::UpgradeRequired => "426 Upgrade Required",
            Self::FieldsTooLarge => "431 Request Header Fields Too Large",
            Self::InternalError => "500 Internal Server Error",
            Self::NotImplemented => "501 Not Implemented",
            Self::Unavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// Header fields that this status needs.
    pub(crate) fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::MethodNotAllowed => &[("Allow", "GET, HEAD")],
            // RFC 9110, sections 7.8 and 15.5.22; RFC 6455, section 4.4.
            Self::UpgradeRequired => {
                &[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
            }
            _ => &[],
        }
    }
}

/// A request error that ends the connection: status and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    pub status: Status,
    pub why: Cow<'static, str>,
}

impl RequestError {
    /// The body of the response: one line of text.
    pub(crate) fn body(&self) -> String {
        format!("{}: {}\n", self.status.line(), self.why)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self { status: Status::MethodNotAllowed, why: "this server answers GET and HEAD".into() }
    }

    pub(crate) fn method_unknown() -> Self {
        let why = "the method is unknown; this server answers GET and HEAD".into();
        Self { status: Status::NotImplemented, why }
    }

    pub(crate) fn too_slow() -> Self {
        Self { status: Status::RequestTimeout, why: "the request took too long to arrive".into() }
    }

    pub(crate) fn bad(why: &'static str) -> Self {
        Self { status: Status::BadRequest, why: why.into() }
    }

    pub(crate) fn body_too_large(limit: u64) -> Self {
        Self { status: Status::ContentTooLarge, why: format!("the body is larger than {limit} bytes").into() }
    }

    pub(crate) fn head_too_large(limit: usize) -> Self {
        let why = format!("the head of the request is larger than {limit} bytes").into();
        Self { status: Status::FieldsTooLarge, why }
    }

    pub(crate) fn trailers_too_large(limit: usize) -> Self {
        let why =
            format!("the trailers and chunk extensions of the body are larger than {limit} bytes").into();
        Self { status: Status::FieldsTooLarge, why }
    }

    pub(crate) fn too_many_fields(limit: usize) -> Self {
        Self {
            status: Status::FieldsTooLarge,
            why: format!("the request has more than {limit} header fields").into(),
        }
    }
}
