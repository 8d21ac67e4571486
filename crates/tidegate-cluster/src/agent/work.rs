//! The agent at work.

mod job;
mod start_signal;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_nats::{Client, Message};
use futures_util::StreamExt as _;
use serde::Serialize;
use tokio::sync::mpsc;

use super::AgentOptions;
use crate::clock::Clock;
use crate::error::ClusterError;
use crate::order::WorkOrder;
use crate::seldom::Seldom;
use crate::text::printable;
use crate::wire::{self, AgentEvent, AgentEventKind, AgentInfo, AgentReply, AgentRequest, Hail, RunMessage};
use job::{Leave, PlanJob, UnnumberedEvent, Voice};

/// How often an agent checks its job.
const TICK: Duration = Duration::from_millis(100);

/// Maximum parts of a run at an agent: its own, and those taken over. Each has threads and connections.
const MOST_PARTS: usize = 16;

/// Events of a job that wait to be sent; a job says a few a second.
const EVENTS: usize = 256;

/// Runs loads until `interrupted` is true or the maximum is reached. `tell` is called with events: a short stable name,
/// and a message.
///
/// # Errors
/// The broker cannot be reached at the start. Later the agent waits for it to return.
pub fn serve(
    options: &AgentOptions,
    interrupted: &AtomicBool,
    report: &mut dyn FnMut(&str, &str),
) -> Result<(), ClusterError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(work(options, interrupted, report))
}

async fn work(
    options: &AgentOptions,
    interrupted: &AtomicBool,
    report: &mut dyn FnMut(&str, &str),
) -> Result<(), ClusterError> {
    let client = options.access.connect(&format!("tidegate agent {}", options.name)).await?;
    let id = format!("{}-{:016x}", subject_word(&options.name), fastrand::u64(..));
    let failed =
        |e: &dyn std::fmt::Display| ClusterError::Broker { url: options.access.shown(), why: e.to_string() };
    let mut hails = client.subscribe(wire::HAIL).await.map_err(|e| failed(&e))?;
    let mut asks = client.subscribe(wire::of_agent(&id)).await.map_err(|e| failed(&e))?;
    let mut words = client.subscribe(wire::words_of("*")).await.map_err(|e| failed(&e))?;
    client.flush().await.map_err(|e| failed(&e))?;
    report("waiting", &format!("agent {} waits for loads at {}", options.name, options.access.shown()));
    let (say, mut events) = mpsc::channel(EVENTS);
    let mut state = AgentState {
        client,
        id,
        options,
        clock: Clock::new(options.clock_ahead_s, options.clock_jump_s),
        jobs: Vec::new(),
        runs: 0,
        say,
        seldom: Seldom::new(20, Duration::from_secs(1)),
        report,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some(message) = hails.next() => state.hail(&message).await,
            Some(message) = asks.next() => state.ask(&message).await,
            Some(message) = words.next() => state.word(&message),
            Some(event) = events.recv() => {
                if let Some(event) = numbered(&mut state.jobs, event) {
                    state.publish(event).await;
                }
            }
            _ = tick.tick() => {
                if interrupted.load(Relaxed) && state.leave() {
                    // What was said last is sent before the connection goes.
                    let _ = tokio::time::timeout(Duration::from_secs(1), state.client.flush()).await;
                    return Ok(());
                }
                state.look_after(&mut events).await;
                if state.jobs.is_empty() && options.runs.is_some_and(|runs| state.runs >= runs) {
                    return Ok(());
                }
            }
        }
    }
}

/// What a subject may hold of a name.
fn subject_word(name: &str) -> String {
    let word: String =
        name.chars().take(64).filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
    if word.is_empty() { "agent".into() } else { word }
}

/// What there is to publish when a job is looked after, in order, and whether the agent is free of the job.
fn due(
    jobs: &mut [PlanJob],
    at: usize,
    events: &mut mpsc::Receiver<UnnumberedEvent>,
) -> (Vec<AgentEvent>, Leave) {
    // What the job said before it ended goes before its result.
    let result = jobs[at].new_result();
    let mut due = Vec::new();
    while let Ok(event) = events.try_recv() {
        due.extend(numbered(jobs, event));
    }
    let (say, leave) = jobs[at].look_after(result);
    due.extend(say);
    (due, leave)
}

/// An event with its number. Its job is there: it leaves when all that it said has been published.
fn numbered(jobs: &mut [PlanJob], (share, what): UnnumberedEvent) -> Option<AgentEvent> {
    jobs.iter_mut().find(|job| job.share == share).map(|job| job.event(what))
}

