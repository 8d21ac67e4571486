//! A broker that keeps what it receives, nodes of the messenger, and members.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use rustix::net::{AddressFamily, SocketAddrV4, SocketType};
use rustix::process::Signal;

use crate::kit::{Broker, Guard, LONGEST, Lines, TIDEGATE, unless_given};

/// For nodes of which one is to be lost, or cut off, by its silence.
pub const SOON: [&str; 2] = ["--node-timeout", "5s"];

/// A broker with JetStream on a port that stays the same over restarts.
pub struct Store {
    broker: Option<Broker>,
    port: u16,
    /// Has the port while no broker does: see [`a_port`].
    _kept: OwnedFd,
    folder: tempfile::TempDir,
}

/// A port of 127.0.0.1, and a socket that has it but does not listen: Linux then chooses it for nobody, and lets those
/// listen there who name it and set `SO_REUSEADDR`, as a Go program does (socket(7)).
fn a_port() -> (u16, OwnedFd) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = SocketAddrV4::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (addr.port(), socket)
}

impl Store {
    /// None if there is no nats-server.
    pub fn new() -> Option<Self> {
        let (port, kept) = a_port();
        let mut store = Self { broker: None, port, _kept: kept, folder: tempfile::tempdir().unwrap() };
        store.restart();
        store.broker.is_some().then_some(store)
    }

    pub fn url(&self) -> String {
        self.broker.as_ref().unwrap().url.clone()
    }

    pub fn signal(&self, signal: Signal) {
        self.broker.as_ref().unwrap().process.signal(signal);
    }

    pub fn kill(&mut self) {
        self.broker = None;
    }

    /// What it has kept is lost.
    pub fn forget(&mut self) {
        self.folder = tempfile::tempdir().unwrap();
    }

    /// Deletes what came last in a room, as `nats stream rmm` does.
    pub fn delete_last(&self, room: &str) {
        let last =
            self.ask("MSG.GET", &serde_json::json!({"last_by_subj": format!("tidegate.chat.room.{room}")}));
        let answer = self.ask("MSG.DELETE", &serde_json::json!({"seq": last["message"]["seq"]}));
        assert_eq!(answer["success"], true, "{answer}");
    }

    /// Says something to everybody at the broker, as any client with that right can; returns once the broker has it.
    pub fn publish(&self, subject: &str, payload: &[u8]) {
        let mut stream = TcpStream::connect(self.url().trim_start_matches("nats://")).unwrap();
        let lines = Lines::of(stream.try_clone().unwrap());
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nPUB {subject} {}\r\n", payload.len()).unwrap();
        stream.write_all(payload).unwrap();
        stream.write_all(b"\r\nPING\r\n").unwrap();
        lines.wait_for("PONG");
    }

    /// The next thing that the node of this name says about itself.
    pub fn beat_of(&self, name: &str) -> serde_json::Value {
        let mut stream = TcpStream::connect(self.url().trim_start_matches("nats://")).unwrap();
        let lines = Lines::of(stream.try_clone().unwrap());
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB tidegate.chat.nodes 1\r\n").unwrap();
        let line = lines.wait_for(&format!("\"name\":{name:?}"));
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["body"].clone()
    }

    /// The last place that is taken in the stream of rooms.
    pub fn last_place(&self) -> u64 {
        self.ask("INFO", &serde_json::json!({}))["state"]["last_seq"].as_u64().unwrap()
    }

    /// Asks something about the stream of rooms, in the text that NATS speaks.
    fn ask(&self, what: &str, request: &serde_json::Value) -> serde_json::Value {
        let mut stream = TcpStream::connect(self.url().trim_start_matches("nats://")).unwrap();
        let (subject, request) = (format!("$JS.API.STREAM.{what}.tidegate-chat"), request.to_string());
        let begin = "CONNECT {\"verbose\":false}\r\nSUB answer 1\r\n";
        write!(stream, "{begin}PUB {subject} answer {}\r\n{request}\r\n", request.len()).unwrap();
        let answer = Lines::of(stream).wait_for("io.nats.jetstream.api");
        serde_json::from_str(&answer).unwrap()
    }

    pub fn restart(&mut self) {
        let port = self.port.to_string();
        self.broker = Broker::start(&["-p", &port, "-js", "-sd", self.folder.path().to_str().unwrap()]);
    }
}

/// Waits until it is so.
pub fn wait_until(is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONGEST, "it does not come to that");
        std::thread::yield_now();
    }
}

