//! A plan that an agent carries out, on a separate thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_load::histogram::encode;
use tidegate_load::{Plan, Report, RunEvent, run_until};
use tokio::sync::mpsc;

use super::start_signal::StartSignal;
use crate::clock::Clock;
use crate::wire::{AgentEvent, AgentEventKind};

/// How often an agent says that it is alive, and its result again.
const BEAT: Duration = Duration::from_millis(500);

/// How long a result is kept for somebody to take it.
const KEEP: Duration = Duration::from_secs(15);

/// Whether the agent is free of it.
pub(super) enum Leave {
    /// Not yet.
    Stay,
    /// Its result has been taken.
    Thanked,
    /// Nobody took it.
    Forgotten,
    /// It is not wanted.
    Dismissed,
}

/// A plan at work.
pub(super) struct PlanJob {
    pub(super) run: String,
    /// Which part of the run it is on this agent.
    pub(super) share: u32,
    voice: Voice,
    start: Arc<StartSignal>,
    interrupted: Arc<AtomicBool>,
    load: JoinHandle<()>,
    /// What came of it; connections may still be open then.
    outcome: Arc<OnceLock<Result<Report, String>>>,
    /// Opens when connections need not be held any more.
    release: Arc<StartSignal>,
    clock: Clock,
    lease: Duration,
    heard: Instant,
    said: Instant,
    /// The number of the next event.
    next: u64,
    /// The last event, and since when it is said.
    last: Option<(AgentEvent, Instant)>,
    thanked: bool,
    dismissed: bool,
}

/// What a load says, behind the part of the run that it is.
pub(super) type UnnumberedEvent = (u32, AgentEventKind);

/// Has the agent publish what is said.
#[derive(Clone)]
pub(super) struct Voice {
    agent: String,
    share: u32,
    /// What found no room since the last event was numbered.
    missing: Arc<AtomicU64>,
    say: mpsc::Sender<UnnumberedEvent>,
}

impl Voice {
    /// Of this part on this agent.
    pub(super) fn new(agent: String, share: u32, say: mpsc::Sender<UnnumberedEvent>) -> Self {
        Self { agent, share, missing: Arc::default(), say }
    }

    /// The load does not wait for the broker: what finds no room is missing, and the next number tells so.
    pub(super) fn say(&self, what: AgentEventKind) {
        if self.say.try_send((self.share, what)).is_err() {
            self.missing.fetch_add(1, Relaxed);
        }
    }
}

impl PlanJob {
    /// Begins to open connections.
    pub(super) fn begin(
        run: String,
        voice: Voice,
        plan: Plan,
        (lease, hold): (Duration, bool),
        clock: Clock,
    ) -> Result<Self, String> {
        let (start, interrupted) = (Arc::new(StartSignal::default()), Arc::<AtomicBool>::default());
        let (release, outcome) = (Arc::new(StartSignal::default()), Arc::<OnceLock<_>>::default());
        if !hold {
            release.open_at(Instant::now());
        }
        let load = {
            let (voice, start, interrupted) = (voice.clone(), start.clone(), interrupted.clone());
            let (release, outcome) = (release.clone(), outcome.clone());
            let load = move || {
                let brought = |report: &Report| {
                    let seconds = Vec::new(); // they have been said
                    let _ = outcome.set(Ok(Report { seconds, ..report.clone() }));
                    release.wait(&interrupted);
                };
                if let Err(why) = carry_out(&plan, &voice, &start, &interrupted, clock, brought) {
                    let _ = outcome.set(Err(why));
                }
            };
            std::thread::Builder::new().name("tidegate-load".into()).spawn(load)
        };
        let load = load.map_err(|e| format!("there is no thread for it: {e}"))?;
        let now = Instant::now();
        Ok(Self {
            run,
            share: voice.share,
            voice,
            start,
            interrupted,
            load,
            outcome,
            release,
            clock,
            lease,
            heard: now,
            said: now,
            next: 0,
            last: None,
            thanked: false,
            dismissed: false,
        })
    }

    pub(super) fn start(&mut self, at: Instant) {
        self.start.open_at(at);
        self.clock = self.clock.jumped();
    }

    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    pub(super) fn stop(&self) {
        self.interrupted.store(true, Relaxed);
    }

    pub(super) fn dismiss(&mut self) {
        self.stop();
        self.dismissed = true;
    }

