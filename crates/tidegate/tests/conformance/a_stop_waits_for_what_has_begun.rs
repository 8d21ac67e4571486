//! A stop closes connections that rest, and waits for those whose session says that it is in the middle of something;
//! the session can see that the server stops.

use std::io::Write;
use std::time::Duration;

use tidegate::{Activity, CloseReason, Consumed, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// A message ends with a full stop; it is answered with what was understood. `?` waits for work, `!` asks whether the
/// server stops.
#[derive(Default)]
struct Sentences(usize);

impl Session for Sentences {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input == b"!" {
            out.write(if out.is_draining() { b"stopping" } else { b"going on" });
            return Consumed::all(input);
        }
        self.0 += input.len();
        match input.last() {
            Some(b'.') => {
                out.set_activity(Activity::Nothing);
                let last = if out.is_draining() { " and the last" } else { "" };
                out.write(format!("{} bytes{last}", self.0).as_bytes());
            }
            Some(b'?') => out.set_activity(Activity::Work),
            _ => out.set_activity(Activity::Input),
        }
        out.write(b"|");
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let policy = kit::policy(model).drain_timeout(kit::slow(Duration::from_secs(45)));
    let server = kit::serve(model, policy, kit::sessions(Sentences::default));
    let begin = |words: &[u8], answer: &[u8]| {
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(words).expect("send");
        assert_eq!(kit::hear(&mut stream, answer.len()), answer);
        stream
    };
    let mut resting = begin(b"done.", b"5 bytes|");
    let mut in_message = begin(b"not", b"|");
    let mut at_work = begin(b"well?", b"|");
    server.stop();
    assert_eq!(kit::hear_all(&mut resting), (Vec::new(), Ending::EndOfStream));
    for stream in [&mut in_message, &mut at_work] {
        kit::until("it is notified", || {
            stream.write_all(b"!").expect("send");
            kit::hear(stream, 8) == b"stopping"
        });
    }
    in_message.write_all(b" yet.").expect("send");
    let answer = b"8 bytes and the last|".to_vec();
    assert_eq!(kit::hear_all(&mut in_message), (answer, Ending::EndOfStream));
    at_work.write_all(b".").expect("send");
    let answer = b"6 bytes and the last|".to_vec();
    assert_eq!(kit::hear_all(&mut at_work), (answer, Ending::EndOfStream));
    let stats = server.join();
    kit::check(&stats);
    assert_eq!(stats.closed_by(CloseReason::Finished), 3);
}
