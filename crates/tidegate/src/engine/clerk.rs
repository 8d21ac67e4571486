//! The clerk of an engine without a loop of its own: a thread that dials and stops.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::house::{House, Order};
use super::{Command, Gate};

/// Carries out the commands that come through its gate: dials, and the order to stop.
pub(super) struct Clerk {
    pub(super) gate: Arc<Gate>,
    thread: Arc<OnceLock<Thread>>,
}

impl Clerk {
    pub(super) fn new(mail_queue: usize) -> Self {
        let thread: Arc<OnceLock<Thread>> = Arc::default();
        let sleeper = thread.clone();
        let gate = Gate::new(mail_queue, move || {
            if let Some(clerk) = sleeper.get() {
                clerk.unpark();
            }
        });
        Self { gate: Arc::new(gate), thread }
    }

    /// Works on the calling thread: dials what is asked for and, once told to, stops the house. Returns when all connections are gone.
    pub(super) fn run(self, house: &Arc<House>) {
        // Set once, here; before that nobody waits for this thread.
        let _ = self.thread.set(std::thread::current());
        let mut commands = VecDeque::new();
        loop {
            if self.gate.prepare_sleep() {
                std::thread::park();
            }
            self.gate.woken();
            self.gate.take(&mut commands);
            while let Some(command) = commands.pop_front() {
                match command {
                    Command::Dial(request) => house.dial(request),
                    Command::Drain => return self.stop(house, commands),
                    Command::Policy(policy) => house.set_policy(policy),
                    // connections have post boxes of their own
                    Command::Mail(..) | Command::Group(_) | Command::Serve(_) => {}
                }
            }
        }
    }

    fn stop(&self, house: &House, mut commands: VecDeque<Command>) {
        self.gate.close(&mut commands);
        for command in commands {
            // Asked for together with the stop, or after it.
            if let Command::Dial(request) = command {
                house.counters.attempted.add(1);
                house.dial_failed(request, io::Error::other("the client has stopped"));
            }
        }
        house.order_all(Order::Drain);
        let mut empty = house.wait_empty(house.policy().drain_timeout);
        while !empty {
            // Again and again: a connection may have come in between.
            house.order_all(Order::Stop);
            empty = house.wait_empty(Duration::from_millis(100));
        }
        house.close();
    }
}
