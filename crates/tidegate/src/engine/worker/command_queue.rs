//! The commands of other threads to an I/O thread: mail, dials and the order to stop.

#[cfg(all(test, tidegate_loom))]
mod model;

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::policy::Policy;
use crate::proto::Token;
use crate::proto::dial::DialRequest;
use crate::proto::mail::{MailSink, MailboxError, SendError};
use crate::proto::panics::Contained;
use crate::service::Mail;
use sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};

/// What the command_queue shares between threads with: of the standard library, or of loom, which tries every order in
/// which the threads can run (see `model`).
mod sync {
    #[cfg(tidegate_loom)]
    pub(super) use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };
    #[cfg(not(tidegate_loom))]
    pub(super) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };
}

/// What another thread may ask of an I/O thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Mail for one of its connections.
    Mail(Token, Contained<Mail>),
    /// The same mail for several of them.
    Group(GroupMail),
    /// Make a connection.
    Dial(DialRequest),
    /// Serve a connection that another thread has accepted.
    Serve(Accepted),
    /// Go on with these limits.
    Policy(Arc<Policy>),
    /// Close a part of the connections: the kernel lacks memory.
    Shed,
    /// Stop accepting; let connections finish.
    Drain,
}

/// A connection on its way from the I/O thread that accepted it to the one that serves it: a socket as the loops of
/// the model know it, and the peer's address.
pub(crate) struct Accepted(Box<dyn Any + Send>);

impl Accepted {
    pub(crate) fn new<T: Send + 'static>(socket: T, peer: Option<SocketAddr>) -> Self {
        Self(Box::new((socket, peer)))
    }

    /// What it was made of. All threads of a server run the same loop, so it is never something else.
    pub(crate) fn open<T: 'static>(self) -> Option<(T, Option<SocketAddr>)> {
        self.0.downcast().ok().map(|content| *content)
    }
}

impl std::fmt::Debug for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accepted")
    }
}

/// One value for several connections of a thread.
#[derive(Debug)]
pub(crate) struct GroupMail {
    to: Arc<Vec<Token>>,
    /// So many have it.
    dispatched: usize,
    message: Contained<Arc<dyn Any + Send + Sync>>,
}

impl Iterator for GroupMail {
    type Item = (Token, Contained<Mail>);

    fn next(&mut self) -> Option<(Token, Contained<Mail>)> {
        let token = *self.to.get(self.dispatched)?;
        self.dispatched += 1;
        Some((token, Mail::Group(Arc::clone(&self.message)).into()))
    }
}

impl Command {
    /// The queue has not taken it; the error alone reports that to the caller.
    fn refused(self) {
        if let Self::Dial(request) = self {
            request.refused();
        }
    }

    /// Whether the bound of a queue holds for it. Connections have their places, and who writes to a group has asked
    /// for room.
    fn is_bounded(&self) -> bool {
        match self {
            Self::Drain | Self::Shed | Self::Policy(_) | Self::Group(_) | Self::Serve(_) => false,
            Self::Mail(_, mail) => mail.is_bounded(),
            Self::Dial(_) => true,
        }
    }

    /// Pieces of mail it counts as; anything else counts as one.
    fn pieces(&self) -> usize {
        match self {
            Self::Group(mail) => mail.to.len(),
            _ => 1,
        }
    }
}

/// A bounded queue of commands and a way to wake the thread that reads it. Each is on separate cache lines: a thread
/// writes to its own in every turn.
#[repr(align(128))]
pub(crate) struct CommandQueue {
    queue: Mutex<Commands>,
    /// Pieces of mail in the queue, to look at without the lock.
    waiting: AtomicUsize,
    /// The thread sleeps, or is about to: a push must wake it. Always exchanged, never just stored:
    /// who reads what the other left here also sees what the other did to `waiting` before.
    asleep: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
    bound: usize,
}

#[derive(Default)]
struct Commands {
    waiting: VecDeque<Command>,
    /// Pieces of mail that these are.
    pieces: usize,
    closed: bool,
}

impl Commands {
    /// Why a command is not taken, if it is not.
    fn refusal(&self, command: &Command, bound: usize) -> Option<MailboxError> {
        match self.closed {
            true => Some(MailboxError::Stopped),
            false => (self.pieces >= bound && command.is_bounded()).then_some(MailboxError::Full),
        }
    }
}

