//! Who has joined a group twice gets everything twice, also when the queue for its mail has room for one piece only: a
//! message is for all members or, on error, for none.

use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tidegate::{Consumed, Flow, Group, Mail, Model, Outbox, Recipient, Session};

use crate::kit;

on_every_model!(case);

struct Member(Arc<Mutex<Group>>);

impl Recipient for Member {
    type Message = Infallible;
}

impl Session for Member {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let own = Self::mailbox(out);
        let mut room = self.0.lock().expect("room");
        room.join(&own);
        room.join(&own);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Group(message) = mail else { return Flow::Abort };
        out.write(message.downcast_ref::<u8>().map_or(b"?", std::slice::from_ref));
        Flow::Continue
    }
}

fn case(model: Model) {
    let room = Arc::<Mutex<Group>>::default();
    let its = room.clone();
    let sessions = kit::sessions(move || Member(its.clone()));
    let server = kit::serve(model, kit::policy(model).mail_queue(1), sessions);
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b".").expect("send");
    assert_eq!(kit::hear(&mut stream, 1), b".", "it has joined");
    for said in *b"abc" {
        kit::until("there is room", || room.lock().expect("room").send(Arc::new(said)).is_ok());
        assert_eq!(kit::hear(&mut stream, 2), [said; 2]);
    }
    drop(stream);
    kit::finish(server);
}
