//! Files by hyper: HTTP/2, and HTTP/1.1 for who speaks that.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use tidegate::system::file::read_cached;
use tidegate::{FileRange, Service};
use tidegate_async::{ConnectionHandle, OffloadFailed};

use super::answer::{FileResponse, ResponseContent};
use super::conditions::{Asked, matters};
use super::path::resource;
use super::session::{FileAccess, ServedFiles};
use super::transfer::{Piece, Transfer};
use crate::http::head::Method;
use crate::http::http2::{self, AsyncResponder};

/// Bytes of a file that are read at once: the window that HTTP/2 gives a stream at first (RFC 9113, section 6.5.2).
const READ_BYTES: u64 = 64 << 10;

/// See [`Files::http2`](super::Files::http2).
pub(super) fn service(served: Arc<ServedFiles>) -> impl Service {
    let shared = served.shared.clone();
    let limits = shared.limits;
    http2::service(
        limits,
        move |policy| shared.check_limits(policy),
        move |conn| Http2Files {
            access: FileAccess::new(served.clone(), conn.peer().thread),
            handle: conn.handle(),
        },
    )
}

/// One connection.
struct Http2Files {
    access: FileAccess,
    handle: ConnectionHandle,
}

impl AsyncResponder for Http2Files {
    type Content = FileBody;

    async fn answer(&self, request: &Parts) -> Response<FileBody> {
        let head_only = request.method == hyper::Method::HEAD;
        if let Some(fault) = self.access.refusal() {
            let mut response = self.response(FileResponse::refusal(&fault), head_only);
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close")); // HTTP/2 has no such field
            return response;
        }
        let reply = self.reply(request, if head_only { Method::Head } else { Method::Get }).await;
        self.response(reply, head_only)
    }
}

impl Http2Files {
    async fn reply(&self, request: &Parts, method: Method) -> FileResponse {
        let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
        let resource = match resource(target) {
            Ok(resource) => resource,
            Err(fault) => return FileResponse::refusal(&fault),
        };
        let fields: Vec<_> = fields(&request.headers).collect();
        let asked = Asked::of(&fields, method);
        let now = Instant::now();
        if let Some((document, _)) = self.access.cache().get(&resource.key, now) {
            return FileResponse::document(document, asked);
        }
        let found = match self.access.find(&resource.key) {
            Ok(found) => found,
            Err(_) => match self.handle.offload(self.access.lookup(&resource.key)).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) => return FileResponse::refusal(&FileAccess::lookup_failed()),
                Err(_) => return FileResponse::refusal(&FileAccess::not_queued()),
            },
        };
        let responded = self
            .access
            .respond(&resource, found, Instant::now(), |document, _| FileResponse::document(document, asked));
        responded.unwrap_or_else(|reply| reply)
    }

    fn response(&self, reply: FileResponse, head_only: bool) -> Response<FileBody> {
        let body = match reply.body {
            _ if head_only => FileBody::from(Bytes::new()),
            ResponseContent::Text(text) => FileBody::from(Bytes::from(text)),
            ResponseContent::Parts(transfer) => FileBody::new(transfer, self.handle.clone()),
        };
        let fields = reply.fields.iter().map(|(name, value)| (*name, value.as_ref()));
        http2::response(reply.line, fields, body)
    }
}

/// The fields that a response depends on.
fn fields(headers: &HeaderMap) -> impl Iterator<Item = httparse::Header<'_>> {
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    headers.filter(|(name, _)| matters(name)).map(|(name, value)| httparse::Header { name, value })
}

/// The content of a response: bytes in memory, or read from a file piece by piece.
pub(super) struct FileBody {
    transfer: Transfer,
    /// What is left to hand to hyper.
    left: u64,
    /// A part that is not in memory, and the job that reads it.
    reading: Option<(FileRange, ReadJob)>,
    /// `None` for bytes in memory.
    handle: Option<ConnectionHandle>,
}

type ReadJob = Pin<Box<dyn Future<Output = Result<io::Result<Bytes>, OffloadFailed>> + Send>>;

impl FileBody {
    fn new(transfer: Transfer, handle: ConnectionHandle) -> Self {
        let left = transfer.bytes();
        Self { transfer, left, reading: None, handle: Some(handle) }
    }

    /// Reads what is in memory at once, and leaves the rest to a job.
    fn read(&mut self, range: FileRange) -> Option<io::Result<Bytes>> {
        let mut bytes = vec![0; range.len()];
        if read_cached(range.file(), &mut bytes, range.at()).is_ok_and(|n| n == bytes.len()) {
            return Some(Ok(bytes.into()));
        }
        let Some(handle) = &self.handle else { return Some(read_whole(&range)) };
        let of_the_job = range.clone();
        self.reading = Some((range, Box::pin(handle.offload(move || read_whole(&of_the_job)))));
        None
    }
}

/// Reads a range to its end.
fn read_whole(range: &FileRange) -> io::Result<Bytes> {
    let mut range = range.clone();
    let mut bytes = vec![0; range.len()];
    let mut filled = 0;
    while !range.is_empty() {
        let n = range.read(&mut bytes[filled..])?;
        range.advance(n);
        filled += n;
    }
    Ok(bytes.into())
}

impl From<Bytes> for FileBody {
    fn from(bytes: Bytes) -> Self {
        let left = bytes.len() as u64;
        Self { transfer: Transfer::of(bytes), left, reading: None, handle: None }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let bytes = loop {
            if let Some((range, job)) = &mut this.reading {
                // If the job was not run, it is read here.
                let outcome = ready!(job.as_mut().poll(task)).unwrap_or_else(|_| read_whole(range));
                this.reading = None;
                break outcome;
            }
            match this.transfer.next(READ_BYTES) {
                None => return Poll::Ready(None),
                Some(Piece::Bytes(bytes)) => break Ok(bytes),
                Some(Piece::File(range)) => {
                    if let Some(outcome) = this.read(range) {
                        break outcome;
                    }
                }
            }
        };
        this.left -= bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        Poll::Ready(Some(bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
