//! A stream that breaks off is never shown to its session as one that has ended, whatever else goes on then: a half
//! would be taken for the whole.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Model, Outbox, Policy, Session};

use crate::kit::{self, HoldableEcho, Witness};

on_every_model!(case);

const ANSWER: usize = 100 << 10;

fn case(model: Model) {
    resets(model, kit::with_threads(model, 1), Acts::Works);
    // Less of the answer fits into the buffers than is sent at once, and the server goes on to receive.
    let policy = kit::with_threads(model, 1)
        .socket_send_buffer(Some(8 << 10))
        .outbox(OutboxMarks::default().low(ANSWER).high(2 * ANSWER));
    resets(model, policy, Acts::Answers);
}

/// Peers break off right behind their data, while the thread is busy: when it comes to them, all of that is there.
fn resets(model: Model, policy: Policy, acts: Acts) {
    const CONNECTIONS: usize = 10;
    let (make, thread) = HoldableEcho::parts();
    let witness = Arc::new(Witness::default());
    let seen = witness.clone();
    let service = kit::sessions(move || Cut { acts, works: false, witness: seen.clone(), holds: make() });
    let server = kit::serve(model, policy, service);
    let mut holder = kit::connect(server.local_addr());
    for _ in 0..CONNECTIONS {
        let mut stream = kit::connect_narrow(server.local_addr());
        begin(&mut stream, acts);
        thread.hold(&mut holder);
        if acts == Acts::Works {
            stream.write_all(b"the half").expect("send");
        }
        kit::reset(stream);
        thread.release();
        assert_eq!(kit::hear(&mut holder, 1), HoldableEcho::HOLD);
    }
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == CONNECTIONS as u64);
    drop(holder);
    // Else the stop may be there first.
    kit::until("the one that held the thread has ended", || witness.ends.load(SeqCst) > 0);
    kit::finish(server);
    assert_eq!(witness.ends.load(SeqCst), 1, "{acts:?}: only the one that held the thread has ended");
}

/// The connection is established, and if it answers, waits for room in the buffers.
fn begin(stream: &mut TcpStream, acts: Acts) {
    stream.write_all(b"?").expect("send");
    kit::hear(stream, 1);
    if acts == Acts::Answers {
        stream.write_all(b"go").expect("send");
        let mut there = [0; ANSWER / 10];
        kit::until("some of it has left", || stream.peek(&mut there).expect("peek") == there.len());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acts {
    /// Leaves what comes until some work is done, and receives nothing meanwhile.
    Works,
    /// Answers at length.
    Answers,
}

/// Echoes a question, and holds its thread when it is to.
struct Cut {
    acts: Acts,
    works: bool,
    witness: Arc<Witness>,
    holds: HoldableEcho,
}

impl Session for Cut {
    fn on_open(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match self.acts {
            _ if input == b"?" || input == HoldableEcho::HOLD => return self.holds.on_bytes(input, out),
            Acts::Works if !std::mem::replace(&mut self.works, true) => {
                out.set_activity(Activity::Work);
                out.wake_at(out.now() + Duration::from_millis(20));
                return Consumed::bytes(0);
            }
            Acts::Works => {}
            Acts::Answers if input == b"go" => out.write(&[7; ANSWER]),
            Acts::Answers => {}
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, _timer: Mail, out: &mut Outbox<'_>) -> Flow {
        out.set_activity(Activity::Nothing);
        Flow::Continue
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}
