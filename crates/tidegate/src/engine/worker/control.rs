//! The control of an engine without its own loop: a thread that dials and stops.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::registry::{ConnectionRegistry, Order};
use super::{Command, CommandQueue, admission};

/// How long after an order to stop it is repeated, for connections that came in between.
const STOP_AGAIN: Duration = Duration::from_millis(100);

/// Carries out the commands of its queue: dials, and the order to stop.
pub(in crate::engine) struct ControlThread {
    pub(in crate::engine) command_queue: Arc<CommandQueue>,
    thread: Arc<OnceLock<Thread>>,
}

impl ControlThread {
    pub(in crate::engine) fn new(mail_queue: usize) -> Self {
        let thread: Arc<OnceLock<Thread>> = Arc::default();
        let sleeper = thread.clone();
        let command_queue = CommandQueue::new(mail_queue, move || {
            if let Some(control) = sleeper.get() {
                control.unpark();
            }
        });
        Self { command_queue: Arc::new(command_queue), thread }
    }

    /// Works on the calling thread: dials what is asked for and, when ordered to, stops the registry. Returns when all
    /// connections are gone.
    pub(in crate::engine) fn run(self, registry: &Arc<ConnectionRegistry>) {
        // Set once, here; before that nobody waits for this thread.
        let _ = self.thread.set(std::thread::current());
        let mut commands = VecDeque::new();
        loop {
            if self.command_queue.prepare_sleep() {
                std::thread::park();
            }
            self.command_queue.woken();
            self.command_queue.take(&mut commands);
            while let Some(command) = commands.pop_front() {
                match command {
                    Command::Dial(request) => registry.dial(request),
                    Command::Drain => return self.stop(registry, commands),
                    Command::Policy(policy) => registry.set_policy(policy),
                    // each connection has an inbox
                    Command::Mail(..) | Command::Group(_) | Command::Serve(_) | Command::Shed => {}
                }
            }
        }
    }

    fn stop(&self, registry: &ConnectionRegistry, mut commands: VecDeque<Command>) {
        // Dials that were asked for together with the stop, or after it.
        admission::close(&self.command_queue, &mut commands, &*registry.config.service, &registry.counters);
        registry.order_all(Order::Drain);
        let mut empty = registry.wait_empty(registry.policy().drain_timeout);
        while !empty {
            registry.order_all(Order::Stop);
            empty = registry.wait_empty(STOP_AGAIN);
        }
        registry.close();
    }
}
