//! Responds with a document: selects representation, evaluates conditions and ranges.

use std::fmt::Write;
use std::time::SystemTime;

use bytes::Bytes;
use tidegate::Outbox;

use super::cache::HttpDate;
use super::coding::quality;
use super::conditions::{Asked, Preconditions, verdict};
use super::range::{ByteRange, WantedRange, wanted};
use super::store::{Content, Document, Variant};
use super::transfer::{Segment, Transfer};
use crate::http::answer::{http_date, refusal, said};
use crate::http::fault::Status;
use crate::http::head::Persistence;
use crate::http::session::Request;

/// Responds with a document. Content that is not in memory is left to be transferred.
#[inline]
pub(super) fn answer(
    document: &mut Document,
    request: &Request<'_>,
    clock: &HttpDate,
    out: &mut Outbox<'_>,
) -> Option<Transfer> {
    let asked = Asked::of(request.spoken.fields);
    let picked = if asked.accept_encoding { pick(document, asked) } else { 0 };
    let varies = document.variants.len() > 1;
    let variant = document.variants.get_mut(picked)?;
    let plain = !asked.conditional && asked.range.is_none() && !request.form.head_only;
    if plain && request.form.connection == Persistence::Persists {
        if let Some((second, whole)) = &variant.whole
            && *second == clock.second
        {
            out.share(whole.clone());
            return None;
        }
        if let Content::Memory(body) = &mut variant.content {
            let body = std::mem::take(body);
            let head =
                ResponseHead { document_type: &document.content_type, varies, variant, request, clock };
            let mut whole = head.whole().into_bytes();
            let behind = whole.len();
            whole.extend_from_slice(&body);
            let whole = Bytes::from(whole);
            variant.content = Content::Memory(whole.slice(behind..)); // one copy of it
            variant.whole = Some((clock.second, whole.clone()));
            out.share(whole);
            return None;
        }
    }
    let head = ResponseHead { document_type: &document.content_type, varies, variant, request, clock };
    head.answer(asked, out)
}

/// The preferred acceptable representation; of equally preferred ones the smallest. The uncoded file, which is first,
/// if none is acceptable (RFC 9110, section 12.5.3).
fn pick(document: &Document, asked: Asked<'_>) -> usize {
    let acceptable = |(at, variant): (usize, &Variant)| {
        let quality = quality(asked.values("accept-encoding"), variant.coding);
        (quality > 0).then_some((quality, std::cmp::Reverse(variant.length), at))
    };
    let best = document.variants.iter().enumerate().filter_map(acceptable).max();
    best.map_or(0, |(.., at)| at)
}

/// The inputs of a response's head.
struct ResponseHead<'a> {
    document_type: &'a str,
    varies: bool,
    variant: &'a Variant,
    request: &'a Request<'a>,
    clock: &'a HttpDate,
}

impl ResponseHead<'_> {
    fn answer(&self, asked: Asked<'_>, out: &mut Outbox<'_>) -> Option<Transfer> {
        let variant = self.variant;
        let range = match verdict(asked, &variant.etag, variant.modified) {
            Preconditions::Proceed => asked.range.filter(|_| !self.request.form.head_only), // RFC 9110, section 14.2
            Preconditions::Whole => None,
            Preconditions::NotModified => {
                let fields = self.validators();
                out.share(self.head("304 Not Modified", &fields).into());
                return None;
            }
            Preconditions::Failed => {
                self.refuse(Status::PreconditionFailed, "the file has changed", "", out);
                return None;
            }
        };
        match range.map_or(WantedRange::Whole, |range| wanted(range, variant.length)) {
            WantedRange::Whole => {
                self.send(self.whole(), &[ByteRange { first: 0, bytes: variant.length }], out)
            }
            WantedRange::Nothing => {
                let length = format!("Content-Range: bytes */{}\r\n", variant.length);
                self.refuse(Status::RangeNotSatisfiable, "the range is outside of the file", &length, out);
                None
            }
            WantedRange::Parts(parts) if parts.len() == 1 => {
                let length = parts[0].bytes;
                let range = parts[0].said(variant.length);
                let fields = format!(
                    "Content-Type: {}\r\nContent-Length: {length}\r\nContent-Range: {range}\r\n{}",
                    self.document_type,
                    self.about()
                );
                self.send(self.head("206 Partial Content", &fields), &parts, out)
            }
            WantedRange::Parts(parts) => Some(self.multipart(&parts)),
        }
    }

    fn whole(&self) -> String {
        let (kind, length) = (self.document_type, self.variant.length);
        let fields = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n{}", self.about());
        self.head("200 OK", &fields)
    }

    fn head(&self, line: &str, fields: &str) -> String {
        let (date, said) = (&self.clock.date, said(self.request.form.connection));
        format!("HTTP/1.1 {line}\r\nServer: tidegate\r\nDate: {date}\r\n{fields}{said}\r\n")
    }

    /// The header fields of a representation except type and length.
    fn about(&self) -> String {
        let coding =
            self.variant.coding.map_or(String::new(), |c| format!("Content-Encoding: {}\r\n", c.name()));
        format!("{coding}Accept-Ranges: bytes\r\n{}", self.validators())
    }

    fn validators(&self) -> String {
        let varies = if self.varies { "Vary: Accept-Encoding\r\n" } else { "" };
        // RFC 9110, section 8.8.2.1: never in the future.
        let modified = http_date(self.variant.modified.min(SystemTime::now()));
        let modified = modified.map_or(String::new(), |date| format!("Last-Modified: {date}\r\n"));
        format!("{modified}ETag: {}\r\n{varies}", self.variant.etag)
    }

    fn refuse(&self, status: Status, why: &str, more: &str, out: &mut Outbox<'_>) {
        out.share(refusal(status, why, &self.clock.date, more, self.request.form));
    }

    /// A head and one part; complete if that is in memory.
    fn send(&self, head: String, parts: &[ByteRange], out: &mut Outbox<'_>) -> Option<Transfer> {
        if self.request.form.head_only {
            out.share(head.into());
            return None;
        }
        let mut transfer = Transfer::new(&self.variant.content);
        transfer.push(Segment::Bytes(head.into()));
        for part in parts {
            transfer.push(Segment::Part(*part));
        }
        Some(transfer)
    }

    /// `multipart/byteranges` (RFC 9110, section 14.6).
    fn multipart(&self, parts: &[ByteRange]) -> Transfer {
        let boundary = format!("tidegate-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let mut transfer = Transfer::new(&self.variant.content);
        let mut length = 0;
        let mut segments = Vec::new();
        let mut before = String::new();
        for part in parts {
            let range = part.said(self.variant.length);
            // Writing to a string cannot fail.
            let _ = write!(
                before,
                "--{boundary}\r\nContent-Type: {}\r\nContent-Range: {range}\r\n\r\n",
                self.document_type
            );
            length += before.len() as u64 + part.bytes;
            segments.push(Segment::Bytes(std::mem::take(&mut before).into()));
            segments.push(Segment::Part(*part));
            before.push_str("\r\n");
        }
        let _ = write!(before, "--{boundary}--\r\n");
        length += before.len() as u64;
        segments.push(Segment::Bytes(before.into()));
        let fields = format!(
            "Content-Type: multipart/byteranges; boundary={boundary}\r\nContent-Length: {length}\r\n{}",
            self.about()
        );
        transfer.push(Segment::Bytes(self.head("206 Partial Content", &fields).into()));
        segments.into_iter().for_each(|segment| transfer.push(segment));
        transfer
    }
}
