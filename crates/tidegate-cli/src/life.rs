//! The lifetime of a server: what ends it, and how it drains.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::anyhow;
use tidegate::{CloseReason, Running, Stats};

use crate::Failure;
use crate::label::Label;
use crate::limits::Strategy;
use crate::log::note;

/// Why a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// SIGTERM or SIGINT, or Ctrl-C.
    Signal,
    /// A successor accepts in its place.
    Succeeded,
    /// An I/O thread of the server with this number ended unexpectedly.
    Broken(usize),
}

/// A running server.
pub trait Up {
    /// Its label.
    fn label(&self) -> &Label;
    /// Its listening addresses, in turn.
    fn urls(&self) -> Vec<String>;
    /// Makes it reachable for a successor.
    ///
    /// # Errors
    /// An existing file at its path cannot be replaced.
    fn open_handover(&self) -> Result<(), Failure>;
    /// Tells the predecessor to drain.
    fn relieve(&mut self);
    /// Whether an I/O thread ended unexpectedly.
    fn is_broken(&self) -> bool;
    /// Applies a change.
    fn follow(&self, change: ServerChange);
    /// Whether it is stopping.
    fn is_stopped(&self) -> bool;
    /// Fails its readiness probe, and accepts no successor any more.
    fn unready(&mut self);
    /// Starts stopping; later calls have no effect.
    fn stop(&mut self, end: ExitReason);
    /// Waits until it has stopped, and returns the result.
    ///
    /// # Errors
    /// An I/O thread has panicked.
    fn finish(self: Box<Self>) -> anyhow::Result<()>;
}

/// A command to running servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "changes come as signals, which not every system has")]
pub enum ServerCommand {
    /// Stop, all of them.
    Stop,
    /// A successor accepts in the place of the server with this number.
    Succeeded(usize),
    /// Apply a change.
    Change(ServerChange),
}

/// What changes while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "as above")]
pub enum ServerChange {
    /// Another strategy.
    Strategy(Strategy),
    /// Reload the certificate files.
    Certificate,
}

