//! How many connections are let in, and how.

use std::time::Duration;

/// Accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Connections the kernel holds before they are accepted; the system caps it (Linux `net.core.somaxconn`).
    /// Default 4,096.
    pub backlog: u32,
    /// Where accepts are posted as operations: post more when fewer than this are outstanding. Default 1.
    /// *Not enforced yet*: a multishot accept is one operation without end.
    pub low: u32,
    /// Where accepts are posted as operations: post no more than this. Default 1. *Not enforced yet.*
    pub high: u32,
    /// First data with the accept: the kernel keeps a new connection to itself until its first data has come, at most for
    /// about this long (whole seconds, rounded up by the kernel to its next SYN-ACK retransmission). Saves a wake-up for
    /// each connection, and silent ones cost the server nothing. Linux only (`TCP_DEFER_ACCEPT`, `tcp(7)`); ignored for
    /// services that [speak first](crate::Service::speaks_first). Default 1 s; `None` is off.
    ///
    /// Cost: connections that are kept back count towards `backlog`, so a client that opens many connections and
    /// then stays silent fills it.
    pub defer: Option<Duration>,
    /// Connections an I/O thread takes in a row before it looks at the others. Default 64.
    pub batch: usize,
}

impl Default for Accept {
    fn default() -> Self {
        Self { backlog: 4096, low: 1, high: 1, defer: Some(Duration::from_secs(1)), batch: 64 }
    }
}

/// What happens to connections that come while the server is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// They wait in the kernel's backlog, unaccepted, until a connection closes.
    Wait,
    /// They are accepted and closed at once.
    Refuse,
}

/// The answer to: may the next connection come in?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Accept and serve it.
    Admit,
    /// Do not accept for now.
    Wait,
    /// Accept it and close it.
    Refuse,
}

/// How long accepting rests after the process ran out of descriptors or memory, if no connection closes before.
pub const EXHAUSTION_PAUSE: Duration = Duration::from_millis(100);

/// May one more connection come in while `open` of `share` are?
#[must_use]
pub fn admission(open: usize, share: usize, when_full: WhenFull) -> Admission {
    match when_full {
        _ if open < share => Admission::Admit,
        WhenFull::Wait => Admission::Wait,
        WhenFull::Refuse => Admission::Refuse,
    }
}

/// The share of `total` connections that I/O thread `index` of `threads` may have open.
#[must_use]
pub fn share(total: usize, index: usize, threads: usize) -> usize {
    total / threads + usize::from(index < total % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_total() {
        for (total, threads) in [(10, 3), (2, 4), (100_000, 7)] {
            assert_eq!((0..threads).map(|i| share(total, i, threads)).sum::<usize>(), total);
        }
    }

    #[test]
    fn a_full_server_waits_or_refuses_as_told() {
        assert_eq!(admission(9, 10, WhenFull::Wait), Admission::Admit);
        assert_eq!(admission(10, 10, WhenFull::Wait), Admission::Wait);
        assert_eq!(admission(11, 10, WhenFull::Refuse), Admission::Refuse);
    }
}
