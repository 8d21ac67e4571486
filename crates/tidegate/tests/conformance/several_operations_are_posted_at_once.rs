//! [`Policy::posted_sends`] and [`Policy::posted_receives`]: so many are in flight on one connection, where the model
//! can keep their order; bytes arrive as they were sent on every model.

use std::io::Write;
use std::net::Shutdown;
use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::{Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit::{self, Ending, Tape};

on_every_model!(case);

const SENDS: usize = 4;
const RECEIVES: usize = 3;
const PIECE: usize = 100_000;
const TOTAL: u64 = 20 * PIECE as u64;

/// Checks what it is sent; then says piece after piece, each by itself, whether the last one was taken or not.
struct Talker {
    heard: Tape,
    to_hear: u64,
    says: Tape,
    at: u64,
}

impl Session for Talker {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.heard.check(TOTAL - self.to_hear, input);
        self.to_hear -= input.len() as u64;
        if self.to_hear == 0 {
            out.wake_at(out.now());
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, _timer: Mail, out: &mut Outbox<'_>) -> Flow {
        let left = (TOTAL - self.at).min(PIECE as u64) as usize;
        let end = self.at + left as u64;
        while self.at < end {
            let piece = self.says.piece(self.at, (end - self.at) as usize);
            self.at += piece.len() as u64;
            out.share(piece);
        }
        if self.at < TOTAL {
            out.wake_at(out.now() + Duration::from_millis(1));
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let (heard, says) = (Tape::new(3), Tape::new(4));
    let policy = kit::policy(model)
        .posted_sends(SENDS)
        .posted_receives(RECEIVES)
        .socket_send_buffer(Some(16 * 1024))
        .outbox(OutboxMarks::default().low(0).high(2 * TOTAL as usize))
        .threads(if model == Model::Blocking { None } else { NonZeroUsize::new(1) });
    let talker = (heard.clone(), says.clone());
    let make = move || Talker { heard: talker.0.clone(), to_hear: TOTAL, says: talker.1.clone(), at: 0 };
    let server = kit::serve(model, policy, kit::sessions(make));
    let mut stream = kit::connect_narrow(server.local_addr());
    let (receives, sends) = match model {
        Model::Iocp => (RECEIVES, SENDS),
        Model::Overlapped => (1, SENDS),
        Model::Uring | Model::Rio => (1, 1),
        _ => (0, 0), // it posts nothing
    };
    let are_outstanding = |what: &str, operations: usize| {
        let what = format!("{operations} operations are outstanding on {model}, {what}");
        let outstanding = || server.stats().outstanding;
        kit::until(&what, || operations == 0 || outstanding() == operations as u64);
    };
    stream.write_all(&heard.first(1)).expect("send");
    are_outstanding("while nobody speaks", receives);
    let rest = heard.first(TOTAL as usize);
    rest[1..].chunks(7_777).for_each(|chunk| kit::send_all(&mut stream, chunk).expect("send"));
    are_outstanding("while nobody listens", receives + sends);
    says.check(0, &kit::hear(&mut stream, TOTAL as usize));
    stream.shutdown(Shutdown::Write).expect("finish");
    assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
    kit::finish(server);
}
