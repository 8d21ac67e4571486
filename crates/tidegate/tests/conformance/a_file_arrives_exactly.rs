//! [`Outbox::file`]: what was said before a part of a file, the part and what was said after it arrive in this order
//! and whole, for parts of every size, pipelined, and to a peer that has finished sending.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;

use tidegate::{CloseReason, Consumed, FileRange, Model, Outbox, Policy, Session};

use crate::kit::{self, Ending, Random, Tape};

on_every_model!(case);

/// Bytes of the file.
const TOTAL: usize = 3 << 20;

/// Answers `at bytes\n` with that part of the file, and a line before and after it.
struct Librarian(Arc<std::fs::File>);

impl Session for Librarian {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        while let Some(end) = input[used..].iter().position(|&b| b == b'\n') {
            if out.is_full() {
                break;
            }
            let line = std::str::from_utf8(&input[used..used + end]).expect("a line");
            let (at, bytes) = line.split_once(' ').expect("two numbers");
            let (at, bytes) = (at.parse().expect("where"), bytes.parse().expect("how many"));
            out.write(b"before\n");
            out.file(FileRange::new(self.0.clone(), at, bytes));
            out.write(b"after\n");
            used += end + 1;
        }
        Consumed::bytes(used)
    }
}

fn case(model: Model) {
    exchange(model, kit::policy(model));
    exchange(model, kit::tight(model));
}

fn exchange(model: Model, policy: Policy) {
    let content = Tape::new(3).first(TOTAL);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&content).expect("write");
    let file = Arc::new(file);
    let server = kit::serve(model, policy, kit::sessions(move || Librarian(file.clone())));

    let mut random = Random::new(11);
    let mut parts = vec![(0, 0), (0, 1), (TOTAL - 1, 1), (0, TOTAL), (TOTAL, 0), (4095, 4098)];
    for _ in 0..30 {
        let at = random.below(TOTAL as u64) as usize;
        parts.push((at, random.below(1 + ((TOTAL - at) / 20) as u64) as usize));
    }
    let mut stream = kit::connect(server.local_addr());
    let asked: String = parts.iter().map(|(at, bytes)| format!("{at} {bytes}\n")).collect();
    stream.write_all(asked.as_bytes()).expect("send");
    stream.shutdown(Shutdown::Write).expect("shutdown");
    let (heard, ending) = kit::hear_all(&mut stream);
    let mut expected = Vec::new();
    for &(at, bytes) in &parts {
        expected.extend_from_slice(b"before\n");
        expected.extend_from_slice(&content[at..at + bytes]);
        expected.extend_from_slice(b"after\n");
    }
    assert_eq!((heard.len(), ending), (expected.len(), Ending::EndOfStream));
    assert!(heard == expected, "other bytes than those of the file");
    let stats = kit::finish(server);
    assert_eq!(stats.bytes_out, expected.len() as u64);
    assert_eq!(stats.closed_by(CloseReason::Finished), 1);
}
