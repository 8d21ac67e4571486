//! Half-close, both ways: who has finished sending still receives everything.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Flow, Mail, Mailbox, Model, Outbox, Recipient, Session};

use crate::kit::{self, Ending, Tape, Witness};

on_every_model!(case, and over Unix sockets);

const BYTES: usize = 1 << 20;

fn case(model: Model) {
    the_client_finishes_first(model);
    the_server_finishes_first(model);
    the_server_answers_long_after_the_end(model);
}

/// Answers only once the peer has finished.
struct LateAnswer {
    tape: Tape,
    witness: Arc<Witness>,
}

impl Session for LateAnswer {
    fn on_open(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
        let at = self.witness.bytes.fetch_add(input.len() as u64, SeqCst);
        self.tape.check(at, input);
        Consumed::all(input)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        out.write(&self.tape.first(BYTES));
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

fn the_client_finishes_first(model: Model) {
    let tape = Tape::new(1);
    let witness = Arc::new(Witness::default());
    let (seen, its) = (witness.clone(), tape.clone());
    let service = kit::sessions(move || LateAnswer { tape: its.clone(), witness: seen.clone() });
    let server = kit::serve(model, kit::policy(model), service);
    let mut stream = kit::connect(server.local_addr());
    kit::send_all(&mut stream, &tape.first(BYTES)).expect("send");
    stream.shutdown(Shutdown::Write).expect("finish");
    let (heard, ending) = kit::hear_all(&mut stream);
    assert_eq!((heard.len(), ending), (BYTES, Ending::EndOfStream));
    tape.check(0, &heard);
    let stats = kit::finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), (BYTES as u64, BYTES as u64));
    assert_eq!(witness.bytes.load(SeqCst), BYTES as u64);
    assert_eq!(witness.ends.load(SeqCst), 1);
    assert_eq!(witness.closings(), [CloseReason::Finished]);
}

/// Says goodbye on the first byte and goes on listening.
struct Goodbye {
    tape: Tape,
    witness: Arc<Witness>,
}

impl Session for Goodbye {
    fn on_open(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let at = self.witness.bytes.fetch_add(input.len() as u64, SeqCst);
        self.tape.check(at, input);
        if at > 0 {
            return Consumed::all(input);
        }
        out.write(b"goodbye");
        Consumed::all(input).then(Flow::Shutdown)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Continue // both sides have finished: that closes it
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

fn the_server_finishes_first(model: Model) {
    let tape = Tape::new(2);
    let witness = Arc::new(Witness::default());
    let (seen, its) = (witness.clone(), tape.clone());
    let service = kit::sessions(move || Goodbye { tape: its.clone(), witness: seen.clone() });
    let server = kit::serve(model, kit::policy(model), service);
    let mut stream = kit::connect(server.local_addr());
    let bytes = tape.first(BYTES);
    stream.write_all(&bytes[..10]).expect("send");
    assert_eq!(kit::hear_all(&mut stream), (b"goodbye".to_vec(), Ending::EndOfStream));
    kit::send_all(&mut stream, &bytes[10..]).expect("send after the server has finished");
    kit::until("all of it is received", || witness.bytes.load(SeqCst) == BYTES as u64);
    assert_eq!(witness.closings(), [], "one side is still open");
    stream.shutdown(Shutdown::Write).expect("finish");
    kit::until("the session is closed", || !witness.closings().is_empty());
    assert_eq!(witness.ends.load(SeqCst), 1);
    assert_eq!(witness.closings(), [CloseReason::Finished]);
    kit::finish(server);
}

/// Waits after the peer's end for mail with the answer.
struct Patient {
    address: Arc<Mutex<Option<Mailbox<String>>>>,
}

impl Recipient for Patient {
    type Message = String;
}

impl Session for Patient {
    fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        *self.address.lock().expect("address") = Some(Self::mailbox(out));
        Flow::Continue
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Message(message) = mail else { return Flow::Continue };
        out.write(Self::unpack(message).as_bytes());
        Flow::Close
    }
}

fn the_server_answers_long_after_the_end(model: Model) {
    let address = Arc::new(Mutex::new(None));
    let its = address.clone();
    let server =
        kit::serve(model, kit::policy(model), kit::sessions(move || Patient { address: its.clone() }));
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"question").expect("send");
    stream.shutdown(Shutdown::Write).expect("finish");
    let known = || address.lock().expect("address").clone();
    kit::until("the session knows of the end", || known().is_some());
    known().expect("an address").send("answer".to_string()).expect("mail");
    assert_eq!(kit::hear_all(&mut stream), (b"answer".to_vec(), Ending::EndOfStream));
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Finished), 1);
}
