//! Load of a messenger: members in rooms, some of whom speak on an exact schedule, and all of whom check what they hear.
//!
//! Speakers say numbered messages that carry the time they were due. A member checks that what happens in its room comes with one number
//! after the other (nothing lost, doubled or out of order), and that it is the same for all; the end checks that every message
//! that was said reached every member that reads. Latency counts from when a message was due to when a member has read it: so many
//! samples for each message as there are members.

mod deaf;
mod member;
mod record;
mod report;
mod shared;
mod wire;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Client, Dial, Model, Policy, RunningClient, system};

use crate::plan::{Amount, LoadError, Security, Target};
use deaf::Deaf;
use member::ChatLoad;
pub use report::ChatReport;
use shared::{Begin, Shared};
pub use wire::Speech;

/// Most messages of a run: their texts are kept, to compare what members heard.
const MOST_MESSAGES: f64 = 1e7;
/// Bytes of a message for its mark, numbers and time.
const LEAST_SIZE: usize = 64;
/// Connections that are being made at once.
const DIALS: usize = 512;
/// How often the conductor looks how far everybody is.
const GLANCE: Duration = Duration::from_millis(2);

/// Who is where, and what is said.
#[derive(Clone, Debug)]
pub struct ChatPlan {
    /// The messenger.
    pub target: Target,
    /// Lines or WebSocket.
    pub speech: Speech,
    /// Members, over all rooms.
    pub members: usize,
    /// Rooms; members take them in turn.
    pub rooms: usize,
    /// Members who speak.
    pub speakers: usize,
    /// Messages a second, all speakers together.
    pub rate: f64,
    /// Bytes of a message.
    pub size: usize,
    /// Messages, or how long they are said.
    pub amount: Amount,
    /// The share of the members, 0 to 1, that stop reading when all are in. They do not speak.
    pub stop_reading: f64,
    /// The I/O model; `None` is the best one.
    pub model: Option<Model>,
    /// I/O threads of the generator.
    pub threads: usize,
    /// How long to wait for all members to be in, and, without any progress, for the last messages.
    pub timeout: Duration,
    /// The server's process, if it runs here: its processor time is in the report.
    pub server_pid: Option<u32>,
}

