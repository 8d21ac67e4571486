//! A bounded mixed attack on your own server, to test that it survives: connections that send nothing, that trickle,
//! that flood and never read, that finish in mid-request, and that reset.
//!
//! It is an ordinary client of the library, so it does only what any peer could do. It accepts only targets on this
//! machine: [`Attack::check`] asks the system. Sessions are in `attack/session.rs`, results in [`AttackReport`].

mod report;
mod session;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tidegate::policy::OutboxMarks;
use tidegate::{Client, Dial, Model, Policy, RunningClient, system};

use crate::plan::{LoadError, Security, Target};
pub use report::{AttackReport, KindReport};
use session::{AttackEvent, AttackService};

/// The behaviour of an attacking connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttackKind {
    /// Sends nothing.
    Silent,
    /// Sends one byte a second.
    Trickle,
    /// Sends as fast as it can and never reads.
    Flood,
    /// Finishes sending in mid-request, and stays open.
    HalfOpen,
    /// Resets: every other one as soon as it is established, the rest in mid-request.
    Reset,
}

impl AttackKind {
    /// All kinds, in the order of reports.
    pub const ALL: &'static [Self] = &[Self::Silent, Self::Trickle, Self::Flood, Self::HalfOpen, Self::Reset];

    /// One word for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Trickle => "trickle",
            Self::Flood => "flood",
            Self::HalfOpen => "half-open",
            Self::Reset => "reset",
        }
    }
}

/// What the attackers send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttackSpeech {
    /// Requests for this target.
    Http,
    /// Bytes.
    Bytes,
}

/// The settings of an attack.
#[derive(Clone, Debug)]
pub struct Attack {
    /// Target: an address of this machine.
    pub target: Target,
    /// What is sent.
    pub speech: AttackSpeech,
    /// Duration.
    pub duration: Duration,
    /// Connections that send nothing.
    pub silent: usize,
    /// Connections that send one byte a second.
    pub trickle: usize,
    /// Connections that flood and never read.
    pub flood: usize,
    /// Connections that finish sending in mid-request.
    pub half_open: usize,
    /// Connections per second that are opened and reset.
    pub resets_per_s: u32,
    /// The I/O model of the attackers; `None` is the best available.
    pub model: Option<Model>,
}

/// Maximum duration; guards against typing errors.
const LONGEST: Duration = Duration::from_secs(3600);

/// Maximum connections of one kind, and resets per second.
const MOST: usize = 100_000;

/// Minimum interval between two connects of the same connection.
const REOPEN: Duration = Duration::from_secs(1);

/// Maximum pending resets, in seconds of their rate: dials into a full backlog wait.
const PENDING_RESETS_S: usize = 5;

/// How often the attack checks for due work.
const LOOK: Duration = Duration::from_millis(5);

/// Descriptors needed besides the connections.
const RESERVE: usize = 64;

