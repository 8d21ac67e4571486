//! With [`Flow::Linger`] a peer that is still sending reads the whole last answer and then the end, never a reset
//! before it (RFC 9112, section 9.6).

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use tidegate::{CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Tape};

on_every_model!(case);

const ANSWER: usize = 300_000;

/// Answers the first bytes, whatever follows.
struct Refuser {
    tape: Tape,
    flow: Flow,
}

impl Session for Refuser {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(&self.tape.first(ANSWER));
        // `Close` with input unread is treated as `Linger`; that `Linger` itself consumes all is allowed.
        let used = if self.flow == Flow::Linger { input.len() } else { 1 };
        Consumed::bytes(used).then(self.flow)
    }
}

fn case(model: Model) {
    for flow in [Flow::Linger, Flow::Close] {
        the_answer_is_read_while_sending(model, flow);
    }
    a_peer_that_stays_is_not_waited_for(model);
}

fn serve(model: Model, flow: Flow, linger_timeout: Duration, tape: &Tape) -> tidegate::Running {
    let tape = tape.clone();
    let policy = kit::policy(model).linger_timeout(linger_timeout);
    kit::serve(model, policy, kit::sessions(move || Refuser { tape: tape.clone(), flow }))
}

fn the_answer_is_read_while_sending(model: Model, flow: Flow) {
    let tape = Tape::new(8);
    let server = serve(model, flow, Duration::from_secs(45), &tape);
    for _ in 0..5 {
        let mut stream = kit::connect(server.local_addr());
        let upload = stream.try_clone().expect("clone");
        let sender = thread::spawn(move || send(upload));
        let (heard, ending) = kit::hear_all(&mut stream);
        assert_eq!((heard.len(), ending), (ANSWER, Ending::EndOfStream));
        tape.check(0, &heard);
        assert_eq!(sender.join().expect("sender"), Ok(()), "the upload is discarded, not reset");
    }
    kit::until("all are closed", || server.stats().open() == 0);
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Finished), 5);
}

fn send(mut stream: TcpStream) -> Result<(), String> {
    for _ in 0..100 {
        kit::send_all(&mut stream, &[b'u'; 50_000]).map_err(|e| e.to_string())?;
    }
    stream.shutdown(Shutdown::Write).map_err(|e| e.to_string())
}

fn a_peer_that_stays_is_not_waited_for(model: Model) {
    let tape = Tape::new(9);
    let server = serve(model, Flow::Linger, Duration::from_millis(200), &tape);
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"request").expect("send");
    let (heard, ending) = kit::hear_all(&mut stream);
    assert_eq!((heard.len(), ending), (ANSWER, Ending::EndOfStream));
    // The stream stays open, and says nothing more.
    kit::until("the server has closed its end", || server.stats().closed_by(CloseReason::Finished) == 1);
    kit::finish(server);
    drop(stream);
}
