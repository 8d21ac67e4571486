//! What a datagram load counts.

use serde::{Deserialize, Serialize};

/// Values of datagram loads; part of a [`Report`](crate::Report).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UdpReport {
    /// `plain`, `batched` or `gso`.
    pub path: String,
    /// Whether replies were expected. If not, only `sent` is known.
    pub echo: bool,
    /// Messages the kernel took.
    pub sent: u64,
    /// Messages sent per second.
    pub sent_per_s: f64,
    /// Correct replies, each counted once.
    pub received: u64,
    /// Messages that did not come back in time.
    pub lost: u64,
    /// Duplicate replies.
    pub duplicated: u64,
    /// Reordered replies.
    pub reordered: u64,
    /// Received datagrams that are not messages of this flow, byte for byte.
    pub corrupt: u64,
    /// Sends rejected by the kernel, for example because the port is closed.
    pub send_errors: u64,
    /// Send calls that took something.
    pub sends: u64,
    /// Receive calls that brought something.
    pub receives: u64,
}

impl UdpReport {
    pub(crate) fn add(&mut self, other: &Self) {
        self.path.clone_from(&other.path);
        self.echo = other.echo;
        self.sent_per_s += other.sent_per_s;
        for (sum, n) in [
            (&mut self.sent, other.sent),
            (&mut self.received, other.received),
            (&mut self.lost, other.lost),
            (&mut self.duplicated, other.duplicated),
            (&mut self.reordered, other.reordered),
            (&mut self.corrupt, other.corrupt),
            (&mut self.send_errors, other.send_errors),
            (&mut self.sends, other.sends),
            (&mut self.receives, other.receives),
        ] {
            *sum += n;
        }
    }
}
