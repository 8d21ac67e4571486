//! When a stop begins, every open session is notified once, before anything else that follows from it; it goes on as it
//! answers.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Activity, CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Records its calls, under the name that its peer gave it.
struct Diary {
    name: u8,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Diary {
    fn note(&self, what: &str) {
        self.lines.lock().expect("lines").push(format!("{}: {what}", char::from(self.name)));
    }
}

impl Session for Diary {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if self.name == 0 {
            self.name = input[0];
            out.set_activity(if self.name == b'w' { Activity::Work } else { Activity::Nothing });
        } else {
            out.set_activity(Activity::Nothing); // its work is done
        }
        out.write(if out.is_draining() { b"!" } else { b"." });
        Consumed::all(input)
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.note(if out.is_draining() { "drain" } else { "not draining" });
        match self.name {
            b'c' => {
                out.write(b"I go");
                Flow::Close
            }
            b'a' => Flow::Abort,
            b'w' => {
                out.write(b"I work");
                Flow::Continue
            }
            _ => Flow::Continue,
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        self.note("leave");
        out.write(b"bye");
    }

    fn on_close(&mut self, why: CloseReason) {
        self.note(why.name());
    }
}

fn case(model: Model) {
    let policy = kit::policy(model).drain_timeout(kit::slow(Duration::from_secs(45)));
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let its = lines.clone();
    let server = kit::serve(model, policy, kit::sessions(move || Diary { name: 0, lines: its.clone() }));
    let mut streams = [*b"r", *b"c", *b"a", *b"w"].map(|name| {
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(&name).expect("send");
        assert_eq!(kit::hear(&mut stream, 1), b".");
        stream
    });
    server.stop();
    server.stop(); // twice is once
    let [rests, closes, aborts, works] = &mut streams;
    assert_eq!(kit::hear_all(rests), (b"bye".to_vec(), Ending::EndOfStream));
    assert_eq!(kit::hear_all(closes), (b"I go".to_vec(), Ending::EndOfStream));
    assert_eq!(kit::hear_all(aborts), (Vec::new(), Ending::Reset));
    assert_eq!(kit::hear(works, 6), b"I work");
    works.write_all(b"done").expect("send");
    assert_eq!(kit::hear_all(works), (b"!bye".to_vec(), Ending::EndOfStream));
    kit::check(&server.join());
    let of = |name: char| -> Vec<String> {
        let lines = lines.lock().expect("lines");
        lines.iter().filter_map(|line| line.strip_prefix(name)).map(|line| line[2..].to_owned()).collect()
    };
    assert_eq!(of('r'), ["drain", "leave", "finished"]);
    assert_eq!(of('c'), ["drain", "finished"]);
    assert_eq!(of('a'), ["drain", "aborted"]);
    assert_eq!(of('w'), ["drain", "leave", "finished"]);
}
