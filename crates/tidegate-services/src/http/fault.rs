//! Statuses other than 200, and what their answers say.

use std::borrow::Cow;

/// The statuses this service answers with when it is not 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    BadRequest,
    MethodNotAllowed,
    RequestTimeout,
    ContentTooLarge,
    FieldsTooLarge,
    NotImplemented,
    VersionNotSupported,
}

impl Status {
    /// Code and reason phrase, as in the status line (RFC 9110, section 15; RFC 6585, section 5).
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::FieldsTooLarge => "431 Request Header Fields Too Large",
            Self::NotImplemented => "501 Not Implemented",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// A request that ends its connection: what to answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) status: Status,
    pub(super) why: Cow<'static, str>,
}

impl Fault {
    pub(super) fn bad(why: &'static str) -> Self {
        Self { status: Status::BadRequest, why: why.into() }
    }

    pub(super) fn body_too_large(limit: u64) -> Self {
        Self { status: Status::ContentTooLarge, why: format!("the body is larger than {limit} bytes").into() }
    }

    pub(super) fn head_too_large(limit: usize) -> Self {
        let why = format!("the head of the request is larger than {limit} bytes").into();
        Self { status: Status::FieldsTooLarge, why }
    }

    pub(super) fn trailers_too_large(limit: usize) -> Self {
        let why =
            format!("the trailers and chunk extensions of the body are larger than {limit} bytes").into();
        Self { status: Status::FieldsTooLarge, why }
    }

    pub(super) fn too_many_fields(limit: usize) -> Self {
        Self {
            status: Status::FieldsTooLarge,
            why: format!("the request has more than {limit} header fields").into(),
        }
    }
}