/// A value on the page of a node.
pub fn counted(addr: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// One node of the messenger.
pub struct Node {
    process: Guard,
    addr: String,
    pub url: String,
}

impl Node {
    /// Starts it and waits until it accepts.
    pub fn start(broker: &str, name: &str, args: &[&str]) -> Self {
        Self::started(&mut Self::command(broker, name, args))
    }

    /// The same, and the address of its counters.
    pub fn with_metrics(broker: &str, name: &str, args: &[&str]) -> (Self, String) {
        let (node, addr, _) = Self::with_notes(broker, name, args);
        (node, addr)
    }

    /// The same, and what it notes after that.
    pub fn with_notes(broker: &str, name: &str, args: &[&str]) -> (Self, String, Lines) {
        let args = [&["--metrics", "127.0.0.1:0"], args].concat();
        let mut command = Self::command(broker, name, &args);
        let (stderr, writer) = std::io::pipe().unwrap();
        let node = Self::started(command.stderr(writer));
        drop(command); // the node alone has the other end
        let notes = Lines::of(stderr);
        let line = notes.wait_for("metrics on http://");
        let addr = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned();
        (node, addr, notes)
    }

    fn command(broker: &str, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(TIDEGATE);
        command
            .args(["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "none", "--threads", "2"])
            .args(["--nats", broker, "--node", name])
            .args(unless_given(args, ["--node-timeout", "20s"]))
            .args(args);
        command
    }

    fn started(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let process = Guard(child);
        let line = Lines::of(stdout).wait_for("listening on ");
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        let addr = url.split_once("://").map_or(&*url, |(_, rest)| rest).trim_end_matches('/').to_owned();
        Self { process, addr, url }
    }

    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
    }

    /// Memory that it has now, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Ends it with a signal, as one does.
    pub fn end(mut self) {
        self.process.signal(Signal::TERM);
        assert!(self.process.wait().success());
    }
}

/// A member that speaks lines.
pub struct Member {
    stream: TcpStream,
    lines: mpsc::Receiver<String>,
    /// Everything it received.
    pub all: Vec<String>,
}

impl Member {
    pub fn connect(node: &Node) -> Self {
        let stream = TcpStream::connect(&node.addr).unwrap();
        let input = BufReader::new(stream.try_clone().unwrap());
        let (heard, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in input.lines().map_while(Result::ok) {
                if heard.send(line).is_err() {
                    return;
                }
            }
        });
        Self { stream, lines, all: Vec::new() }
    }

    pub fn join(node: &Node, room: &str, nick: &str) -> Self {
        let mut member = Self::connect(node);
        member.say(&format!("/join {room} {nick}"));
        let joined = member.hear();
        assert!(joined.starts_with(&format!("= joined {room} as {nick}")), "{joined}");
        member
    }

    pub fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Says something to a node that is about to be cut off, and waits until it is; false if it was cut off before it
    /// heard that, and has refused it.
    pub fn says_before_cut_off(&mut self, text: &str) -> bool {
        let before = self.all.len();
        self.say(text);
        self.hear_line(|line| line.starts_with("= cut off: "));
        // The answer to this comes after a refusal of that.
        self.say("/who");
        self.hear_line(|line| line.contains(" here: "));
        !self.all[before..].iter().any(|line| line.starts_with("! this node is cut off"))
    }

    pub fn hear(&mut self) -> String {
        let line = self.lines.recv_timeout(LONGEST);
        let line = line.unwrap_or_else(|e| panic!("nothing more after {:?}: {e}", self.all));
        self.all.push(line.clone());
        line
    }

    /// Waits for such a line.
    pub fn hear_line(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.hear();
            if is_it(&line) {
                return line;
            }
        }
    }

    /// Waits for something that is said.
    pub fn hear_said(&mut self) -> String {
        self.hear_line(|line| line.starts_with('#') && line.contains(": "))
    }

    /// Two things that are said, in the order they came.
    pub fn hear_two(&mut self, one: &str, other: &str) -> [String; 2] {
        let heard = [self.hear_said(), self.hear_said()];
        assert!(
            heard.iter().any(|line| line.ends_with(one)) && heard.iter().any(|line| line.ends_with(other)),
            "{heard:?}"
        );
        heard
    }

    /// Waits for lines with these ends, in any order.
    pub fn hear_both(&mut self, one: &str, other: &str) {
        let first = self.hear_line(|line| line.ends_with(one) || line.ends_with(other));
        let second = if first.ends_with(one) { other } else { one };
        self.hear_line(|line| line.ends_with(second));
    }

    /// Asks until the answer is such a one: what other nodes say about themselves takes a moment.
    pub fn ask_until(&mut self, question: &str, is_it: impl Fn(&str) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            self.say(question);
            let answer = self.hear_line(|line| line.starts_with(['=', '!']));
            if is_it(&answer) {
                return;
            }
            assert!(begun.elapsed() < LONGEST, "{question}: {answer}");
            std::thread::yield_now();
        }
    }

    /// Numbers came one after the other.
    pub fn assert_in_order(&self) {
        let joined = self.all[0].rsplit_once('#').unwrap().1.parse().unwrap();
        let numbers =
            self.all.iter().filter_map(|line| line.strip_prefix('#')?.split(' ').next()?.parse::<u64>().ok());
        let numbers: Vec<u64> = numbers.filter(|&number| number > joined).collect();
        let expected: Vec<u64> = (joined + 1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "{:?}", self.all);
    }
}