impl ChatPlan {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoadError`] with what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        if self.members == 0 || self.rooms == 0 || self.rooms > self.members {
            return wrong("-c must be at least one member for each room, and --rooms at least 1");
        }
        if !(0.0..1.0).contains(&self.stop_reading) {
            return wrong("--stop-reading must be a share from 0 to below 1, such as 0.01 or 1%");
        }
        if self.speakers == 0 || self.speakers > self.members - self.deaf() {
            return wrong("--speakers must be at least 1, and at most the members that read");
        }
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return wrong("--rate must be a number of messages a second over 0");
        }
        if !(LEAST_SIZE..=60_000).contains(&self.size) {
            return wrong("--size must be from 64 to 60000 bytes: a message carries numbers and a time");
        }
        if self.messages() < 1.0 || self.messages() > MOST_MESSAGES {
            return wrong("-n, or --rate times -d, must be from 1 to 10 million messages");
        }
        if self.target.security == Security::Tls {
            return wrong("load chat does not speak TLS; name the messenger with http://, ws:// or tcp://");
        }
        if self.deaf() > 0 && self.target.endpoint.addr().is_none() {
            return wrong("--stop-reading needs a target with an address, not a Unix socket");
        }
        if self.server_pid.is_some_and(|pid| system::cpu_time(pid).is_err()) {
            return wrong(
                "--server-pid: there is no such process here; leave it out if the server is elsewhere",
            );
        }
        let (limit, reserve) = (system::descriptor_limit().0, 64);
        if limit < (self.members + reserve) as u64 {
            return Err(LoadError::Descriptors { connections: self.members, reserve, limit });
        }
        Ok(())
    }

    /// Messages to be said, rounded by whoever counts them.
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

    fn policy(&self) -> Policy {
        Policy {
            max_connections: self.members,
            threads: NonZeroUsize::new(self.threads),
            first_byte_timeout: None,
            send_timeout: None,
            drain_timeout: Duration::from_secs(1),
            ..Policy::default()
        }
    }
}

/// Carries a plan out.
///
/// # Errors
/// [`LoadError`] if it can not be begun at all. What goes wrong on the way is in the report.
pub fn chat(plan: &ChatPlan) -> Result<ChatReport, LoadError> {
    // What it can not raise it has to do with.
    let _ = system::raise_descriptor_limit();
    plan.check()?;
    let shared = Arc::new(Shared::new(plan.clone()));
    let mut client = Client::new(ChatLoad(shared.clone())).policy(plan.policy());
    if let Some(model) = plan.model {
        client = client.model(model);
    }
    // Who speaks does so when it is due and not 50 µs later; where that can not be asked for, the report shows the delay.
    let _ = system::exact_sleeps();
    Ok(conduct(plan, &shared, client.start()?))
}

fn conduct(plan: &ChatPlan, shared: &Arc<Shared>, client: RunningClient) -> ChatReport {
    let mut report = ChatReport::new(plan, client.model());
    let begun = Instant::now();
    let mut deaf = Vec::new();
    let all_in = gather(plan, shared, &client, &mut deaf);
    report.joined = shared.joined() + deaf.len();
    report.joining_s = begun.elapsed().as_secs_f64();
    if all_in {
        let cpu = || {
            let own = system::cpu_time(std::process::id()).ok();
            (own, plan.server_pid.and_then(|pid| system::cpu_time(pid).ok()))
        };
        let before = cpu();
        let start = Instant::now();
        shared.begin(Begin { at: start + Duration::from_millis(50) });
        wait_for_the_last(plan, shared);
        report.elapsed_s = start.elapsed().as_secs_f64();
        let after = cpu();
        report.generator_cpu_s = difference(before.0, after.0);
        report.server_cpu_s = difference(before.1, after.1);
    }
    shared.end();
    report.stopped_reading = deaf.len();
    report.cut_off = deaf.iter_mut().filter_map(Deaf::is_cut_off).filter(|&cut| cut).count();
    drop(deaf);
    client.stop();
    client.join();
    report.enter(plan, shared, all_in);
    report
}

fn difference(before: Option<Duration>, after: Option<Duration>) -> Option<f64> {
    Some(after?.checked_sub(before?)?.as_secs_f64())
}

/// Gets every member into its room; `false` if that could not be done.
fn gather(plan: &ChatPlan, shared: &Shared, client: &RunningClient, deaf: &mut Vec<Deaf>) -> bool {
    let readers = plan.members - plan.deaf();
    for member in 0..readers {
        let dial = Dial::to(plan.target.endpoint.clone()).tag(member as u64);
        // The queue of dials is longer than the most connections allowed.
        let _ = client.dialler().dial(dial);
        if member % DIALS == DIALS - 1 && !wait(plan.timeout, || shared.settled() + DIALS > member) {
            return false;
        }
        if shared.has_failed() {
            return false;
        }
    }
    if !wait(plan.timeout, || shared.settled() >= readers) || shared.has_failed() {
        return false;
    }
    for member in readers..plan.members {
        match Deaf::join(plan, member) {
            Ok(member) => deaf.push(member),
            Err(e) => {
                shared.fail(format!("a member that is to stop reading could not join: {e}"));
                return false;
            }
        }
    }
    true
}

/// Until every message that was said has reached everybody, or nothing has come for as long as the plan waits.
fn wait_for_the_last(plan: &ChatPlan, shared: &Shared) {
    let mut heard = (0, Instant::now());
    let patience = plan.timeout.max(Duration::from_secs_f64(2.0 * plan.speakers as f64 / plan.rate));
    loop {
        std::thread::park_timeout(GLANCE);
        let progress = shared.progress();
        if progress.said >= plan.messages() as u64 && progress.heard + progress.spared >= progress.owed {
            return;
        }
        if progress.heard + progress.said != heard.0 {
            heard = (progress.heard + progress.said, Instant::now());
        }
        if heard.1.elapsed() > patience || shared.has_failed() {
            return;
        }
    }
}

/// Waits for a condition; `false` if it is not met in time.
fn wait(limit: Duration, met: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !met() {
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::park_timeout(GLANCE);
    }
    true
}
