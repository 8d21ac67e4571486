//! What a session says on mail or on a timer is sent to its end, however many pieces it has and however little
//! one turn may do: nothing else wakes that connection.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Consumed, Flow, Mail, Mailbox, Model, Outbox, Recipient, Session};

use crate::kit::{self, Tape};

on_every_model!(case);

/// More than one system call sends at once, and small enough that the kernel takes them without waiting.
const PIECES: usize = 500;
const PIECE: usize = 30;

struct Quiet {
    tape: Tape,
    address: Arc<Mutex<Option<Mailbox<()>>>>,
}

impl Recipient for Quiet {
    type Message = ();
}

impl Session for Quiet {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.wake_at(out.now() + Duration::from_millis(20));
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        for i in 0..PIECES {
            out.share(self.tape.piece((i * PIECE) as u64, PIECE));
        }
        if let Mail::Timer = mail {
            *self.address.lock().expect("address") = Some(Self::mailbox(out));
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let tape = Tape::new(14);
    let address = Arc::new(Mutex::new(None));
    let (its, at) = (tape.clone(), address.clone());
    let service = kit::sessions(move || Quiet { tape: its.clone(), address: at.clone() });
    let policy = kit::tight(model).socket_send_buffer(None);
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"?").expect("send");
    tape.check(0, &kit::hear(&mut stream, PIECES * PIECE));
    let mailbox = address.lock().expect("address").clone().expect("known since the timer");
    for _ in 0..20 {
        mailbox.send(()).expect("mail");
        tape.check(0, &kit::hear(&mut stream, PIECES * PIECE));
    }
    drop(stream);
    kit::finish(server);
}
