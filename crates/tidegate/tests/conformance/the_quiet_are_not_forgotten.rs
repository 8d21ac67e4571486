//! More quiet connections than I/O threads: each is found again when it speaks, when mail or its timer comes, and when
//! the server stops.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Consumed, Flow, Mail, Mailbox, Model, Outbox, Recipient, Session};

use crate::kit;

on_every_model!(case);

const CONNECTIONS: usize = 12;
const THREADS: usize = 2;

type Members = Arc<Mutex<Vec<Mailbox<()>>>>;

/// Answers `t` after a while, and whatever its mail says.
struct Quiet(Members);

impl Recipient for Quiet {
    type Message = ();
}

impl Session for Quiet {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.0.lock().expect("room").push(Self::mailbox(out));
        out.write(b"heard");
        out.wake_at(out.now() + Duration::from_millis(50));
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Timer => out.write(b"timer"),
            _ => out.write(b"mail"),
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let room = Members::default();
    let its = room.clone();
    let threads = if model == Model::Blocking { None } else { NonZeroUsize::new(THREADS) };
    let policy = kit::policy(model).threads(threads);
    let server = kit::serve(model, policy, kit::sessions(move || Quiet(its.clone())));
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| kit::connect(server.local_addr())).collect();
    for stream in &mut streams {
        stream.write_all(b"x").expect("send");
    }
    for said in [&b"heard"[..], b"timer"] {
        for stream in &mut streams {
            assert_eq!(kit::hear(stream, said.len()), said);
        }
    }
    // All have been quiet for a while by now, and have no timer any more.
    for mailbox in room.lock().expect("room").iter() {
        mailbox.send(()).expect("mail");
    }
    for stream in &mut streams {
        assert_eq!(kit::hear(stream, 4), b"mail");
    }
    kit::finish(server); // nobody is in the middle of anything: it does not wait for them
}
