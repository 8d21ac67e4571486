//! Selects the response to a request: representation, conditions, ranges. It is the same in every version of HTTP.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::SystemTime;

use bytes::Bytes;
use tidegate::Outbox;

use super::cache::HttpDate;
use super::coding::quality;
use super::conditions::{Asked, Preconditions, verdict};
use super::path::{Resource, escaped};
use super::range::{ByteRange, WantedRange, wanted};
use super::store::{Content, Document, Variant};
use super::transfer::{Segment, Transfer};
use crate::http::answer::{TEXT, head, http_date};
use crate::http::fault::{RequestError, Status};
use crate::http::head::{Persistence, ResponseForm};

/// A response, before it has the form of a version of HTTP. That adds the date.
#[derive(Debug)]
pub(super) struct FileResponse {
    /// Code and reason phrase.
    pub(super) line: &'static str,
    pub(super) fields: ResponseFields,
    pub(super) body: ResponseContent,
}

/// Names and values of header fields.
pub(super) type ResponseFields = Vec<(&'static str, Cow<'static, str>)>;

/// The content of a response.
#[derive(Debug)]
pub(super) enum ResponseContent {
    Text(String),
    Parts(Transfer),
}

impl FileResponse {
    /// An error response. Its body states the reason.
    pub(super) fn refusal(fault: &RequestError) -> Self {
        let retry = (fault.status == Status::Unavailable).then_some(("Retry-After", "1"));
        let more = fault.status.fields().iter().copied().chain(retry);
        let more = more.map(|(name, value)| (name, Cow::Borrowed(value)));
        Self::text(fault.status.line(), TEXT, fault.body(), more)
    }

    /// A listing of a directory.
    pub(super) fn listing(page: String) -> Self {
        let no_cache = [("Cache-Control", "no-cache".into())];
        Self::text("200 OK", "text/html; charset=utf-8", page, no_cache.into_iter())
    }

    /// Redirects to the same path with a trailing slash. Never to another host: a name has no leading slash.
    pub(super) fn redirect(resource: &Resource<'_>) -> Self {
        let location = format!("/{}/{}", escaped(resource.name()), resource.query);
        let fields = vec![("Location", location.into()), ("Content-Length", "0".into())];
        Self { line: "301 Moved Permanently", fields, body: ResponseContent::Text(String::new()) }
    }

    fn text(
        line: &'static str,
        content_type: &'static str,
        text: String,
        more: impl Iterator<Item = (&'static str, Cow<'static, str>)>,
    ) -> Self {
        let length = text.len().to_string().into();
        let mut fields = vec![("Content-Type", content_type.into()), ("Content-Length", length)];
        fields.extend(more);
        Self { line, fields, body: ResponseContent::Text(text) }
    }

    /// The response with a document. `Asked` has no range for HEAD (RFC 9110, section 14.2).
    pub(super) fn document(document: &Document, asked: Asked<'_>) -> Self {
        let Some(variant) = document.variants.get(pick(document, asked)) else {
            let why = "this file has no content".into();
            return Self::refusal(&RequestError { status: Status::InternalError, why });
        };
        Representation { document, variant }.reply(asked)
    }

    /// Its head in HTTP/1.1.
    fn head(&self, date: &str, connection: Persistence) -> String {
        let fields = self.fields.iter().map(|(name, value)| (*name, value.as_ref()));
        head(self.line, date, fields, connection)
    }

    /// Writes it as HTTP/1.1. Parts of a document are left to be transferred.
    pub(super) fn write(self, form: ResponseForm, date: &str, out: &mut Outbox<'_>) -> Option<Transfer> {
        let mut head = self.head(date, form.connection);
        match self.body {
            ResponseContent::Parts(transfer) if !form.head_only => return Some(transfer.behind(head.into())),
            ResponseContent::Text(text) if !form.head_only => head.push_str(&text),
            _ => {}
        }
        out.share(head.into());
        None
    }
}

/// Writes a document as HTTP/1.1. Content that is not in memory is left to be transferred.
#[inline]
pub(super) fn answer(
    document: &mut Document,
    asked: Asked<'_>,
    form: ResponseForm,
    clock: &HttpDate,
    out: &mut Outbox<'_>,
) -> Option<Transfer> {
    let plain = !asked.conditional && asked.range.is_none() && !form.head_only;
    if plain && form.connection == Persistence::Persists {
        let picked = pick(document, asked);
        if let Some((second, whole)) =
            document.variants.get(picked).and_then(|variant| variant.whole.as_ref())
            && *second == clock.second
        {
            out.share(whole.clone());
            return None;
        }
        if let Some(whole) = whole(document, picked, &clock.date) {
            document.variants[picked].whole = Some((clock.second, whole.clone()));
            out.share(whole);
            return None;
        }
    }
    FileResponse::document(document, asked).write(form, &clock.date, out)
}

