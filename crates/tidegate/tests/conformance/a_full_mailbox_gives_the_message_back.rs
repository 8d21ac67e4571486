//! While a session holds its thread, its mailbox takes as many messages as the policy says. What it refuses comes back
//! to the sender, and goes through when there is room again: nothing is lost, and nothing comes twice.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tidegate::{Consumed, Flow, Mail, Mailbox, MailboxError, Model, Outbox, Recipient, SendError, Session};

use crate::kit;

on_every_model!(case);

const MAIL_QUEUE: usize = 3;
const SENT: u8 = 10;

/// Gives its mailbox away when it is spoken to, and then holds its thread until the case lets it go on.
struct Holder {
    mailboxes: Sender<Mailbox<u8>>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl Recipient for Holder {
    type Message = u8;
}

impl Session for Holder {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.mailboxes.send(Self::mailbox(out)).expect("the case waits for it");
        self.go_on.lock().expect("nobody panics").recv().expect("the case says so");
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Message(message) = mail else { return Flow::Abort };
        out.write(&[Self::unpack(message)]);
        Flow::Continue
    }
}

fn case(model: Model) {
    let ((mailboxes, given), (release, go_on)) = (channel(), channel());
    let go_on = Arc::new(Mutex::new(go_on));
    let service = kit::sessions(move || Holder { mailboxes: mailboxes.clone(), go_on: go_on.clone() });
    let server = kit::serve(model, kit::with_threads(model, 1).mail_queue(MAIL_QUEUE), service);
    let mut caller = kit::connect(server.local_addr());
    caller.write_all(b"hold").expect("send");
    let mailbox = given.recv().expect("a mailbox");
    let refused: Vec<u8> = (0..SENT)
        .filter_map(|n| mailbox.send(n).err())
        .map(|SendError { error, message, .. }| {
            assert_eq!(error, MailboxError::Full);
            message
        })
        .collect();
    assert_eq!(refused, (MAIL_QUEUE as u8..SENT).collect::<Vec<_>>());
    release.send(()).expect("it waits");
    for message in refused {
        kit::until("there is room", || mailbox.send(message).is_ok());
    }
    assert_eq!(kit::hear(&mut caller, SENT.into()), (0..SENT).collect::<Vec<_>>());
    drop(caller);
    kit::finish(server);
}