impl Attack {
    /// Checks the settings, and that the target belongs to this machine.
    ///
    /// # Errors
    /// [`LoadError::Plan`] with what to change; [`LoadError::Descriptors`].
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: String| Err(LoadError::Plan(why));
        if self.duration.is_zero() || self.duration > LONGEST {
            return wrong(format!("-d must be longer than 0 and at most {} seconds", LONGEST.as_secs()));
        }
        let counts = [
            ("--silent", self.silent),
            ("--trickle", self.trickle),
            ("--flood", self.flood),
            ("--half-open", self.half_open),
            ("--reset-rate", self.resets_per_s as usize),
        ];
        if let Some((name, n)) = counts.into_iter().find(|&(_, n)| n > MOST) {
            return wrong(format!("{name} {n} is more than {MOST}"));
        }
        if counts.iter().all(|&(_, n)| n == 0) {
            return wrong(
                "nothing to do: give --silent, --trickle, --flood, --half-open or --reset-rate".into(),
            );
        }
        let target = &self.target.endpoint;
        if self.target.security == Security::Tls {
            return wrong("attacks do not support TLS: give the target without it".into());
        }
        if target.is_unix() && self.resets_per_s > 0 {
            return wrong("Unix sockets have no resets: leave --reset-rate out".into());
        }
        if target.addr().is_some_and(|addr| !is_of_this_machine(addr.ip())) {
            return wrong(format!(
                "{target} is not an address of this machine: attack only your own servers, on the server's machine"
            ));
        }
        Ok(())
    }

    /// Concurrent connections.
    fn most(&self) -> usize {
        self.kept().iter().map(|&(_, n)| n).sum::<usize>() + self.resets_per_s as usize * PENDING_RESETS_S
    }

    /// Kinds whose connections are reopened whenever the server has ended them.
    fn kept(&self) -> [(AttackKind, usize); 4] {
        [
            (AttackKind::Silent, self.silent),
            (AttackKind::Trickle, self.trickle),
            (AttackKind::Flood, self.flood),
            (AttackKind::HalfOpen, self.half_open),
        ]
    }
}

/// Whether packets to this address stay on this machine: only then the system chooses the target address itself as the
/// source. Nothing is sent, and a setting that allows binding foreign addresses does not matter.
fn is_of_this_machine(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == ip)
}

/// Runs the attack. `watch` is called some hundred times per second with its state, and may end it early.
///
/// # Errors
/// [`LoadError`] if it cannot start. The server's reaction is in the report.
pub fn attack(
    attack: &Attack,
    watch: impl FnMut(&AttackReport) -> ControlFlow<()>,
) -> Result<AttackReport, LoadError> {
    attack.check()?;
    let model = attack.model.unwrap_or_else(|| Model::best().model);
    check_descriptors(attack, model)?;
    let (tell, notices) = channel();
    let attackers = AttackService::new(attack, tell);
    let client = Client::new(attackers).policy(policy(attack)).model(model).start()?;
    let report = AttackReport::new(attack, model);
    let mut campaign = Campaign {
        attack,
        client: &client,
        notices,
        report,
        due: BinaryHeap::new(),
        resets: 0,
        resets_pending: 0,
    };
    campaign.run(watch);
    let report = campaign.report;
    client.stop();
    client.join();
    Ok(report)
}

fn check_descriptors(attack: &Attack, model: Model) -> Result<(), LoadError> {
    // A failure leaves the limit as it is, which is looked at next.
    let _ = system::raise_descriptor_limit();
    let (limit, _) = system::descriptor_limit();
    let connections = if model == Model::Uring { 0 } else { attack.most() }; // slots of a ring's table cost none
    if (connections + RESERVE) as u64 > limit {
        return Err(LoadError::Descriptors { connections, reserve: RESERVE, limit });
    }
    Ok(())
}

fn policy(attack: &Attack) -> Policy {
    Policy::default()
        .max_connections(attack.most() + 1)
        .threads(NonZeroUsize::new(1))
        .first_byte_timeout(None)
        .send_timeout(None)
        .drain_timeout(Duration::ZERO)
        .outbox(OutboxMarks::default().low(16 * 1024).high(64 * 1024))
}

struct Campaign<'a> {
    attack: &'a Attack,
    client: &'a RunningClient,
    notices: Receiver<AttackEvent>,
    report: AttackReport,
    /// Schedules reopened connections.
    due: BinaryHeap<Reverse<(Instant, AttackKind)>>,
    /// Resets started, and those pending.
    resets: u64,
    resets_pending: usize,
}

