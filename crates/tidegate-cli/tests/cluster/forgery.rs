//! What somebody who may publish at the broker makes up for agents and their lead.

use crate::harness;
use libtest_mimic::Trial;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::{Broker, LONGEST, begin, finish, server, stderr, talking_agent};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            an_agent_sends_no_request_that_a_host_hides,
            an_agent_takes_so_many_parts_of_a_run_and_no_more,
            a_lead_survives_what_an_agent_makes_up
        ],
    )
}

/// Somebody at the broker, in the text that NATS speaks.
struct Somebody {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    /// The beginning of a line.
    line: String,
}

impl Somebody {
    fn at(broker: &Broker) -> Self {
        let mut stream = TcpStream::connect(broker.url.trim_start_matches("nats://")).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        let input = BufReader::new(stream.try_clone().unwrap());
        stream.write_all(b"CONNECT {\"verbose\":false}\r\nSUB answers 1\r\n").unwrap();
        Self { stream, input, line: String::new() }
    }

    /// Hears this too; each subscription has a number of its own.
    fn subscribe(&mut self, subject: &str, number: u32) {
        write!(self.stream, "SUB {subject} {number}\r\n").unwrap();
    }

    fn publish(&mut self, subject: &str, reply: &str, body: &Value) {
        let text = json!({"version": 3, "body": body}).to_string();
        write!(self.stream, "PUB {subject} {reply} {}\r\n{text}\r\n", text.len()).unwrap();
    }

    /// The next message: where it may be answered, and what it says.
    fn next(&mut self) -> (String, Value) {
        self.next_within(LONGEST).expect("a message")
    }

    /// The next message, unless the broker is silent for so long.
    fn next_within(&mut self, silence: Duration) -> Option<(String, Value)> {
        loop {
            self.stream.set_read_timeout(Some(silence)).unwrap();
            match self.input.read_line(&mut self.line) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None, // what came of a line is kept
                length => assert!(length.unwrap() > 0, "the broker has ended"),
            }
            let line = std::mem::take(&mut self.line);
            let Some(words) = line.strip_prefix("MSG ") else {
                if line.starts_with("PING") {
                    self.stream.write_all(b"PONG\r\n").unwrap();
                }
                continue;
            };
            let words: Vec<&str> = words.split_whitespace().collect();
            let mut payload = vec![0; words.last().unwrap().parse::<usize>().unwrap() + 2];
            self.stream.set_read_timeout(Some(LONGEST)).unwrap();
            self.input.read_exact(&mut payload).unwrap();
            let reply = if words.len() == 4 { words[2] } else { "" };
            let message: Value = serde_json::from_slice(&payload).unwrap();
            return Some((reply.to_owned(), message["body"].clone()));
        }
    }

    /// Asks the one agent that is there. Of several hails it may still answer one.
    fn ask(&mut self, agent: &str, body: &Value) -> Value {
        self.publish(&format!("tidegate.agent.{agent}"), "answers", body);
        std::iter::repeat_with(|| self.next().1).find(|answer| answer["id"].is_null()).unwrap()
    }

    /// Hails until the agent answers: the broker may know of a hail before it knows that the agent hears hails.
    fn agent(&mut self) -> String {
        for _ in 0..LONGEST.as_secs() {
            self.publish("tidegate.hail", "answers", &json!({"run": "r"}));
            if let Some((_, offer)) = self.next_within(Duration::from_secs(1)) {
                return offer["id"].as_str().unwrap().to_owned();
            }
        }
        panic!("no agent has answered");
    }
}

/// Asks for a part of run `r`.
fn work(share: u32, target: &str, host: &str) -> Value {
    let (none, second) = (json!({"secs": 0, "nanos": 0}), json!({"secs": 1, "nanos": 0}));
    let http = json!({
        "kind": "http", "host": host, "paths": ["/"], "method": "GET", "headers": [], "body": "",
        "after_response": "keep-alive", "pipeline": 1, "right_status": [{"start": 200, "end": 299}], "body_contains": null
    });
    let order = json!({
        "target": target, "protocol": http, "connections": 1, "amount": {"Requests": 1}, "rate_bytes_per_s_per_block": null,
        "messages_each": null, "rate": null, "warm_up": none, "ramp_connections": none, "timeout": second, "sources": null,
        "source_range": [], "model": "poll", "threads": 1, "tls": null, "part": [0, 1]
    });
    json!({
        "ask": "work", "run": "r", "share": share, "order": order, "began_mono_ns": null, "lease_ms": 60_000, "hold": false
    })
}

