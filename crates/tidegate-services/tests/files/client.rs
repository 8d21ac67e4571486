//! A folder, a server of it, and a client that reads one answer at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::{Model, Policy, Running, Server};
use tidegate_services::{Files, FilesLimits, FilesOptions, HttpLimits};

/// A read or a condition that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(50);

/// What is beside the folder that is served; no answer may have it.
pub const SECRET: &str = "what nobody may see";

/// A folder `root` with some files, and a secret beside it.
pub fn folder() -> TempDir {
    let outer = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(outer.path().join("root/sub/dir")).expect("folders");
    let write = |name: &str, content: &[u8]| std::fs::write(outer.path().join(name), content).expect("write");
    write("secret", SECRET.as_bytes());
    write("root/.hidden", SECRET.as_bytes());
    write("root/index.html", b"<h1>index</h1>");
    write("root/a b.txt", b"a b");
    write("root/sub/file.txt", b"file");
    write("root/small", &pattern(4096));
    write("root/large", &pattern(3_000_000));
    outer
}

/// Bytes that differ from place to place.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The default options with these limits.
pub fn limited(limits: FilesLimits) -> FilesOptions {
    FilesOptions { limits, ..FilesOptions::default() }
}

pub fn serve(model: Model, outer: &Path, options: FilesOptions) -> Running {
    let files = Files::new(&outer.join("root"), options, HttpLimits::default()).expect("a folder");
    let server = Server::new(files).model(model).policy(Policy::default());
    server.bind("127.0.0.1:0").expect("bind").start().expect("start")
}

/// The models that are here.
pub fn models() -> Vec<Model> {
    let here = |model: &Model| matches!(model.availability(), tidegate::Availability::Available(_));
    Model::ALL.iter().copied().filter(here).collect()
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// What has come and was not looked at.
    rest: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Client {
    pub fn of(server: &Running) -> Self {
        let addr = server.local_addr().addr().expect("an address");
        let stream = TcpStream::connect(addr).expect("connect");
        stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        stream.set_write_timeout(Some(TIMEOUT)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream, rest: Vec::new() }
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    /// Asks for a target with further fields, each with its line end.
    pub fn get(&mut self, target: &str, fields: &str) -> Answer {
        self.say(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        self.hear(Body::Comes)
    }

    pub fn head(&mut self, target: &str, fields: &str) -> Answer {
        self.say(format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        self.hear(Body::Never)
    }

    /// The next answer.
    #[track_caller]
    pub fn hear(&mut self, body: Body) -> Answer {
        let end = loop {
            if let Some(at) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more();
        };
        let head = String::from_utf8(self.rest.drain(..end).collect()).expect("a head");
        let status = head.get(9..12).and_then(|code| code.parse().ok()).expect("a status");
        let mut answer = Answer { status, head, body: Vec::new() };
        let length = answer.field("Content-Length").map_or(0, |length| length.parse().expect("a length"));
        if body == Body::Comes && status != 304 {
            while self.rest.len() < length {
                self.more();
            }
            answer.body = self.rest.drain(..length).collect();
        }
        answer
    }

    #[track_caller]
    fn more(&mut self) {
        let mut buffer = [0; 64 * 1024];
        let n = loop {
            match self.stream.read(&mut buffer) {
                // With a timeout set the kernel does not go on by itself (`signal(7)`).
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                outcome => break outcome.expect("receive"),
            }
        };
        assert!(n > 0, "an end after {:?}", String::from_utf8_lossy(&self.rest));
        self.rest.extend_from_slice(&buffer[..n]);
    }

    /// Whether the server ends the connection now.
    pub fn is_ended(&mut self) -> bool {
        self.stream.read(&mut [0]).is_ok_and(|n| n == 0)
    }
}

/// Whether an answer has a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Comes,
    Never,
}
