//! HTTP: `http-*.txt`. A verdict is the statuses of the answers and what becomes of the connection, `open` or `close`;
//! `wait` is that nothing is answered until `rest` is there, and the verdict behind it is that of all of it.

use std::path::Path;

use tidegate::{Model, Policy, Service};
use tidegate_services::http::{Access, Generated, Generates, Made};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};
use tidegate_services::{Files, FilesOptions, Http, HttpLimits, Page};

use crate::cases::{Case, bytes, cases};
use crate::sockets::{exchange, random_pieces, start};
use crate::wire::{TestConnection, WireState};

const HEADS: &str = include_str!("http-heads.txt");
const BODIES: &str = include_str!("http-bodies.txt");

/// As those of a WebSocket, so that limits are the same everywhere.
fn limits() -> HttpLimits {
    HttpLimits::default()
        .head_bytes(tidegate_services::websocket::HEAD_BYTES)
        .body_bytes(10_000)
        .request_timeout(Some(std::time::Duration::from_secs(60)))
}

/// Whether the connection is open is asked with a request that has an answer of its own.
const PROBE: &str = "BREW / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const PROBED: (u16, &[u8]) = (501, b": the method is unknown; this server answers GET and HEAD\n");

/// What a head is refused with, by any of its readers.
const REFUSALS: [u16; 4] = [400, 414, 431, 505];

fn page() -> Http {
    Http::new(Page::new("<page>\n", "text/html; charset=utf-8"), limits())
}

/// The statuses in a stream of answers. An answer to HEAD shows itself by what follows its head.
fn statuses(mut stream: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !stream.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut fields);
        let head = response.parse(stream).expect("a valid head").unwrap();
        let status = response.code.expect("a code");
        let field = |name| response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        assert!(status == 100 || field("Date").is_some(), "every answer has a date");
        let length = field("Content-Length").map(|field| String::from_utf8_lossy(field.value).into_owned());
        let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
        stream = &stream[head..];
        if !stream.starts_with(b"HTTP/1.1 ") && !stream.is_empty() {
            stream = &stream[length..];
        }
        statuses.push(status);
    }
    statuses
}

/// What the probe behind a case shows, as the files have it.
fn verdict(output: &[u8]) -> String {
    let mut statuses = statuses(output);
    let is_open = statuses.last() == Some(&PROBED.0) && output.ends_with(PROBED.1);
    if is_open {
        statuses.pop();
    }
    let mut words: Vec<String> = statuses.iter().map(u16::to_string).collect();
    words.push(if is_open { "open" } else { "close" }.into());
    words.join(" ")
}

impl Case {
    /// All that is sent, the bytes at which nothing may be answered yet, and the verdict.
    fn script(&self) -> (Vec<u8>, Option<usize>, &str) {
        let mut script = bytes(&self.send);
        let waits = self.rest.as_ref().map(|rest| {
            let length = script.len();
            script.extend(bytes(rest));
            length
        });
        let gives = self.gives.strip_prefix("wait, then ");
        assert_eq!(gives.is_some(), waits.is_some(), "{}: wait goes with rest", self.name);
        (script, waits, gives.unwrap_or(&self.gives))
    }
}

/// Everything answered, with all dates made equal; whether the server has ended it.
fn play<S: Service>(service: &S, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut wire = TestConnection::to(service, Policy::default());
    pieces.iter().for_each(|piece| wire.send(piece));
    let text = String::from_utf8(wire.output.clone()).expect("answers are text");
    let lines = text.split_inclusive("\r\n");
    let text: String =
        lines.map(|line| if line.starts_with("Date: ") { "Date: now\r\n" } else { line }).collect();
    (text.into_bytes(), wire.finished || wire.state != WireState::Open)
}