impl CommandQueue {
    /// A command_queue for at most `bound` commands; `wake` must wake the thread from its wait.
    pub(crate) fn new(bound: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            wake: Box::new(wake),
            bound,
        }
    }

    /// Queues a command. Wakes the thread only if it sleeps, so that a busy thread costs its callers no
    /// system call.
    pub(crate) fn push(&self, command: Command) -> Result<(), MailboxError> {
        self.offer(command).map_err(|SendError { error, message }| {
            message.refused(); // it is the application's, and is dropped without the lock
            error
        })
    }

    /// The same; a command that is not queued comes back.
    fn offer(&self, command: Command) -> Result<(), SendError<Command>> {
        let mut queue = self.lock();
        if let Some(error) = queue.refusal(&command, self.bound) {
            return Err(SendError { error, message: command });
        }
        queue.pieces += command.pieces();
        queue.waiting.push_back(command);
        self.waiting.store(queue.pieces, Ordering::SeqCst);
        drop(queue);
        if self.asleep.swap(false, Ordering::SeqCst) {
            (self.wake)();
        }
        Ok(())
    }

    /// Whether something waits, without the lock: one load.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Moves what waits to the end of `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<Command>) {
        if self.is_waiting() {
            let mut queue = self.lock();
            into.append(&mut queue.waiting);
            queue.pieces = 0;
            self.waiting.store(0, Ordering::SeqCst); // under the lock, as in `push`
        }
    }

    /// Says that the thread is about to sleep. `false` if something waits already: then do not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.swap(true, Ordering::SeqCst);
        let idle = !self.is_waiting();
        if !idle {
            self.asleep.swap(false, Ordering::SeqCst);
        }
        idle
    }

    /// Says that the thread is awake. Costs one load if it was not about to sleep, or was woken by a command: only
    /// this thread sets `asleep`, so one that reads `false` has nothing to take back. The load acquires what the other
    /// did before.
    pub(crate) fn woken(&self) {
        if self.asleep.load(Ordering::Acquire) {
            self.asleep.swap(false, Ordering::SeqCst);
        }
    }

    /// Takes no more commands. Moves what was taken and still waits to the end of `into`: their senders were promised
    /// that they would be carried out.
    pub(crate) fn close(&self, into: &mut VecDeque<Command>) {
        let mut queue = self.lock();
        queue.closed = true;
        into.append(&mut queue.waiting);
        queue.pieces = 0;
        self.waiting.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        // No code that can panic runs under the lock, and the queue is valid at every step.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl MailSink for CommandQueue {
    fn post(&self, to: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        let Err(SendError { error, message }) = self.offer(Command::Mail(to, mail.into())) else {
            return Ok(());
        };
        let Command::Mail(_, mail) = message else { unreachable!("a queue gives back what it was given") };
        Err(SendError { error, message: mail.into_inner() })
    }

    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        self.push(Command::Dial(request))
    }

    fn has_room(&self, pieces: usize) -> bool {
        let waiting = self.waiting.load(Ordering::SeqCst);
        waiting == 0 || waiting + pieces <= self.bound
    }

    /// One command and one wake-up, whatever the number of connections.
    fn post_all(&self, to: &Arc<Vec<Token>>, message: &Arc<dyn Any + Send + Sync>) {
        let mail = GroupMail { to: to.clone(), dispatched: 0, message: message.clone().into() };
        let _ = self.push(Command::Group(mail)); // refused by a thread that has stopped: its connections are gone
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_sleeping_thread_is_woken_once_and_a_busy_one_never() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = wakes.clone();
        let command_queue = CommandQueue::new(10, move || _ = count.fetch_add(1, Ordering::SeqCst));
        command_queue.push(Command::Drain).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 0);
        assert!(!command_queue.prepare_sleep(), "something waits");
        command_queue.take(&mut VecDeque::new());
        assert!(command_queue.prepare_sleep());
        command_queue.push(Command::Drain).unwrap();
        command_queue.push(Command::Drain).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn two_queues_share_no_cache_line() {
        assert!(align_of::<CommandQueue>() >= 128);
    }

    #[test]
    fn mail_for_a_group_is_queued_once_and_counts_for_each() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = wakes.clone();
        let command_queue = CommandQueue::new(3, move || _ = count.fetch_add(1, Ordering::SeqCst));
        let to: Vec<_> = (0..4).map(|index| Token { index, generation: 0 }).collect();
        let message: Arc<dyn Any + Send + Sync> = Arc::new(7);
        assert!(command_queue.prepare_sleep());
        assert!(command_queue.has_room(4), "nothing waits");
        command_queue.post_all(&Arc::new(to.clone()), &message);
        assert_eq!(wakes.load(Ordering::SeqCst), 1);
        assert!(!command_queue.has_room(1));
        let refused = command_queue.post(to[0], Mail::Timer).unwrap_err();
        assert!(
            matches!(refused, SendError { error: MailboxError::Full, message: Mail::Timer }),
            "{refused}"
        );
        let mut queue = VecDeque::new();
        command_queue.take(&mut queue);
        assert!(command_queue.has_room(1));
        let Some(Command::Group(mail)) = queue.pop_front() else { panic!("one command") };
        assert_eq!(mail.map(|(token, _)| token).collect::<Vec<_>>(), to);
    }

    #[test]
    fn the_bound_holds_and_a_closed_gate_says_so() {
        let command_queue = CommandQueue::new(1, || {});
        let token = Token { index: 0, generation: 0 };
        let post = || command_queue.post(token, Mail::Timer).map_err(MailboxError::from);
        assert_eq!(post(), Ok(()));
        assert_eq!(post(), Err(MailboxError::Full));
        assert_eq!(command_queue.push(Command::Drain), Ok(()), "an order to stop always passes");
        let mut rest = VecDeque::new();
        command_queue.close(&mut rest);
        assert!(matches!(rest.make_contiguous(), [Command::Mail(..), Command::Drain]), "{rest:?}");
        assert_eq!(post(), Err(MailboxError::Stopped));
    }
}
