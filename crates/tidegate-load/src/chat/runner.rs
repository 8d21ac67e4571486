//! The course of a run: gathering the members, letting speakers begin, waiting for the last message.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tidegate::{Dial, Model, RunningClient, system};
use tidegate_os::process::exact_sleeps;

use super::ChatPlan;
use super::deaf::Deaf;
use super::member::ChatLoad;
use super::report::ChatReport;
use super::seconds::Seconds;
use super::shared::{Begin, ChatShared};
use crate::plan::{Amount, LoadError};
use crate::report::{RunEvent, TlsReport};
use crate::runner::start;

/// Connections that are being made at once.
const DIALS: usize = 512;
/// How often the runner looks how far everybody is.
const GLANCE: Duration = Duration::from_millis(2);
/// How often the observer is notified that members join.
const TELL: Duration = Duration::from_millis(100);
/// How long the last messages of an interrupted run are waited for while none comes.
const HURRY: Duration = Duration::from_secs(1);

/// Carries a plan out; ends early once `interrupted` is true, and the report is then about what was said until there.
/// `observer` is notified of progress, on the calling thread: what it sees as requests are deliveries in
/// [`RunEvent::Second`], and messages said in [`RunEvent::Progress`].
///
/// # Errors
/// [`LoadError`] if it cannot be begun at all. What goes wrong on the way is in the report.
pub fn run_chat(
    interrupted: &Arc<AtomicBool>,
    plan: &ChatPlan,
    observer: impl FnMut(RunEvent<'_>),
) -> Result<ChatReport, LoadError> {
    // What it cannot raise it has to do with.
    let _ = system::raise_descriptor_limit();
    plan.check()?;
    let shared = Arc::new(ChatShared::new(plan.clone(), interrupted.clone()));
    // Who speaks does so when it is due and not 50 µs later; where that cannot be asked for, the report shows the
    // delay.
    let _ = exact_sleeps();
    let model = plan.model.unwrap_or_else(|| Model::best().model);
    let load = ChatLoad(shared.clone());
    let (client, tls) = start(&plan.target(0).endpoint, plan.tls.as_ref(), load, plan.policy(), model)?;
    let mut report = ChatReport::new(plan, client.model());
    let mut run = ChatRun { plan, shared: &shared, client: &client, observer, last_report: Instant::now() };
    let all_in = run.conduct(&mut report);
    client.stop();
    client.join();
    report.tls = tls.map(|tls| TlsReport { handshakes: tls.handshakes(), resumed: tls.resumed() });
    report.enter(plan, &shared, all_in);
    Ok(report)
}

struct ChatRun<'a, F> {
    plan: &'a ChatPlan,
    shared: &'a ChatShared,
    client: &'a RunningClient,
    observer: F,
    /// When the observer last received a report.
    last_report: Instant,
}