impl Campaign<'_> {
    fn run(&mut self, mut watch: impl FnMut(&AttackReport) -> ControlFlow<()>) {
        let start = Instant::now();
        let end = start + self.attack.duration;
        for (kind, n) in self.attack.kept() {
            self.due.extend((0..n).map(|i| Reverse((start + REOPEN.mul_f64(i as f64 / n as f64), kind))));
        }
        loop {
            let now = Instant::now();
            self.report.duration_s = now.duration_since(start).as_secs_f64();
            if now >= end || watch(&self.report).is_break() {
                return;
            }
            self.open(now, start);
            match self.notices.recv_timeout(LOOK) {
                Ok(notice) => self.take_in(notice, end),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(notice) = self.notices.try_recv() {
                self.take_in(notice, end);
            }
        }
    }

    /// Opens the connections that are due.
    fn open(&mut self, now: Instant, start: Instant) {
        while let Some(&Reverse((at, kind))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            self.dial(kind, 0);
        }
        let rate = self.attack.resets_per_s;
        let wanted = (now.duration_since(start).as_secs_f64() * f64::from(rate)) as u64;
        while self.resets < wanted {
            self.resets += 1;
            // Resets that could not start in time are skipped, not made up for.
            if self.resets_pending < rate as usize * PENDING_RESETS_S {
                self.resets_pending += 1;
                self.dial(AttackKind::Reset, self.resets % 2);
            }
        }
    }

    fn dial(&self, kind: AttackKind, variant: u64) {
        let to = &self.attack.target.endpoint;
        // The client runs until the attack is over, and its queue is longer than all connections together.
        let _ = self.client.dialler().dial(Dial::to(to).tag(session::tag(kind, variant)));
    }

    fn take_in(&mut self, notice: AttackEvent, end: Instant) {
        let kind = notice.kind();
        let entry = self.report.of(kind);
        match notice {
            AttackEvent::Established { .. } => {
                entry.opened += 1;
                entry.standing += 1;
            }
            AttackEvent::Failed { ref why, .. } => {
                entry.failed += 1;
                self.report.first_error.get_or_insert_with(|| why.clone());
            }
            AttackEvent::Ended { lasted, how, .. } => entry.ended(lasted, how),
        }
        let over = match notice {
            AttackEvent::Established { .. } => return,
            AttackEvent::Failed { .. } => Duration::ZERO,
            AttackEvent::Ended { lasted, .. } => lasted,
        };
        if kind == AttackKind::Reset {
            self.resets_pending = self.resets_pending.saturating_sub(1);
            return;
        }
        let again = Instant::now() + REOPEN.saturating_sub(over);
        if again < end {
            self.due.push(Reverse((again, kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attack_on(addr: &str) -> Attack {
        Attack {
            target: Target {
                endpoint: addr.parse().unwrap(),
                security: Security::Plain,
                host: addr.into(),
                path: "/".into(),
            },
            speech: AttackSpeech::Http,
            duration: Duration::from_secs(1),
            silent: 1,
            trickle: 0,
            flood: 0,
            half_open: 0,
            resets_per_s: 0,
            model: None,
        }
    }

    #[test]
    fn strangers_are_left_alone() {
        // Blocks kept for documentation (RFC 5737, RFC 3849): nobody has them.
        for stranger in ["192.0.2.1:80", "203.0.113.7:80", "[2001:db8::1]:80"] {
            let why = attack_on(stranger).check().unwrap_err().to_string();
            assert!(why.contains("not an address of this machine"), "{why}");
        }
        for own in ["127.0.0.1:80", "127.9.8.7:80", "[::1]:80"] {
            assert!(attack_on(own).check().is_ok(), "{own}");
        }
    }

    #[test]
    fn an_attack_is_bounded_and_does_something() {
        let attack = attack_on("127.0.0.1:80");
        let wrong = |attack: Attack| attack.check().unwrap_err().to_string();
        assert!(wrong(Attack { silent: 0, ..attack.clone() }).contains("nothing to do"));
        assert!(wrong(Attack { duration: Duration::from_secs(7200), ..attack.clone() }).contains("-d must"));
        assert!(wrong(Attack { flood: 1_000_000, ..attack }).contains("--flood"));
    }
}
