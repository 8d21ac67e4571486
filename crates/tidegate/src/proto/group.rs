//! The same mail for many sessions, in one order.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::mail::{MailSink, Mailbox, MailboxError};
use super::panics::Contained;
use super::table::Token;

/// Sessions that get the same mail, in the same order: the members of a chat room, the watchers of a price.
///
/// A value goes to each I/O thread once, however many members live there, with one wake-up; each member is shown the
/// same [`Arc`] as [`Mail::Group`](crate::Mail::Group). So sending costs what the threads cost, not the members, and
/// the work of the members is done where they live. (`blocking`, `pool` and `tokio` have a queue for each connection:
/// there it costs one entry a member.)
///
/// A group has no lock of its own. Who shares one puts it beside what the order depends on, into one mutex: then all
/// members see one order, and a member that joins knows exactly what it has missed.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use tidegate::{Group, Outbox};
/// struct Room { said: u64, members: Group }
///
/// fn say(room: &Mutex<Room>, text: &str) {
///     let mut room = room.lock().expect("nothing panics under the lock");
///     let message = Arc::new((room.said, text.to_owned()));
///     if room.members.send(message).is_ok() {
///         room.said += 1;
///     }
/// }
/// ```
#[derive(Default)]
pub struct Group {
    /// By the address of the office, which is kept as long as its entry.
    offices: HashMap<usize, Members>,
    len: usize,
}

struct Members {
    office: Arc<dyn MailSink>,
    /// Shared with mail under way: a change while there is some makes a new list.
    tokens: Arc<Vec<Token>>,
}

impl Group {
    /// Adds the session with this address; once, or it gets everything twice.
    ///
    /// While mail is under way this copies the list of the members of the same I/O thread, 8 bytes each.
    pub fn join(&mut self, member: &Mailbox) {
        let members = self.offices.entry(address(&member.office));
        let members =
            members.or_insert_with(|| Members { office: member.office.clone(), tokens: Arc::default() });
        Arc::make_mut(&mut members.tokens).push(member.token);
        self.len += 1;
    }

    /// Takes the session with this address out; `false` if it is not in. What was sent before may still reach it.
    ///
    /// Looks through the members of the same I/O thread.
    pub fn leave(&mut self, member: &Mailbox) -> bool {
        let address = address(&member.office);
        let Some(members) = self.offices.get_mut(&address) else { return false };
        let Some(at) = members.tokens.iter().position(|&token| token == member.token) else { return false };
        Arc::make_mut(&mut members.tokens).swap_remove(at);
        self.len -= 1;
        if members.tokens.is_empty() {
            self.offices.remove(&address);
        }
        true
    }

    /// Sends a value to all members, or, if it is refused, to none. A member that is gone is passed over.
    ///
    /// # Errors
    /// [`MailboxError::Full`] when the queue of one of the threads has no room for all members that live there
    /// ([`Policy::mail_queue`](crate::Policy::mail_queue)): more is sent than can be handed out.
    pub fn send<T: Any + Send + Sync>(&self, message: Arc<T>) -> Result<(), MailboxError> {
        if !self.offices.values().all(|members| members.office.has_room(members.tokens.len())) {
            return Err(MailboxError::Full);
        }
        // Dropped here, if all members are gone: that is not the sender's fault.
        let message: Contained<Arc<dyn Any + Send + Sync>> = Contained::new(message);
        for members in self.offices.values() {
            members.office.post_all(&members.tokens, &message);
        }
        Ok(())
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("len", &self.len).field("threads", &self.offices.len()).finish()
    }
}

fn address(office: &Arc<dyn MailSink>) -> usize {
    Arc::as_ptr(office).cast::<()>() as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::service::Mail;

    /// An office that remembers what came, and has room for so much.
    struct Office {
        got: Mutex<Vec<(Token, u32)>>,
        room: usize,
    }

    impl MailSink for Office {
        fn post(&self, to: Token, mail: Mail) -> Result<(), MailboxError> {
            let Mail::Group(value) = mail else { panic!("{mail:?} was not sent to a group") };
            self.got.lock().unwrap().push((to, *value.downcast_ref().unwrap()));
            Ok(())
        }

        fn has_room(&self, pieces: usize) -> bool {
            self.got.lock().unwrap().len() + pieces <= self.room
        }
    }

    fn office(room: usize) -> Arc<Office> {
        Arc::new(Office { got: Mutex::default(), room })
    }

    fn member(office: &Arc<Office>, index: u32) -> Mailbox {
        Mailbox { office: office.clone(), token: Token { index, generation: 0 } }
    }

    fn got(office: &Office) -> Vec<(u32, u32)> {
        office.got.lock().unwrap().iter().map(|(token, value)| (token.index, *value)).collect()
    }

    #[test]
    fn members_of_all_threads_get_everything_while_they_are_in() {
        let (here, there) = (office(100), office(100));
        let mut group = Group::default();
        for member in [member(&here, 1), member(&here, 2), member(&there, 1)] {
            group.join(&member);
        }
        group.send(Arc::new(10_u32)).unwrap();
        assert!(group.leave(&member(&here, 1)));
        assert!(!group.leave(&member(&here, 1)), "it has left already");
        group.send(Arc::new(11_u32)).unwrap();
        assert_eq!(got(&here), [(1, 10), (2, 10), (2, 11)]);
        assert_eq!(got(&there), [(1, 10), (1, 11)]);
        assert!(group.leave(&member(&here, 2)) && group.leave(&member(&there, 1)) && group.is_empty());
        group.send(Arc::new(12_u32)).unwrap();
        assert_eq!(got(&there).len(), 2);
    }

    #[test]
    fn what_one_thread_has_no_room_for_reaches_nobody() {
        let (here, there) = (office(100), office(1));
        let mut group = Group::default();
        for member in [member(&here, 1), member(&there, 1)] {
            group.join(&member);
        }
        group.send(Arc::new(10_u32)).unwrap();
        assert_eq!(group.send(Arc::new(11_u32)), Err(MailboxError::Full));
        assert_eq!((got(&here), got(&there)), (vec![(1, 10)], vec![(1, 10)]));
    }
}
