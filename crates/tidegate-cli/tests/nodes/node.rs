//! A broker that keeps what it is told, nodes of the messenger, and members.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;

use crate::kit::{Broker, Guard, LONGEST, Lines, TIDEGATE};

/// A broker with JetStream on a port that stays the same over restarts.
pub struct Store {
    broker: Option<Broker>,
    port: u16,
    folder: tempfile::TempDir,
    args: Vec<String>,
}

impl Store {
    /// None if there is no nats-server.
    pub fn new(args: &[&str]) -> Option<Self> {
        // Nobody else is given this port while it is used and was used just now.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut store = Self { broker: None, port, folder: tempfile::tempdir().unwrap(), args };
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

    pub fn restart(&mut self) {
        let port = self.port.to_string();
        let mut args = vec!["-p", &port, "-js", "-sd", self.folder.path().to_str().unwrap()];
        args.extend(self.args.iter().map(String::as_str));
        self.broker = Broker::start(&args);
    }
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
        let args = [&["--metrics", "127.0.0.1:0"], args].concat();
        let mut command = Self::command(broker, name, &args);
        let (stderr, writer) = std::io::pipe().unwrap();
        let node = Self::started(command.stderr(writer));
        drop(command); // the node alone has the other end
        let line = Lines::of(stderr).wait_for("metrics on http://");
        let addr = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned();
        (node, addr)
    }

    fn command(broker: &str, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(TIDEGATE);
        command
            .args(["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "0", "--threads", "2"])
            .args(["--nats", broker, "--node", name, "--node-timeout", "3s"])
            .args(args);
        command
    }

    fn started(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let process = Guard(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        let addr = url.split_once("://").map_or(&*url, |(_, rest)| rest).trim_end_matches('/').to_owned();
        assert!(line.starts_with("listening on "), "{line:?}");
        Self { process, addr, url }
    }

    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
    }

    /// Ends it with a signal, as one does.
    pub fn end(mut self) {
        self.process.signal(Signal::TERM);
        assert!(self.process.0.wait().unwrap().success());
    }
}

/// A member that speaks lines.
pub struct Member {
    stream: TcpStream,
    lines: mpsc::Receiver<String>,
    /// Everything it was told.
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
