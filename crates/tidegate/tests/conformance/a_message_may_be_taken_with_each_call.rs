//! A session that takes one message with each call is called again for the next, without new input; hundreds of
//! messages that came at once are answered in order, others have their turn meanwhile, and the end of the peer is
//! reported behind the last.

use std::io::Write;
use std::net::Shutdown;

use tidegate::{Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Answers a line with its number.
#[derive(Default)]
struct Lines(u32);

impl Session for Lines {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            return Consumed::bytes(0).again();
        };
        out.write(format!("{} ", self.0).as_bytes());
        self.0 += 1;
        Consumed::bytes(end + 1).again()
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"end");
        Flow::Close
    }
}

const LINES: u32 = 5_000;

fn case(model: Model) {
    for policy in [kit::with_threads(model, 1), kit::tight(model)] {
        let server = kit::serve(model, policy, kit::sessions(Lines::default));
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(b"\n\n\npart").expect("send");
        assert_eq!(kit::hear(&mut stream, 6), b"0 1 2 ");
        let lines = format!(" of a line\n{}", "\n".repeat(LINES as usize - 4));
        stream.write_all(lines.as_bytes()).expect("send");
        stream.shutdown(Shutdown::Write).expect("shut down");
        let expected: String = (3..LINES).map(|n| format!("{n} ")).collect();
        assert_eq!(kit::hear_all(&mut stream), ((expected + "end").into_bytes(), Ending::EndOfStream));
        kit::finish(server);
    }
}
