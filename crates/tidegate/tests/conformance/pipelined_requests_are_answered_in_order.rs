//! Thousands of requests in one write are all answered, in order, even where the answers are far
//! larger than the outbox and the session has to stop in the middle of its input.

use std::io::{BufRead, BufReader};
use std::net::Shutdown;
use std::thread;

use tidegate::{Consumed, Flow, Model, Outbox, Policy, Session};

use crate::kit;

on_every_model!(case);

/// Answers each line with the line, padded to a width. Stops reading while the outbox is full.
struct Lines {
    width: usize,
}

impl Session for Lines {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        while let Some(length) = input[used..].iter().position(|&b| b == b'\n') {
            if out.is_full() {
                break; // the rest is shown again once the outbox has drained
            }
            let mut answer = input[used..used + length].to_vec();
            answer.resize(self.width.max(length), b'.');
            answer.push(b'\n');
            out.write(&answer);
            used += length + 1;
        }
        Consumed::bytes(used)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }
}

fn case(model: Model) {
    round(model, kit::policy(model), 20_000, 0);
    round(model, kit::policy(model), 4_000, 2_000);
    round(model, kit::tight(model), 1_000, 500);
}

fn round(model: Model, policy: Policy, requests: usize, width: usize) {
    let server = kit::serve(model, policy, kit::sessions(move || Lines { width }));
    let addr = server.local_addr();
    thread::scope(|scope| {
        for caller in 0..3 {
            scope.spawn(move || {
                let mut stream = kit::connect(addr);
                let back = stream.try_clone().expect("clone");
                // One write for the standard library; the kernel takes it as fast as the server reads.
                let all: String = (0..requests).map(|i| format!("{caller} {i}\n")).collect();
                let writer = thread::spawn(move || {
                    kit::send_all(&mut stream, all.as_bytes()).expect("send");
                    stream.shutdown(Shutdown::Write).expect("finish");
                });
                let mut answers = 0;
                for (i, line) in BufReader::new(back).lines().enumerate() {
                    let line = line.expect("receive");
                    assert_eq!(line.trim_end_matches('.'), format!("{caller} {i}"));
                    assert!(line.len() >= width);
                    answers += 1;
                }
                assert_eq!(answers, requests, "all are answered before the end");
                writer.join().expect("writer");
            });
        }
    });
    kit::finish(server);
}