    /// Closes the connections, and says whether they were held until now.
    pub(super) fn release(&self) -> bool {
        let held = self.last.is_some() && !self.interrupted.load(Relaxed) && !self.load.is_finished();
        self.release.open_at(Instant::now());
        held
    }

    pub(super) fn thank(&mut self) {
        self.thanked = self.last.is_some();
    }

    /// Numbers an event. To be called when it is published, on the agent's thread: that makes its place among the
    /// others of this part.
    pub(super) fn event(&mut self, what: AgentEventKind) -> AgentEvent {
        let number = self.next + self.voice.missing.swap(0, Relaxed);
        self.next = number + 1;
        AgentEvent { agent: self.voice.agent.clone(), share: self.share, number, what }
    }

    /// What there is to say now, and whether the agent is free. What the load said before it had its
    /// [`result`](Self::new_result) has been published.
    pub(super) fn look_after(&mut self, result: Option<AgentEventKind>) -> (Option<AgentEvent>, Leave) {
        // The lead is gone, or cannot be heard: nobody could stop this load any more.
        let is_orphan = self.heard.elapsed() > self.lease;
        if is_orphan {
            self.stop();
        }
        let is_over = self.load.is_finished();
        if let Some(what) = result {
            let event = self.event(what);
            self.last = Some((event.clone(), Instant::now()));
            self.said = Instant::now();
            return (Some(event), Leave::Stay);
        }
        if let Some((_, since)) = &self.last {
            let leave = match () {
                () if !is_over => Leave::Stay,
                () if self.thanked => Leave::Thanked,
                () if self.dismissed => Leave::Dismissed,
                () if is_orphan || since.elapsed() > KEEP => Leave::Forgotten,
                () => Leave::Stay,
            };
            if !matches!(leave, Leave::Stay) {
                return (None, leave);
            }
        }
        if self.said.elapsed() < BEAT || self.thanked {
            return (None, Leave::Stay);
        }
        self.said = Instant::now();
        let event = match &self.last {
            Some((event, _)) => event.clone(),
            None => {
                let clock = self.clock.read();
                self.event(AgentEventKind::Beat { clock })
            }
        };
        (Some(event), Leave::Stay)
    }

    /// As if it had said nothing for so long.
    #[cfg(test)]
    pub(super) fn beat_is_due(&mut self) {
        self.said -= BEAT;
    }

    /// What came of the load, if something did and was not said yet.
    pub(super) fn new_result(&self) -> Option<AgentEventKind> {
        if self.last.is_some() {
            return None;
        }
        let is_over = self.load.is_finished(); // with an outcome, if it did not panic
        match self.outcome.get() {
            Some(Ok(report)) => Some(AgentEventKind::Done { report: Box::new(report.clone()) }),
            Some(Err(why)) => Some(AgentEventKind::Failed { why: why.clone() }),
            None if is_over => {
                Some(AgentEventKind::Failed { why: "its load panicked; that is a fault of tidegate".into() })
            }
            None => None,
        }
    }
}

/// The load from its first dial until its last connection is closed. Its result is reported before that.
fn carry_out(
    plan: &Plan,
    voice: &Voice,
    start: &StartSignal,
    interrupted: &Arc<AtomicBool>,
    clock: Clock,
    brought: impl Fn(&Report),
) -> Result<(), String> {
    let wait = |attempted, connected| {
        voice.say(AgentEventKind::Ready { attempted, connected });
        start.wait(interrupted);
        voice.say(AgentEventKind::Began { mono_ns: clock.mono_ns(Instant::now()) });
    };
    let at_once = plan.begins_at_once();
    if at_once {
        wait(0, 0);
    }
    let observer = |phase: RunEvent<'_>| match phase {
        RunEvent::Opening { connected } => voice.say(AgentEventKind::Opening { connected }),
        RunEvent::Connected { attempted, connected } if !at_once => wait(attempted, connected),
        RunEvent::Second { second, latency_us, status } => {
            voice.say(AgentEventKind::Second {
                second: second.clone(),
                latency_v2: encode(latency_us),
                open: status.open,
            });
        }
        RunEvent::Done { report } => brought(report),
        _ => {}
    };
    run_until(interrupted, plan, observer).map(drop).map_err(|e| e.to_string())
}