fn an_agent_sends_no_request_that_a_host_hides() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("http");
    let (_agent, _) = talking_agent(&broker.url, "a", &[]);
    let mut somebody = Somebody::at(&broker);
    let id = somebody.agent();
    for host in ["a\r\n\r\nGET /admin HTTP/1.1\r\nHost: a", "a\nX-Admin: 1", "a b"] {
        let answer = somebody.ask(&id, &work(0, &addr, host));
        assert_eq!(answer["answer"], "refused", "{answer}");
        assert!(answer["why"].as_str().unwrap().contains("the host"), "{answer}");
    }
    assert_eq!(somebody.ask(&id, &work(0, &addr, &addr))["answer"], "taken");
}

fn an_agent_takes_so_many_parts_of_a_run_and_no_more() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("http");
    let (agent, _) = talking_agent(&broker.url, "a", &[]);
    let mut somebody = Somebody::at(&broker);
    let id = somebody.agent();
    let answers: Vec<Value> = (0..300).map(|share| somebody.ask(&id, &work(share, &addr, &addr))).collect();
    assert_eq!(answers.iter().filter(|answer| answer["answer"] == "taken").count(), 16);
    assert!(answers[299]["why"].as_str().unwrap().contains("16 parts"), "{}", answers[299]);
    #[cfg(target_os = "linux")]
    {
        let threads = std::fs::read_dir(format!("/proc/{}/task", agent.0.id())).unwrap().count();
        assert!(threads < 64, "{threads} threads");
    }
    drop(agent);
}

fn a_lead_survives_what_an_agent_makes_up() {
    // 39 bytes: a head that announces a payload of 4 GiB, and nothing behind it.
    let bomb = "HISTFAAAAB942pNpmSz8HwgYIIAZSjOCiGuTlzDYf4AIAADaUAiD";
    for what in [
        json!({"event": "second", "second": second(1.0, 1), "latency_v2": bomb, "open": 1}),
        json!({"event": "second", "second": second(1e15, 1), "latency_v2": "", "open": 1}),
        json!({"event": "second", "second": second(1.0, u64::MAX), "latency_v2": "", "open": 1}),
        json!({"event": "ready", "attempted": u64::MAX, "connected": u64::MAX}),
        json!({"event": "beat", "clock": {"mono_ns": i64::MIN, "wall_ns": i64::MAX}}),
        json!({"event": "failed", "why": "\u{1b}[2J"}),
    ] {
        let broker = Broker::start(&[]).expect("nats-server");
        let mut agent = Somebody::at(&broker);
        agent.subscribe("tidegate.hail", 2);
        agent.subscribe("tidegate.agent.fake", 3);
        let rest = ["--agents", "1", "-c", "1", "--rate", "10", "-n", "10", "--agent-timeout", "6"];
        let child = begin("echo", "127.0.0.1:9", &broker.url, &rest);
        let run = loop {
            let (reply, body) = agent.next();
            let answer = match body["ask"].as_str() {
                None => json!({"id": "fake", "name": "fake", "busy": false}),
                Some("clock") => json!({"answer": "clock", "mono_ns": 1_000_000_000, "wall_ns": wall_ns()}),
                Some(_) => json!({"answer": "taken"}),
            };
            agent.publish(&reply, "", &answer);
            match body["ask"].as_str() {
                Some("work") => {
                    let run = body["run"].as_str().unwrap().to_owned();
                    say(&mut agent, &run, 0, &json!({"event": "ready", "attempted": 1, "connected": 1}));
                }
                Some("start") => break body["run"].as_str().unwrap().to_owned(),
                _ => {}
            }
        };
        say(&mut agent, &run, 1, &what);
        let output = finish(child);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{what}: {text}");
        assert!(!text.contains('\u{1b}') && !text.contains("panicked"), "{what}: {text}");
    }
}

fn say(agent: &mut Somebody, run: &str, number: u64, what: &Value) {
    let event = json!({"agent": "fake", "share": 0, "number": number, "what": what});
    agent.publish(&format!("tidegate.run.{run}.event"), "", &event);
}

fn wall_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

fn second(at_s: f64, requests: u64) -> Value {
    let latency = json!({
        "mean": 1.0, "stdev": 0.0, "min": 1, "p50": 1, "p75": 1, "p90": 1, "p99": 1, "p99_9": 1, "max": 1
    });
    json!({
        "at_s": at_s, "length_s": 1.0, "requests": requests, "failed": 0, "late_starts": 0, "in_flight": 1, "bytes_sent": 1,
        "bytes_received": 1, "latency_us": latency
    })
}
