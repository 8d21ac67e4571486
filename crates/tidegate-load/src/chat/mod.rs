//! Load of a messenger: members in rooms; some send on an exact schedule, and all check what they receive.
//!
//! Messages are numbered and carry the time they were due. A member checks that the events of its room are numbered
//! consecutively (nothing lost, duplicated or reordered), and that they are the same for all; at the end it is checked
//! that every message reached every reading member. Latency counts from when a message was due to when a member has
//! read it: one sample for each message and member.

mod deaf;
mod member;
mod record;
mod report;
mod runner;
mod seconds;
mod shared;
mod wire;

use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::policy::Wait;
use tidegate::{Model, Policy, system};

use crate::plan::{Amount, LoadError, Security, Target, TlsPlan, can_be_kept};
pub use report::ChatReport;
pub use runner::run_chat;
pub use wire::Speech;

/// Maximum messages of a run: their texts are stored for comparison.
const MOST_MESSAGES: f64 = 1e7;
/// Bytes of a message for its mark, numbers and time.
const LEAST_SIZE: usize = 64;

/// The settings of a chat load.
#[derive(Clone, Debug)]
pub struct ChatPlan {
    /// The messenger; with several nodes, the members of each room are distributed over them in turn.
    pub targets: Vec<Target>,
    /// Lines or WebSocket.
    pub speech: Speech,
    /// Members, in total.
    pub members: usize,
    /// Rooms; members are distributed over them in turn.
    pub rooms: usize,
    /// Members who send messages.
    pub speakers: usize,
    /// Total messages per second.
    pub rate: f64,
    /// Bytes of a message.
    pub size: usize,
    /// Number of messages, or duration.
    pub amount: Amount,
    /// The share of the members, 0 to 1, that stop reading after all have joined. They do not send.
    pub stop_reading: f64,
    /// The I/O model; `None` is the best one.
    pub model: Option<Model>,
    /// I/O threads of the generator.
    pub threads: usize,
    /// How these threads wait. A blocked thread is woken by the server's send, which costs the server more.
    pub wait: Wait,
    /// Time limit for joining, and, without progress, for the last messages.
    pub timeout: Duration,
    /// The server's process, if it runs here: its CPU time is in the report.
    pub server_pid: Option<u32>,
    /// TLS settings; `None` is unencrypted.
    pub tls: Option<TlsPlan>,
}

impl ChatPlan {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoadError`] with what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        if self.targets.is_empty() {
            return wrong("give the messenger's address, such as http://127.0.0.1:8080");
        }
        if self.members == 0 || self.rooms == 0 || self.rooms > self.members {
            return wrong("-c must be at least one member for each room, and --rooms at least 1");
        }
        if !(0.0..1.0).contains(&self.stop_reading) {
            return wrong("--stop-reading must be a share from 0 to below 1, such as 0.01 or 1%");
        }
        if self.speakers == 0 || self.speakers > self.members - self.deaf() {
            return wrong("--speakers must be at least 1, and at most the members that read");
        }
        if !can_be_kept(self.rate) {
            return wrong("--rate must be from 0.001 to 1000000000 messages per second");
        }
        if !(LEAST_SIZE..=60_000).contains(&self.size) {
            return wrong("--size must be from 64 to 60000 bytes: a message carries numbers and a time");
        }
        if self.messages() < 1.0 || self.messages() > MOST_MESSAGES {
            return wrong("-n, or --rate times -d, must be from 1 to 10 million messages");
        }
        if self.targets.iter().any(|target| (target.security == Security::Tls) != self.tls.is_some()) {
            return wrong("the targets and the plan differ in whether members use TLS");
        }
        if self.deaf() > 0 && self.tls.is_some() {
            return wrong(
                "--stop-reading does not support TLS: leave it out, or use http://, ws:// or tcp://",
            );
        }
        if self.deaf() > 0 && self.targets.iter().any(|target| target.endpoint.addr().is_none()) {
            return wrong("--stop-reading needs a target with an address, not a Unix socket");
        }
        if self.server_pid.is_some_and(|pid| tidegate_os::process::cpu_time(pid).is_err()) {
            return wrong(
                "--server-pid: no such process; leave it out if the server runs on another machine",
            );
        }
        let (limit, reserve) = (system::descriptor_limit().0, 64);
        if limit < (self.members as u64).saturating_add(reserve as u64) {
            return Err(LoadError::Descriptors { connections: self.members, reserve, limit });
        }
        Ok(())
    }

    /// Messages to be said, rounded by the caller.
    fn messages(&self) -> f64 {
        match self.amount {
            Amount::Requests(n) => n as f64,
            Amount::Time(time) => (self.rate * time.as_secs_f64()).round(),
        }
    }

    fn deaf(&self) -> usize {
        (self.stop_reading * self.members as f64).ceil() as usize
    }

    fn room(&self, member: usize) -> usize {
        member % self.rooms
    }

    /// Where a member goes. The members of each room take the nodes in turn, whatever the numbers.
    fn target(&self, member: usize) -> &Target {
        &self.targets[member / self.rooms % self.targets.len()]
    }

    fn policy(&self) -> Policy {
        Policy::default()
            .max_connections(self.members)
            .threads(NonZeroUsize::new(self.threads))
            .wait(self.wait)
            .first_byte_timeout(None)
            .send_timeout(None)
            .drain_timeout(Duration::from_secs(1))
    }
}