/// A complete response, if its content is in memory. That has only one copy of it.
fn whole(document: &mut Document, picked: usize, date: &str) -> Option<Bytes> {
    let variant = document.variants.get(picked)?;
    let Content::Memory(body) = &variant.content else { return None };
    let reply = Representation { document, variant }.reply(Asked::default());
    let mut whole = reply.head(date, Persistence::Persists).into_bytes();
    let behind = whole.len();
    whole.extend_from_slice(body);
    let whole = Bytes::from(whole);
    document.variants[picked].content = Content::Memory(whole.slice(behind..));
    Some(whole)
}

/// The preferred acceptable representation; of equally preferred ones the smallest. The uncoded file, which is first,
/// if none is acceptable (RFC 9110, section 12.5.3).
#[inline]
fn pick(document: &Document, asked: Asked<'_>) -> usize {
    if !asked.accept_encoding {
        return 0;
    }
    let acceptable = |(at, variant): (usize, &Variant)| {
        let quality = quality(asked.values("accept-encoding"), variant.coding);
        (quality > 0).then_some((quality, std::cmp::Reverse(variant.length), at))
    };
    let best = document.variants.iter().enumerate().filter_map(acceptable).max();
    best.map_or(0, |(.., at)| at)
}

/// A document as one of its variants.
struct Representation<'a> {
    document: &'a Document,
    variant: &'a Variant,
}

impl Representation<'_> {
    fn reply(&self, asked: Asked<'_>) -> FileResponse {
        let variant = self.variant;
        let range = match verdict(asked, &variant.etag, variant.modified) {
            Preconditions::Proceed => asked.range,
            Preconditions::Whole => None,
            Preconditions::NotModified => {
                let fields = self.validators().collect();
                return FileResponse {
                    line: "304 Not Modified",
                    fields,
                    body: ResponseContent::Text(String::new()),
                };
            }
            Preconditions::Failed => {
                let why = "the file has changed".into();
                return FileResponse::refusal(&RequestError { status: Status::PreconditionFailed, why });
            }
        };
        match range.map_or(WantedRange::Whole, |range| wanted(range, variant.length)) {
            WantedRange::Whole => self.whole(),
            WantedRange::Nothing => {
                let why = "the range is outside of the file".into();
                let mut reply =
                    FileResponse::refusal(&RequestError { status: Status::RangeNotSatisfiable, why });
                reply.fields.push(("Content-Range", format!("bytes */{}", variant.length).into()));
                reply
            }
            WantedRange::Parts(parts) => match parts[..] {
                [part] => self.part(part),
                _ => self.multipart(&parts),
            },
        }
    }

    fn whole(&self) -> FileResponse {
        let mut transfer = Transfer::new(&self.variant.content);
        transfer.push(Segment::Part(ByteRange { first: 0, bytes: self.variant.length }));
        let fields = self.fields(self.document.content_type.clone(), self.variant.length);
        FileResponse { line: "200 OK", fields, body: ResponseContent::Parts(transfer) }
    }

    fn part(&self, part: ByteRange) -> FileResponse {
        let mut transfer = Transfer::new(&self.variant.content);
        transfer.push(Segment::Part(part));
        let mut fields = self.fields(self.document.content_type.clone(), part.bytes);
        fields.insert(2, ("Content-Range", part.said(self.variant.length).into()));
        FileResponse { line: "206 Partial Content", fields, body: ResponseContent::Parts(transfer) }
    }

    /// `multipart/byteranges` (RFC 9110, section 14.6).
    fn multipart(&self, parts: &[ByteRange]) -> FileResponse {
        let boundary = format!("tidegate-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let content_type = &self.document.content_type;
        let mut transfer = Transfer::new(&self.variant.content);
        let mut length = 0;
        let mut before = String::new();
        for part in parts {
            let range = part.said(self.variant.length);
            // Writing to a string cannot fail.
            let _ = write!(
                before,
                "--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {range}\r\n\r\n"
            );
            length += before.len() as u64 + part.bytes;
            transfer.push(Segment::Bytes(std::mem::take(&mut before).into()));
            transfer.push(Segment::Part(*part));
            before.push_str("\r\n");
        }
        let _ = write!(before, "--{boundary}--\r\n");
        length += before.len() as u64;
        transfer.push(Segment::Bytes(before.into()));
        let fields = self.fields(format!("multipart/byteranges; boundary={boundary}"), length);
        FileResponse { line: "206 Partial Content", fields, body: ResponseContent::Parts(transfer) }
    }

    fn fields(&self, content_type: String, length: u64) -> ResponseFields {
        let mut fields =
            vec![("Content-Type", content_type.into()), ("Content-Length", length.to_string().into())];
        fields.extend(self.variant.coding.map(|coding| ("Content-Encoding", coding.name().into())));
        fields.push(("Accept-Ranges", "bytes".into()));
        fields.extend(self.validators());
        fields
    }

    fn validators(&self) -> impl Iterator<Item = (&'static str, Cow<'static, str>)> {
        let varies = (self.document.variants.len() > 1).then_some(("Vary", "Accept-Encoding".into()));
        // RFC 9110, section 8.8.2.1: never in the future.
        let modified = http_date(self.variant.modified.min(SystemTime::now()));
        let modified = modified.map(|date| ("Last-Modified", date.into()));
        let etag = ("ETag", self.variant.etag.clone().into());
        modified.into_iter().chain([etag]).chain(varies)
    }
}