/// How often the I/O threads are checked: one wake-up of an otherwise idle thread.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for the end, regularly checking for a broken server, and executes commands. A server with a successor stops
/// immediately; when none is left, it returns.
pub fn wait(words: &Receiver<ServerCommand>, servers: &mut [Box<dyn Up>]) -> ExitReason {
    loop {
        match words.recv_timeout(LOOK) {
            Ok(ServerCommand::Stop) | Err(RecvTimeoutError::Disconnected) => return ExitReason::Signal,
            Ok(ServerCommand::Change(change)) => servers.iter().for_each(|server| server.follow(change)),
            Ok(ServerCommand::Succeeded(number)) => {
                servers.iter_mut().skip(number).take(1).for_each(|server| server.stop(ExitReason::Succeeded));
                if servers.iter().all(|server| server.is_stopped()) {
                    return ExitReason::Succeeded;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(number) = servers.iter().position(|server| server.is_broken()) {
                    return ExitReason::Broken(number);
                }
            }
        }
    }
}

/// Fails the readiness probe first. Until load balancers notice, connections still arrive and are accepted.
pub fn let_balancers_look_away(delay: Duration, servers: &mut [Box<dyn Up>]) {
    servers.iter_mut().for_each(|server| server.unready());
    let text = format!("/readyz says 503; accepting for another {delay:?}; signal again to exit immediately");
    note("not-ready", &text);
    std::thread::sleep(delay); // the second signal ends the process
}

/// Starts stopping the server on all its addresses; returns its counters at that time.
pub fn stop(running: &[Running], timeout: Duration, label: &Label) -> Stats {
    let before: Stats = running.iter().map(Running::stats).sum();
    if before.open() > 0 {
        let open = before.open();
        let text = format!(
            "stopping: {open} connections may finish within {timeout:?}; signal again to exit immediately"
        );
        label.note("stopping", &text);
    }
    running.iter().for_each(Running::stop);
    before
}

/// Waits until the server has stopped, and reports how its connections ended.
///
/// # Errors
/// An I/O thread has panicked.
pub fn join(running: Vec<Running>, before: &Stats, label: &Label) -> anyhow::Result<Stats> {
    let after = catch_unwind(AssertUnwindSafe(|| running.into_iter().map(Running::join).sum::<Stats>()));
    let after =
        after.map_err(|_| anyhow!("an I/O thread panicked while draining; its connections are lost"))?;
    label.note("drained", &Drained::between(before, &after).to_string());
    Ok(after)
}

/// How the connections ended that were open or being accepted when the stop began.
#[derive(Debug, PartialEq, Eq)]
struct Drained {
    finished: u64,
    /// Still busy at the drain timeout.
    cut: u64,
    /// Ended by their peer, a time limit or an error.
    otherwise: u64,
}

impl Drained {
    fn between(before: &Stats, after: &Stats) -> Self {
        let by = |why| after.closed_by(why).saturating_sub(before.closed_by(why));
        let (finished, cut) = (by(CloseReason::Finished), by(CloseReason::Stopped));
        let all = after.closed_total().saturating_sub(before.closed_total());
        Self { finished, cut, otherwise: all.saturating_sub(finished + cut) }
    }
}

impl std::fmt::Display for Drained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { finished, cut, otherwise } = self;
        write!(f, "drained: {finished} connections finished, {cut} were cut off at the drain timeout, ")?;
        write!(f, "{otherwise} ended otherwise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::labels;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::mpsc;

    /// What became of a server of which nothing runs.
    #[derive(Default)]
    struct Seen {
        followed: Vec<ServerChange>,
        stopped: Option<ExitReason>,
    }

    type Watched = Rc<RefCell<Seen>>;

    struct Puppet {
        label: Label,
        is_broken: bool,
        seen: Watched,
    }

    impl Up for Puppet {
        fn label(&self) -> &Label {
            &self.label
        }
        fn urls(&self) -> Vec<String> {
            Vec::new()
        }
        fn open_handover(&self) -> Result<(), Failure> {
            Ok(())
        }
        fn relieve(&mut self) {}
        fn unready(&mut self) {}
        fn is_broken(&self) -> bool {
            self.is_broken
        }
        fn follow(&self, change: ServerChange) {
            self.seen.borrow_mut().followed.push(change);
        }
        fn is_stopped(&self) -> bool {
            self.seen.borrow().stopped.is_some()
        }
        fn stop(&mut self, end: ExitReason) {
            self.seen.borrow_mut().stopped = Some(end);
        }
        fn finish(self: Box<Self>) -> anyhow::Result<()> {
            Ok(())
        }
    }

    /// Two servers, of which the second may be broken, and what they saw.
    fn two(second_is_broken: bool) -> (Vec<Box<dyn Up>>, Vec<Watched>) {
        let Ok(labels) = labels(&[("http", None), ("echo", None)]) else { panic!("no labels") };
        let seen = vec![Rc::default(), Rc::default()];
        let mut servers: Vec<Box<dyn Up>> = Vec::new();
        for (label, seen) in labels.into_iter().zip(&seen) {
            let is_broken = second_is_broken && label.name == "echo";
            servers.push(Box::new(Puppet { label, is_broken, seen: Rc::clone(seen) }));
        }
        (servers, seen)
    }

    #[test]
    fn a_broken_server_is_noticed_without_anybody_saying_so() {
        let (_words, received) = mpsc::channel();
        assert_eq!(wait(&received, &mut two(true).0), ExitReason::Broken(1));
    }

    #[test]
    fn words_are_heard_by_all_before_anybody_looks_who_is_broken() {
        let (words, received) = mpsc::channel();
        let (mut servers, seen) = two(true);
        words.send(ServerCommand::Change(ServerChange::Strategy(Strategy::Throughput))).unwrap();
        words.send(ServerCommand::Stop).unwrap();
        assert_eq!(wait(&received, &mut servers), ExitReason::Signal);
        for seen in seen {
            assert_eq!(seen.borrow().followed, [ServerChange::Strategy(Strategy::Throughput)]);
        }
    }

    #[test]
    fn a_server_with_a_successor_stops_and_the_others_go_on() {
        let (words, received) = mpsc::channel();
        let (mut servers, seen) = two(false);
        words.send(ServerCommand::Succeeded(1)).unwrap();
        words.send(ServerCommand::Stop).unwrap();
        assert_eq!(wait(&received, &mut servers), ExitReason::Signal);
        assert_eq!((seen[0].borrow().stopped, seen[1].borrow().stopped), (None, Some(ExitReason::Succeeded)));
        words.send(ServerCommand::Succeeded(0)).unwrap();
        assert_eq!(wait(&received, &mut servers), ExitReason::Succeeded);
    }

    #[test]
    fn only_what_ended_in_the_drain_counts() {
        let before =
            Stats::default().with_closed(CloseReason::Finished, 5).with_closed(CloseReason::Stopped, 1);
        let after = before.clone().with_closed(CloseReason::Finished, 7);
        let after = after.with_closed(CloseReason::Stopped, 4).with_closed(CloseReason::Reset, 1);
        assert_eq!(Drained::between(&before, &after), Drained { finished: 2, cut: 3, otherwise: 1 });
    }
}
