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
/// A value is sent to each I/O thread once, however many members are on it, with one wake-up; each member receives the
/// same [`Arc`] as [`Mail::Group`](crate::Mail::Group). So the cost of sending depends on the number of threads, not of
/// members, and delivery runs on the members' threads. (`blocking`, `pool` and `tokio` have a queue for each
/// connection: there it costs one entry per member.)
///
/// A group has no lock. To share one, put it into a mutex together with the state that its order depends on: then all
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
    /// Keyed by the address of the mail sink, which is kept as long as its entry.
    mail_sinks: HashMap<usize, Members>,
    len: usize,
}

struct Members {
    mail_sink: Arc<dyn MailSink>,
    /// Shared with queued mail: a change meanwhile copies the list.
    tokens: Arc<Vec<Token>>,
}

impl Group {
    /// Adds the session with this address. A session added twice receives everything twice.
    ///
    /// While mail is under way this copies the list of the members of the same I/O thread, 8 bytes each.
    pub fn join<M>(&mut self, member: &Mailbox<M>) {
        let member = member.address();
        let members = self.mail_sinks.entry(address(&member.mail_sink));
        let members = members
            .or_insert_with(|| Members { mail_sink: member.mail_sink.clone(), tokens: Arc::default() });
        Arc::make_mut(&mut members.tokens).push(member.token);
        self.len += 1;
    }

    /// Removes the session with this address; `false` if it is not a member. Values sent earlier may still arrive.
    ///
    /// Looks through the members of the same I/O thread.
    pub fn leave<M>(&mut self, member: &Mailbox<M>) -> bool {
        let member = member.address();
        let address = address(&member.mail_sink);
        let Some(members) = self.mail_sinks.get_mut(&address) else { return false };
        let Some(at) = members.tokens.iter().position(|&token| token == member.token) else { return false };
        Arc::make_mut(&mut members.tokens).swap_remove(at);
        self.len -= 1;
        if members.tokens.is_empty() {
            self.mail_sinks.remove(&address);
        }
        true
    }

    /// Sends a value to all members or, on error, to none. Members that are gone are skipped.
    ///
    /// # Errors
    /// [`MailboxError::Full`] when the queue of one of the threads has no room for all its members
    /// ([`Policy::mail_queue`](crate::Policy::mail_queue)): values are sent faster than they are delivered.
    pub fn send<T: Any + Send + Sync>(&self, message: Arc<T>) -> Result<(), MailboxError> {
        if !self.mail_sinks.values().all(|members| members.mail_sink.has_room(members.tokens.len())) {
            return Err(MailboxError::Full);
        }
        // Dropped here if all members are gone: not an error of the sender.
        let message: Contained<Arc<dyn Any + Send + Sync>> = Contained::new(message);
        for members in self.mail_sinks.values() {
            members.mail_sink.post_all(&members.tokens, &message);
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
        f.debug_struct("Group").field("len", &self.len).field("threads", &self.mail_sinks.len()).finish()
    }
}

fn address(mail_sink: &Arc<dyn MailSink>) -> usize {
    Arc::as_ptr(mail_sink).cast::<()>() as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::proto::mail::{Address, SendError};
    use crate::proto::session::Mail;

    /// A mail sink that remembers what came, and has room for so much.
    struct TestSink {
        got: Mutex<Vec<(Token, u32)>>,
        room: usize,
    }

    impl MailSink for TestSink {
        fn post(&self, to: Token, mail: Mail) -> Result<(), SendError<Mail>> {
            let Mail::Group(value) = mail else { panic!("{mail:?} was not sent to a group") };
            self.got.lock().unwrap().push((to, *value.downcast_ref().unwrap()));
            Ok(())
        }

        fn has_room(&self, pieces: usize) -> bool {
            self.got.lock().unwrap().len() + pieces <= self.room
        }
    }

    fn mail_sink(room: usize) -> Arc<TestSink> {
        Arc::new(TestSink { got: Mutex::default(), room })
    }

    fn member(mail_sink: &Arc<TestSink>, index: u32) -> Mailbox<()> {
        Mailbox::of(Address { mail_sink: mail_sink.clone(), token: Token { index, generation: 0 } })
    }

    fn got(mail_sink: &TestSink) -> Vec<(u32, u32)> {
        mail_sink.got.lock().unwrap().iter().map(|(token, value)| (token.index, *value)).collect()
    }

    #[test]
    fn members_of_all_threads_get_everything_while_they_are_in() {
        let (here, there) = (mail_sink(100), mail_sink(100));
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
        let (here, there) = (mail_sink(100), mail_sink(1));
        let mut group = Group::default();
        for member in [member(&here, 1), member(&there, 1)] {
            group.join(&member);
        }
        group.send(Arc::new(10_u32)).unwrap();
        assert_eq!(group.send(Arc::new(11_u32)), Err(MailboxError::Full));
        assert_eq!((got(&here), got(&there)), (vec![(1, 10)], vec![(1, 10)]));
    }
}
