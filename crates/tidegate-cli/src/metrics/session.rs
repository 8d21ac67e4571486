//! One scrape or probe: a request in, an answer out, the connection closes.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Consumed, Flow, Mail, Outbox, Session};

use super::board::{Board, Phase};

/// Most bytes of a request's head.
pub(super) const HEAD_BYTES: usize = 8 * 1024;

/// Most header fields; a scraper sends about six.
const MOST_FIELDS: usize = 64;

/// A request that is not complete after this is given up, however it trickles.
const PATIENCE: Duration = Duration::from_secs(5);

/// The media type of text exposition format 0.0.4.
const EXPOSITION: &str = prometheus::TEXT_FORMAT;

/// The media type of everything else.
const PLAIN: &str = "text/plain; charset=utf-8";

/// One connection of `--metrics`.
pub struct Scrape {
    board: Arc<Board>,
}

/// A status line, a media type and a body.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self { status, kind: PLAIN, body: format!("{body}\n") }
    }
}

impl Scrape {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Self { board }
    }

    fn answer(&self, path: &str) -> Answer {
        match path.split_once('?').map_or(path, |(path, _)| path) {
            "/metrics" => match self.board.exposition() {
                Ok(body) => Answer { status: "200 OK", kind: EXPOSITION, body },
                Err(e) => {
                    let why = format!("the metrics can not be written: {e}");
                    Answer::plain("500 Internal Server Error", &why)
                }
            },
            "/healthz" => Answer::plain("200 OK", "alive"),
            "/readyz" => match self.board.phase() {
                Phase::Accepting => Answer::plain("200 OK", "accepting"),
                Phase::Starting => Answer::plain("503 Service Unavailable", "starting"),
                Phase::Draining => Answer::plain("503 Service Unavailable", "draining"),
            },
            _ => Answer::plain("404 Not Found", "here are /metrics, /healthz and /readyz"),
        }
    }
}

/// Sends the answer; this connection serves no second one.
fn send(answer: &Answer, head_only: bool, out: &mut Outbox<'_>) {
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    out.write(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    if !head_only {
        out.write(body.as_bytes());
    }
    out.wake_never();
}

impl Session for Scrape {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Some(due) = out.now().checked_add(PATIENCE) {
            out.wake_at(due);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        let (answer, head_only) = match request.parse(input) {
            Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES => return Consumed::bytes(0),
            Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
                (Some("GET"), Some(path)) => (self.answer(path), false),
                (Some("HEAD"), Some(path)) => (self.answer(path), true),
                _ => (Answer::plain("405 Method Not Allowed", "only GET and HEAD"), false),
            },
            Ok(httparse::Status::Partial) => {
                (Answer::plain("431 Request Header Fields Too Large", "the head is too long"), false)
            }
            Err(e) => (Answer::plain("400 Bad Request", &format!("not an HTTP/1.1 request: {e}")), false),
        };
        send(&answer, head_only, out);
        Consumed::all(input).then(Flow::Linger)
    }

    fn on_mail(&mut self, mail: Mail, _out: &mut Outbox<'_>) -> Flow {
        if matches!(mail, Mail::Timer) { Flow::Abort } else { Flow::Continue }
    }
}