/// What an agent has before it.
struct AgentState<'a> {
    client: Client,
    id: String,
    options: &'a AgentOptions,
    clock: Clock,
    /// All of one run.
    jobs: Vec<PlanJob>,
    /// Runs that are over.
    runs: u64,
    say: mpsc::Sender<UnnumberedEvent>,
    /// How often it is said what others brought about.
    seldom: Seldom,
    report: &'a mut dyn FnMut(&str, &str),
}

impl AgentState<'_> {
    async fn hail(&mut self, message: &Message) {
        match wire::of_a_lead::<Hail>(&message.payload) {
            Ok(_) => {
                let offer = AgentInfo {
                    id: self.id.clone(),
                    name: self.options.name.clone(),
                    busy: !self.jobs.is_empty(),
                };
                self.answer(message, &offer).await;
            }
            Err(e) => self.odd(&e),
        }
    }

    async fn ask(&mut self, message: &Message) {
        let mut taken = None;
        let answer = match wire::of_a_lead::<AgentRequest>(&message.payload) {
            Ok(AgentRequest::Clock) => AgentReply::Clock(self.clock.read()),
            Ok(AgentRequest::Work { run, share, order, began_mono_ns, lease_ms, hold }) => {
                let lease = Duration::from_millis(lease_ms.clamp(1_000, 60_000));
                match self.take((run, share), &order, began_mono_ns, (lease, hold)) {
                    Ok(what) => {
                        taken = Some(what);
                        AgentReply::Taken
                    }
                    Err(why) => {
                        if self.seldom.lets(Instant::now()) {
                            (self.report)("refused", &printable(&format!("refused: {why}")));
                        }
                        AgentReply::Refused { why: printable(&why) }
                    }
                }
            }
            Ok(AgentRequest::Start { run, share, at_mono_ns }) => {
                let job = self.jobs.iter_mut().find(|job| job.run == run && job.share == share);
                match (job, self.clock.at(at_mono_ns)) {
                    (Some(job), Some(at)) => {
                        job.start(at);
                        AgentReply::Taken
                    }
                    _ => AgentReply::Refused { why: format!("it does not work for run {run} any more") },
                }
            }
            Ok(AgentRequest::Release { run, share }) => {
                let job = self.jobs.iter().find(|job| job.run == run && job.share == share);
                match job.is_some_and(PlanJob::release) {
                    true => AgentReply::Taken,
                    false => AgentReply::Refused { why: "they were closed before".into() },
                }
            }
            Err(e) => AgentReply::Refused { why: e.to_string() },
        };
        self.answer(message, &answer).await;
        if let Some(what) = taken {
            // The lead may rely on an accepted part, so the answer must be sent first.
            let _ = tokio::time::timeout(TICK, self.client.flush()).await; // a broker that is gone is noticed elsewhere
            (self.report)("working", &printable(&what));
        }
    }

    /// Accepts an order, if possible and allowed: the part of a run with this number, which may have begun already.
    /// Returns the answer.
    fn take(
        &mut self,
        (run, share): (String, u32),
        order: &WorkOrder,
        began_mono_ns: Option<i64>,
        lease: (Duration, bool),
    ) -> Result<String, String> {
        if let Some(job) = self.jobs.iter().find(|job| job.run != run || job.share == share) {
            return Err(format!("it is at work for run {}", job.run));
        }
        if self.jobs.len() >= MOST_PARTS {
            return Err(format!("it has {MOST_PARTS} parts of this run already; start more agents"));
        }
        let target = order.target()?;
        if !self.options.allow.allows(&target) {
            let word = target.addr().map_or("unix".to_owned(), |addr| addr.ip().to_string());
            return Err(format!(
                "{target} is not on its allow-list; start it with --allow {word} if it may go there"
            ));
        }
        let mut plan = order.plan()?;
        if let Some(began) = began_mono_ns.and_then(|ns| self.clock.at(ns)) {
            plan = plan.joining(began);
        }
        let what = format!("run {run}: {} connections to {}", plan.connections, plan.target);
        let voice = Voice::new(self.id.clone(), share, self.say.clone());
        self.jobs.push(PlanJob::begin(run, voice, plan, lease, self.clock)?);
        Ok(what)
    }

    fn word(&mut self, message: &Message) {
        if self.jobs.first().is_none_or(|job| wire::words_of(&job.run) != *message.subject) {
            return;
        }
        let word = wire::of_a_lead::<RunMessage>(&message.payload);
        if word.is_ok() {
            self.jobs.iter_mut().for_each(PlanJob::hear);
        }
        match word {
            Ok(RunMessage::Beat) => {}
            Ok(RunMessage::Stop) => self.jobs.iter().for_each(PlanJob::stop),
            Ok(RunMessage::Dismiss { agent, share }) => self.part(&agent, share).for_each(PlanJob::dismiss),
            Ok(RunMessage::Thanks { agent, share }) => self.part(&agent, share).for_each(PlanJob::thank),
            Err(e) => self.odd(&e),
        }
    }

    /// Something came that nobody can have sent who leads a run; said now and then.
    fn odd(&mut self, e: &wire::WireError) {
        if self.seldom.lets(Instant::now()) {
            (self.report)("odd-message", &printable(&e.to_string()));
        }
    }

    /// The part that is meant, if it is one of ours.
    fn part(&mut self, agent: &str, share: u32) -> impl Iterator<Item = &mut PlanJob> {
        let ours = agent == self.id;
        self.jobs.iter_mut().filter(move |job| ours && job.share == share)
    }

    /// Starts ending; true once nothing is left to end.
    fn leave(&mut self) -> bool {
        self.jobs.iter().for_each(PlanJob::stop);
        self.jobs.is_empty()
    }

    async fn look_after(&mut self, events: &mut mpsc::Receiver<UnnumberedEvent>) {
        // From the end, so that one that leaves moves none that is still to come.
        for at in (0..self.jobs.len()).rev() {
            self.look_after_one(at, events).await;
        }
    }

    async fn look_after_one(&mut self, at: usize, events: &mut mpsc::Receiver<UnnumberedEvent>) {
        let (due, leave) = due(&mut self.jobs, at, events);
        for event in due {
            self.publish(event).await;
        }
        let why = match leave {
            Leave::Stay => return,
            Leave::Thanked => "its result has been taken".to_owned(),
            Leave::Forgotten => "nobody fetched its result; it is thrown away".to_owned(),
            Leave::Dismissed => "the lead dismissed it".to_owned(),
        };
        let job = self.jobs.remove(at);
        if self.jobs.is_empty() {
            self.runs += 1;
            (self.report)("waiting", &format!("run {} is over: {why}; waiting for work", job.run));
        }
    }

    async fn publish(&mut self, event: AgentEvent) {
        let Some(job) = self.jobs.first() else { return };
        let subject = wire::events_of(&job.run);
        let bytes = match wire::encode(&event) {
            Ok(bytes) if bytes.len() <= self.client.max_payload() => bytes,
            Ok(bytes) => {
                let why = format!(
                    "a message of {} bytes is more than the broker takes ({}); raise its max_payload",
                    bytes.len(),
                    self.client.max_payload()
                );
                (self.report)("too-large", &why);
                let failed = AgentEvent { what: AgentEventKind::Failed { why }, ..event };
                wire::encode(&failed).unwrap_or_default()
            }
            Err(e) => return (self.report)("odd-message", &e.to_string()),
        };
        self.send(subject, bytes).await;
    }

    async fn answer<T: Serialize>(&mut self, message: &Message, body: &T) {
        if let (Some(reply), Ok(bytes)) = (message.reply.clone(), wire::encode(body)) {
            self.send(reply.to_string(), bytes).await;
        }
    }

    /// The broker may be gone: then the client keeps some messages and we do not wait for it. What is missing is seen
    /// by its number.
    async fn send(&mut self, subject: String, bytes: Vec<u8>) {
        let sent = tokio::time::timeout(TICK, self.client.publish(subject, bytes.into())).await;
        if !matches!(sent, Ok(Ok(()))) {
            (self.report)("not-sent", "a message could not be sent: the broker takes none");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_load::{Plan, Protocol};

    use super::*;
    use crate::order;

    #[test]
    fn what_a_load_says_while_its_agent_looks_after_it_is_numbered_in_the_order_in_which_it_is_published() {
        let (say, mut events) = mpsc::channel(EVENTS);
        let voice = Voice::new("a".into(), 0, say);
        // It waits for its start before it dials.
        let plan = Plan { rate: None, ..order::tests::plan(Protocol::Echo { size: 1, window: 1 }) };
        assert!(plan.begins_at_once());
        let lease = (Duration::from_secs(60), false);
        let mut jobs =
            [PlanJob::begin("1".into(), voice.clone(), plan, lease, Clock::new(0.0, 0.0)).unwrap()];
        let ended = Arc::new(AtomicBool::new(false));
        let load = std::thread::spawn({
            let ended = ended.clone();
            move || {
                while !ended.load(Relaxed) {
                    voice.say(AgentEventKind::Opening { connected: 1 });
                    std::thread::yield_now();
                }
            }
        });
        let mut numbers = Vec::new();
        while numbers.len() < 100_000 {
            jobs[0].beat_is_due();
            numbers.extend(due(&mut jobs, 0, &mut events).0.iter().map(|event| event.number));
        }
        ended.store(true, Relaxed);
        load.join().unwrap();
        jobs[0].stop();
        let late = numbers.windows(2).find(|two| two[0] >= two[1]);
        assert_eq!(late, None);
    }
}
