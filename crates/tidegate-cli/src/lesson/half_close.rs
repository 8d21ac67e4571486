//! Half-close: a server that keeps its last answer until it knows what follows, and forgets it at the end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "half-close",
    about: "A client finishes sending, then reads. Does every answer arrive?",
    server: "The server at {addr} echoes records of 64 bytes. Like a decoder that looks ahead, it keeps the latest
record until it knows what follows it: another record, or the end of the input.",
    task: "A client sends 10 records, finishes sending (half-close), and goes on reading. Find out how many of the
10 records come back.",
    commands: &[
        "tidegate load echo {addr} -c 1 --messages 10 --window 10 --size 64 --half-close   # one client, 10 records",
        "tidegate load echo {addr} -c 5 --messages 10 --window 10 --size 64 --half-close   # 5 clients: is it the same for each?",
    ],
    question: Question::Number {
        unit: "records",
        tolerance_percent: 0.0,
        too_low: "the client got more back; look at `requests` in the report: answered, and failed.",
        too_high: "subtract from the 10 records of one client those that the report calls failed: the server still kept \
them when the input ended.",
    },
    explanation: "The end of the input is an event like any other: it says that nothing follows, not that the client has
gone. shutdown(2) with SHUT_WR ends one direction; the other one still carries answers. The server took the end for a
reason to close, and lost the answer it had kept. A session gets `on_end` for this: say what is left, then return
`Flow::Close`, which sends the outbox first. On every model the end arrives once, behind all bytes.",
    page: "model-differences.md",
    start,
    measure,
};

const RECORD: usize = 64;
const RECORDS: usize = 10;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(LookAhead { flushes: false }, host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let back = records_back(LookAhead { flushes: false })?;
    let evidence = format!("of {RECORDS} records, {back} came back before the end of the stream");
    Ok(Measured::number(back, evidence))
}

/// How many of ten records come back to a client that finishes sending behind them.
fn records_back(service: LookAhead) -> anyhow::Result<usize> {
    let (addr, _running) = host::serve(service, host::policy(), None, anywhere())?;
    let mut client = host::connect(addr)?;
    client.write_all(&[7; RECORD * RECORDS])?;
    client.shutdown(Shutdown::Write)?;
    let mut back = Vec::new();
    client.read_to_end(&mut back)?;
    Ok(back.len() / RECORD)
}

/// Echoes each record when the next one has come.
struct LookAhead {
    /// Whether the last one is sent at the end of the input. In the lesson it is not: that is the fault.
    flushes: bool,
}

struct LookAheadSession {
    flushes: bool,
    kept: Vec<u8>,
}

impl Service for LookAhead {
    type Session = LookAheadSession;

    fn open(&self, _: &Peer) -> Result<LookAheadSession, Refusal> {
        Ok(LookAheadSession { flushes: self.flushes, kept: Vec::new() })
    }
}

impl Session for LookAheadSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let records = input.chunks_exact(RECORD);
        let used = input.len() - records.remainder().len();
        for record in records {
            out.write(&self.kept);
            self.kept.clear();
            self.kept.extend_from_slice(record);
        }
        Consumed::bytes(used)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.flushes {
            out.write(&self.kept);
        }
        Flow::Close
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_is_lost_only_by_the_server_that_does_not_flush() {
        assert_eq!(records_back(LookAhead { flushes: false }).unwrap(), RECORDS - 1);
        assert_eq!(records_back(LookAhead { flushes: true }).unwrap(), RECORDS);
    }
}