impl<F: FnMut(RunEvent<'_>)> ChatRun<'_, F> {
    /// Everything while there are connections; whether all members were in.
    fn conduct(&mut self, report: &mut ChatReport) -> bool {
        let begun = Instant::now();
        let mut deaf = Vec::new();
        let all_in = self.gather(&mut deaf);
        report.joined = self.shared.joined() + deaf.len();
        report.joining_s = begun.elapsed().as_secs_f64();
        let (attempted, connected) = (self.plan.members as u64, report.joined as u64);
        (self.observer)(RunEvent::Connected { attempted, connected });
        if all_in {
            self.speak(report);
        }
        self.shared.end();
        report.stopped_reading = deaf.len();
        report.cut_off = deaf.iter_mut().filter_map(Deaf::is_cut_off).filter(|&cut| cut).count();
        all_in
    }

    fn speak(&mut self, report: &mut ChatReport) {
        let cpu = |pid: Option<u32>| pid.and_then(|pid| tidegate_os::process::cpu_time(pid).ok());
        let pids = (Some(std::process::id()), self.plan.server_pid);
        let before = (cpu(pids.0), cpu(pids.1));
        let start = Instant::now();
        (self.observer)(RunEvent::Measuring);
        let first = start + Duration::from_millis(50);
        self.shared.begin(Begin { at: first });
        let last = self.wait_for_the_last();
        report.elapsed_s = last.saturating_duration_since(first).as_secs_f64();
        report.generator_cpu_s = difference(before.0, cpu(pids.0));
        report.server_cpu_s = difference(before.1, cpu(pids.1));
    }

    /// Gets every member into its room; `false` if that could not be done.
    fn gather(&mut self, deaf: &mut Vec<Deaf>) -> bool {
        let readers = self.plan.members - self.plan.deaf();
        for member in 0..readers {
            let dial = Dial::to(self.plan.target(member).endpoint.clone()).tag(member as u64);
            // The queue of dials is longer than the most connections allowed.
            let _ = self.client.dialler().dial(dial);
            if member % DIALS == DIALS - 1 && !self.wait_for(member - (DIALS - 1)) {
                return false;
            }
            if self.shared.has_failed() {
                return false;
            }
        }
        if !self.wait_for(readers) || self.shared.has_failed() {
            return false;
        }
        for member in readers..self.plan.members {
            match Deaf::join(self.plan, member) {
                Ok(member) => deaf.push(member),
                Err(e) => {
                    self.shared.fail(format!("a member that is to stop reading could not join: {e}"));
                    return false;
                }
            }
        }
        true
    }

    /// Waits until so many members are in; `false` if one never will be, that takes too long, or somebody interrupts.
    fn wait_for(&mut self, settled: usize) -> bool {
        let begun = Instant::now();
        while self.shared.settled() < settled {
            if begun.elapsed() > self.plan.timeout || self.shared.is_interrupted() || self.shared.has_failed()
            {
                return false;
            }
            if self.last_report.elapsed() > TELL {
                self.last_report = Instant::now();
                (self.observer)(RunEvent::Opening { connected: self.shared.joined() as u64 });
            }
            std::thread::park_timeout(GLANCE);
        }
        true
    }

    /// Until every message that was said has reached everybody, nobody is left to hear one, or nothing has come for as
    /// long as the plan waits. Returns when the last one was said or heard.
    fn wait_for_the_last(&mut self) -> Instant {
        let mut seconds = Seconds::begin(self.plan);
        let mut heard = (0, Instant::now());
        let between = Duration::from_secs_f64(2.0 * self.plan.speakers as f64 / self.plan.rate);
        let mut timeout = self.plan.timeout.max(between);
        loop {
            std::thread::park_timeout(GLANCE);
            // Asked for first: a speaker that has seen it says nothing more, and one that has not is counted below.
            let interrupted = self.shared.is_interrupted();
            let progress = self.shared.progress();
            if interrupted {
                timeout = HURRY;
            }
            if progress.heard + progress.said != heard.0 {
                heard = (progress.heard + progress.said, Instant::now());
            }
            let all_said = interrupted || progress.said >= self.plan.messages() as u64;
            if all_said && progress.heard + progress.spared >= progress.owed {
                return heard.1;
            }
            let is_left = self.shared.lost() < self.plan.members - self.plan.deaf();
            if heard.1.elapsed() > timeout || self.shared.has_failed() || !is_left {
                return heard.1;
            }
            if let Some(turn) = seconds.turn(self.plan, self.shared, &progress) {
                (self.observer)(RunEvent::Second {
                    second: &turn.second,
                    latency_us: &turn.latency_us,
                    status: turn.status,
                });
                let part = self.part(progress.said);
                (self.observer)(RunEvent::Progress { requests: progress.said, part });
            }
        }
    }

    /// The part of the run that is over, 0 to 1.
    fn part(&self, said: u64) -> f64 {
        let all = match self.plan.amount {
            Amount::Requests(n) => n as f64,
            Amount::Time(_) => self.plan.messages(),
        };
        (said as f64 / all.max(1.0)).min(1.0)
    }
}

fn difference(before: Option<Duration>, after: Option<Duration>) -> Option<f64> {
    Some(after?.checked_sub(before?)?.as_secs_f64())
}
