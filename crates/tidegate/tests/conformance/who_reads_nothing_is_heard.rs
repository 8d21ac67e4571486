//! Both directions at once: while a send waits for a peer that reads nothing yet, what that peer sends is received.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tidegate::policy::OutboxMarks;
use tidegate::{CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Tape, Witness};

on_every_model!(case, and over Unix sockets);

/// What the server has to say: more than the kernel takes, less than the outbox.
const SAID: usize = 16 << 20;
const ASKED: usize = 1 << 20;

/// Says all it has with the first byte, and goes on listening.
struct Speaker {
    tape: Tape,
    witness: Arc<Witness>,
}

impl Session for Speaker {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let at = self.witness.bytes.fetch_add(input.len() as u64, SeqCst);
        self.tape.check(at, input);
        if at == 0 {
            out.write(&self.tape.first(SAID));
        }
        Consumed::all(input)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

fn case(model: Model) {
    let tape = Tape::new(3);
    let witness = Arc::new(Witness::default());
    let (seen, its) = (witness.clone(), tape.clone());
    let service = kit::sessions(move || Speaker { tape: its.clone(), witness: seen.clone() });
    let policy = kit::policy(model).outbox(OutboxMarks::default().low(SAID).high(2 * SAID));
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect_narrow(server.local_addr());
    let asked = tape.first(ASKED);
    let heard = || witness.bytes.load(SeqCst) as usize;
    let (first, rest) = asked.split_at(1);
    stream.write_all(first).expect("send");
    kit::until("the first byte is heard", || heard() == 1);
    kit::send_all(&mut stream, rest).expect("send while nothing is read");
    kit::until("all of it is heard", || heard() == ASKED);
    assert!((server.stats().bytes_out as usize) < SAID, "the kernel took all of it: nothing was waiting");
    stream.shutdown(Shutdown::Write).expect("finish");
    let (said, ending) = kit::hear_all(&mut stream);
    assert_eq!((said.len(), ending), (SAID, Ending::EndOfStream));
    tape.check(0, &said);
    let stats = kit::finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), (ASKED as u64, SAID as u64));
    assert_eq!(witness.closings(), [CloseReason::Finished]);
}
