//! A session may send before it has received anything, and may even close without ever having received.

use std::net::TcpStream;

use tidegate::{Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Tape};

on_every_model!(case);

const GREETING: usize = 300_000;

struct Host {
    tape: Tape,
    farewell: bool,
}

impl Session for Host {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&self.tape.first(GREETING));
        if self.farewell { Flow::Close } else { Flow::Continue }
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let tape = Tape::new(3);
    for farewell in [false, true] {
        let its = tape.clone();
        let service = kit::sessions(move || Host { tape: its.clone(), farewell }).speaking_first();
        let server = kit::serve(model, kit::policy(model), service);
        let callers: Vec<TcpStream> = (0..30).map(|_| kit::connect(server.local_addr())).collect();
        for mut stream in callers {
            tape.check(0, &kit::hear(&mut stream, GREETING));
            if farewell {
                assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
            } else {
                kit::exchange(&mut stream, b"and hello to you");
            }
        }
        let stats = kit::finish(server);
        assert_eq!(stats.accepted, 30);
    }
}
