//! A group: what one member says, all get.

// ANCHOR: room
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::{
    CloseReason, Consumed, Flow, Group, Mail, Mailbox, MailboxError, Outbox, Peer, Recipient, Refusal,
    Service, Session,
};

/// A chat room of lines.
#[derive(Default)]
pub struct Room {
    members: Arc<Mutex<Group>>,
}

/// Somebody in the room.
pub struct Member {
    members: Arc<Mutex<Group>>,
    mailbox: Option<Mailbox<()>>,
}

impl Recipient for Member {
    type Message = (); // mail from the group has a separate type
}

impl Service for Room {
    type Session = Member;

    fn open(&self, _: &Peer) -> Result<Member, Refusal> {
        Ok(Member { members: self.members.clone(), mailbox: None })
    }
}

impl Member {
    fn with_all<T>(&self, act: impl FnOnce(&mut Group) -> T) -> T {
        act(&mut self.members.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Session for Member {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mailbox = self.mailbox.insert(Self::mailbox(out)).clone();
        self.with_all(|all| all.join(&mailbox));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Consumed::bytes(0) };
        let line: Arc<Vec<u8>> = Arc::new(input[..=end].to_vec()); // one copy for all members
        if self.with_all(|all| all.send(line)) == Err(MailboxError::Full) {
            out.write(b"* too much is said: say it again\n"); // and nobody has got it
        }
        Consumed::bytes(end + 1).again()
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Group(_) if out.is_full() => return Flow::Abort, // reads slower than the others talk
            Mail::Group(line) => out.write(line.downcast_ref::<Vec<u8>>().map_or(&[], Vec::as_slice)),
            _ => {}
        }
        Flow::Continue
    }

    fn on_close(&mut self, _: CloseReason) {
        if let Some(mailbox) = self.mailbox.take() {
            self.with_all(|all| all.leave(&mailbox));
        }
    }
}
// ANCHOR_END: room
