//! The command_queue under loom: every order in which a few threads can run, and every value that they can see.
//!
//! `RUSTFLAGS="--cfg tidegate_loom" cargo test -p tidegate --lib command_queue::model`. A separate flag rather than
//! `loom`, under which tokio has no sockets.

use std::collections::VecDeque;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Command, CommandQueue};
use crate::proto::mail::MailboxError;
use crate::service::Dial;

/// More changes of thread than this in one run show nothing new, and take long.
const PREEMPTIONS: usize = 3;

fn explore(threads: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(threads);
}

/// What an I/O thread sleeps on: like an eventfd, or the token of `thread::park`, it remembers that it was notified.
#[derive(Default)]
struct Notify {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Notify {
    fn notify(&self) {
        *self.notified.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut notified = self.notified.lock().unwrap();
        while !*notified {
            notified = self.changed.wait(notified).unwrap();
        }
        *notified = false;
    }
}

fn command_queue(bound: usize) -> (Arc<CommandQueue>, Arc<Notify>) {
    let notify = Arc::new(Notify::default());
    let notifies = notify.clone();
    (Arc::new(CommandQueue::new(bound, move || notifies.notify())), notify)
}

/// A command that can be distinguished from others.
fn command(tag: u64) -> Command {
    Command::Dial(Dial::to(std::net::SocketAddr::from(([127, 0, 0, 1], 1))).tag(tag).into())
}

fn tags(commands: VecDeque<Command>) -> Vec<u64> {
    let tag = |command| match command {
        Command::Dial(request) => request.dial().tag,
        other => panic!("{other:?} was never pushed"),
    };
    commands.into_iter().map(tag).collect()
}

/// One turn of a loop: sleeps unless something waits, then takes what does.
fn turn(command_queue: &CommandQueue, notify: &Notify, into: &mut VecDeque<Command>) {
    if command_queue.prepare_sleep() {
        notify.wait();
    }
    command_queue.woken();
    command_queue.take(into);
}

/// If a wake-up were lost, the loop would sleep for ever: loom calls that a deadlock.
#[test]
fn no_wake_up_is_lost() {
    explore(|| {
        let (command_queue, notify) = command_queue(10);
        let callers = [10, 20].map(|tag| {
            let command_queue = command_queue.clone();
            thread::spawn(move || command_queue.push(command(tag)).unwrap())
        });
        let mut taken = VecDeque::new();
        while taken.len() < 2 {
            turn(&command_queue, &notify, &mut taken);
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        let mut tags = tags(taken);
        tags.sort_unstable();
        assert_eq!(tags, [10, 20], "each once");
    });
}

/// A caller that pushes again while the loop is on its way to sleep, or wakes up from it.
#[test]
fn commands_of_one_caller_stay_in_order_and_all_arrive() {
    explore(|| {
        let (command_queue, notify) = command_queue(10);
        let caller = {
            let command_queue = command_queue.clone();
            thread::spawn(move || (1..=3).for_each(|tag| command_queue.push(command(tag)).unwrap()))
        };
        let mut taken = VecDeque::new();
        while taken.len() < 3 {
            turn(&command_queue, &notify, &mut taken);
        }
        caller.join().unwrap();
        assert_eq!(tags(taken), [1, 2, 3]);
    });
}

/// What a caller was answered is what happens: taken commands come out, before the close or with it, and refused ones
/// do not.
#[test]
fn no_command_is_lost_at_the_close() {
    explore(|| {
        let (command_queue, _) = command_queue(1);
        let callers = [1, 2].map(|tag| {
            let command_queue = command_queue.clone();
            thread::spawn(move || match command_queue.push(command(tag)) {
                Ok(()) => Some(tag),
                Err(MailboxError::Full | MailboxError::Stopped) => None,
            })
        });
        let mut taken = VecDeque::new();
        command_queue.take(&mut taken);
        command_queue.close(&mut taken);
        let mut dispatched: Vec<_> =
            callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect();
        let mut late = VecDeque::new();
        command_queue.take(&mut late);
        assert!(late.is_empty(), "taken after the close");
        let mut tags = tags(taken);
        dispatched.sort_unstable();
        tags.sort_unstable();
        assert_eq!(tags, dispatched);
    });
}
