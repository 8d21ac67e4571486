//! Mail from one session to fifty others, across I/O threads, and from a thread of the application's own: nothing is
//! lost, what one sender sent keeps its order, and it comes as the type that the session has declared. Mail to a
//! session that is gone does no harm.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Flow, Mail, Mailbox, MailboxError, Model, Outbox, Recipient, Session};

use crate::kit;

on_every_model!(case);

const MEMBERS: usize = 51;
const ROUNDS: u32 = 100;

type Members = Arc<Mutex<Vec<Mailbox<Letter>>>>;

/// What a member gets.
enum Letter {
    /// Said by another member.
    Byte(u8),
    /// Is to be read or dropped.
    Counted { _dropped: Arc<()> },
}

/// Passes each byte it hears on to everybody in the room, itself included.
struct Member(Members);

impl Recipient for Member {
    type Message = Letter;
}

impl Session for Member {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.lock().expect("room").push(Self::mailbox(out));
        out.write(b"in");
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
        for mailbox in self.0.lock().expect("room").iter() {
            for &byte in input {
                if mailbox.send(Letter::Byte(byte)).is_err() {
                    return Consumed::all(input).then(Flow::Abort);
                }
            }
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Message(message) = mail else { return Flow::Abort };
        if let Letter::Byte(byte) = Self::unpack(message) {
            out.write(&[byte]);
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let room = Members::default();
    let its = room.clone();
    let server =
        kit::serve(model, kit::policy(model), kit::sessions(move || Member(its.clone())).speaking_first());
    let mut members: Vec<_> = (0..MEMBERS).map(|_| kit::connect(server.local_addr())).collect();
    members.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 2), b"in"));

    let bytes: Vec<u8> = (0..ROUNDS as u8).collect();
    for part in bytes.chunks(7) {
        members[0].write_all(part).expect("send");
    }
    for stream in &mut members {
        assert_eq!(kit::hear(stream, bytes.len()), bytes, "from another session");
    }

    let mailboxes = room.lock().expect("room").clone();
    let foreign = mailboxes.clone();
    let thread = std::thread::spawn(move || {
        for byte in 0..ROUNDS as u8 {
            foreign.iter().for_each(|mailbox| mailbox.send(Letter::Byte(byte)).expect("mail"));
        }
    });
    for stream in &mut members {
        assert_eq!(kit::hear(stream, bytes.len()), bytes, "from a foreign thread");
    }
    thread.join().expect("foreign thread");

    // Half of them leave. Their mail is dropped, the others still get theirs.
    let gone = members.split_off(MEMBERS / 2);
    let left = gone.len() as u64;
    drop(gone);
    kit::until("they are gone", || server.stats().closed_by(CloseReason::Finished) == left);
    let letter = Arc::new(());
    for mailbox in &mailboxes {
        let _ = mailbox.send(Letter::Counted { _dropped: letter.clone() });
        let _ = mailbox.send(Letter::Byte(b'x'));
    }
    kit::until("letters are read or dropped", || Arc::strong_count(&letter) == 1);
    for stream in &mut members {
        assert_eq!(kit::hear(stream, 1), b"x");
    }
    drop(members);
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Aborted), 0);
    for mailbox in &mailboxes {
        let refused = mailbox.send(Letter::Byte(b'y')).expect_err("nobody takes it any more");
        assert_eq!(refused.error, MailboxError::Stopped);
        assert!(matches!(refused.message, Letter::Byte(b'y')));
    }
}