#[test]
fn every_verdict_however_it_is_cut() {
    let mut wrong = Vec::new();
    for case in [cases(HEADS), cases(BODIES)].concat_all() {
        let (script, waits, gives) = case.script();
        let whole = play(&page(), &[&script]);
        let mut got: Vec<String> = statuses(&whole.0).iter().map(u16::to_string).collect();
        got.push(if whole.1 { "close" } else { "open" }.into());
        if got.join(" ") != gives {
            wrong.push(format!("{}: {} in place of {gives}", case.name, got.join(" ")));
            continue;
        }
        if let Some(waits) = waits
            && play(&page(), &[&script[..waits]]).1
        {
            wrong.push(format!("{}: it was not waited for the rest", case.name));
        }
        for cut in 1..script.len() {
            let (a, b) = script.split_at(cut);
            if play(&page(), &[a, b]) != whole {
                wrong.push(format!("{}: another answer if cut at {cut}", case.name));
                break;
            }
        }
        let singly: Vec<&[u8]> = script.chunks(1).collect();
        if play(&page(), &singly) != whole {
            wrong.push(format!("{}: another answer byte by byte", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_model_gives_every_verdict() {
    let cases = [cases(HEADS), cases(BODIES)].concat_all();
    let mut wrong = Vec::new();
    for model in Model::available() {
        let server = start(page(), model);
        for (number, case) in cases.iter().enumerate() {
            if case.only.as_deref() == Some("memory") {
                continue; // the client sends behind the end that it asked for: what it hears is a race
            }
            let (script, waits, gives) = case.script();
            let (first, rest) = script.split_at(waits.unwrap_or(script.len()));
            let seed = number as u64;
            for pieces in
                [vec![first, rest], random_pieces(&script, seed), random_pieces(&script, seed + 1000)]
            {
                let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
                // Who asked for the end must send nothing more (RFC 9112, section 9.6): it would meet a closed socket.
                // So the end is waited for where there has to be one.
                let probe = gives.ends_with("open").then_some(PROBE.as_bytes());
                let got = exchange(server.local_addr(), pieces.chain(probe));
                let got = got.map_or("reset".into(), |output| verdict(&output));
                if got != gives {
                    wrong.push(format!("{model}: {}: {got} in place of {gives}", case.name));
                }
            }
        }
        server.stop();
        server.join();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Pages that do not matter.
struct Pages;

impl Generates for Pages {
    fn page(&self, _: &str) -> Made {
        Made::line("200 OK", "page")
    }
}

/// Every service that speaks HTTP refuses the same heads, with the same status.
#[test]
fn every_service_is_as_strict() {
    let front = WebSocket::with_access(EchoMessages, WebSocketLimits::default(), Access::any());
    let generated = Generated::new(Pages, limits(), Access::any());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(Path::new(folder.path()).join("index.html"), "<page>\n").expect("write");
    let files = Files::new(folder.path(), FilesOptions::default(), limits()).expect("a folder");
    let files = start(files, Model::best().model);
    let mut wrong = Vec::new();
    for case in cases(HEADS).iter().filter(|case| case.only.is_none()) {
        let (script, _, gives) = case.script();
        let first = |output: &[u8]| statuses(output).first().copied();
        let wanted: Option<u16> = gives.split(' ').next().and_then(|status| status.parse().ok());
        let through_files = exchange(files.local_addr(), [&script[..], PROBE.as_bytes()]).unwrap_or_default();
        for (service, got) in [
            ("websocket", first(&play(&front, &[&script]).0)),
            ("generated", first(&play(&generated, &[&script]).0)),
            ("files", first(&through_files)),
        ] {
            let refused = |status: Option<u16>| status.filter(|status| REFUSALS.contains(status));
            if refused(got) != refused(wanted) {
                wrong.push(format!("{service}: {}: {got:?} in place of {wanted:?}", case.name));
            }
        }
    }
    files.stop();
    files.join();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// All cases of several files.
trait ConcatAll {
    fn concat_all(self) -> Vec<Case>;
}

impl<const N: usize> ConcatAll for [Vec<Case>; N] {
    fn concat_all(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}
