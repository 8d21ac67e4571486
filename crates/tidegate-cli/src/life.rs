//! The life of a server: what ends it, and how it drains.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::anyhow;
use tidegate::{CloseReason, Running, Stats};

use crate::limits::Strategy;
use crate::log::note;

/// What ends a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGTERM or SIGINT, or Ctrl-C.
    Signal,
    /// A successor accepts.
    Succeeded,
    /// An I/O thread ended by itself.
    Broken,
}

/// What a running server is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "changes come as signals, which not every system has")]
pub enum Word {
    /// End.
    End(End),
    /// Go on with something changed.
    Change(Change),
}

/// What changes while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "as above")]
pub enum Change {
    /// Another strategy.
    Strategy(Strategy),
    /// The files of the certificate are read again.
    Certificate,
}

/// How often the I/O threads are looked at: one wake-up of a thread that does nothing else.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for the end, looking now and then whether the server is broken, and follows other words.
pub fn wait(
    words: &Receiver<Word>,
    mut is_broken: impl FnMut() -> bool,
    mut follow: impl FnMut(Change),
) -> End {
    loop {
        match words.recv_timeout(LOOK) {
            Ok(Word::End(end)) => return end,
            Ok(Word::Change(change)) => follow(change),
            Err(RecvTimeoutError::Timeout) if !is_broken() => {}
            Err(_) => return End::Broken,
        }
    }
}

/// Stops the server, waits until it has, and says what became of its connections.
///
/// # Errors
/// An I/O thread has panicked.
pub fn drain(running: Running, timeout: Duration) -> anyhow::Result<Stats> {
    let before = running.stats();
    if before.open() > 0 {
        let open = before.open();
        let text = format!(
            "stopping: {open} connections may finish within {timeout:?}; signal again to exit at once"
        );
        note("stopping", &text);
    }
    running.stop();
    let after = catch_unwind(AssertUnwindSafe(|| running.join()));
    let after =
        after.map_err(|_| anyhow!("an I/O thread panicked while draining; its connections are lost"))?;
    note("drained", &Drained::between(&before, &after).to_string());
    Ok(after)
}

/// What became of the connections that were open when the server was told to stop, and of those that were just coming.
#[derive(Debug, PartialEq, Eq)]
struct Drained {
    finished: u64,
    /// Still busy when the drain timeout was over.
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
    use std::sync::mpsc;

    #[test]
    fn a_broken_server_is_noticed_without_anybody_saying_so() {
        let (_ends, told) = mpsc::channel();
        let mut looks = 0;
        let broken = || {
            looks += 1;
            looks == 2
        };
        assert_eq!(wait(&told, broken, |_| {}), End::Broken);
    }

    #[test]
    fn who_says_so_is_heard_first() {
        let (ends, told) = mpsc::channel();
        let mut followed = Vec::new();
        ends.send(Word::Change(Change::Strategy(Strategy::Throughput))).unwrap();
        ends.send(Word::End(End::Succeeded)).unwrap();
        assert_eq!(wait(&told, || true, |change| followed.push(change)), End::Succeeded);
        assert_eq!(followed, [Change::Strategy(Strategy::Throughput)]);
    }

    #[test]
    fn only_what_ended_in_the_drain_counts() {
        let mut before = Stats::default();
        before.closed[CloseReason::Finished as usize] = 5;
        before.closed[CloseReason::Stopped as usize] = 1;
        let mut after = before.clone();
        after.closed[CloseReason::Finished as usize] = 7;
        after.closed[CloseReason::Stopped as usize] = 4;
        after.closed[CloseReason::Reset as usize] = 1;
        assert_eq!(Drained::between(&before, &after), Drained { finished: 2, cut: 3, otherwise: 1 });
    }
}
