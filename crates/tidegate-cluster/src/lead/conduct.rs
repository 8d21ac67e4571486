//! The lead at work.

mod member;
mod registration;
mod result;
mod takeover;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use futures_util::future::join_all;
use tidegate_load::{Amount, Plan, Report, RunEvent, Second};

use super::{LeadOptions, OnLost};
use crate::clock::Clock;
use crate::error::ClusterError;
use crate::order::{TlsOrder, WorkOrder};
use crate::seconds::PendingSeconds;
use crate::wire::{self, AgentReply, AgentRequest, RunMessage};
use member::{PartNumber, Participant};
use registration::silence;

/// Interval of the lead's heartbeat.
const BEAT: Duration = Duration::from_millis(500);

/// How long before the start it is announced; round trips are added.
const AHEAD: Duration = Duration::from_millis(300);

/// Runs a plan on agents. `tls` is the source of the plan's TLS configuration, and `observer` is called with the
/// combined progress. Blocks.
///
/// # Errors
/// [`ClusterError`] if there is no result. Later problems are in
/// [`Together::troubles`](tidegate_load::Together::troubles), and [`Report::is_clean`] then returns false.
pub fn carry_out(
    options: &LeadOptions,
    plan: &Plan,
    tls: Option<TlsOrder>,
    interrupted: &AtomicBool,
    observer: &mut dyn FnMut(RunEvent<'_>),
) -> Result<Report, ClusterError> {
    plan.check()?;
    plan.part(options.agents - 1, options.agents)?; // the smallest one, before anybody is asked
    // On a separate thread, so that the heartbeat continues while the observer blocks this one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(lead(options, plan, tls, interrupted, observer))
}

async fn lead(
    options: &LeadOptions,
    plan: &Plan,
    tls: Option<TlsOrder>,
    interrupted: &AtomicBool,
    observer: &mut dyn FnMut(RunEvent<'_>),
) -> Result<Report, ClusterError> {
    let client = options.access.connect("tidegate load").await?;
    let run = format!("{:016x}", fastrand::u64(..));
    let subscribed = client.subscribe(wire::events_of(&run)).await;
    let events =
        subscribed.map_err(|e| ClusterError::Broker { url: options.access.shown(), why: e.to_string() })?;
    let clock = Clock::new(0.0, 0.0);
    let members = registration::register(&client, options, &run, interrupted).await?;
    let mut lead = Lead {
        tls,
        began: None,
        unshared: Vec::new(),
        seconds: PendingSeconds::new(members.len()),
        client,
        run,
        options,
        plan,
        members,
        events,
        clock,
        interrupted,
        observer,
        troubles: Vec::new(),
        reported: Vec::new(),
        stopped: Arc::default(),
        looked: Instant::now(),
    };
    lead.compare_clocks().await?;
    let beats = tokio::spawn(beat(lead.client.clone(), wire::words_of(&lead.run), lead.stopped.clone()));
    let outcome = lead.conduct().await;
    beats.abort();
    // The agent that was thanked or dismissed last is to hear it before the connection goes.
    let _ = tokio::time::timeout(BEAT, lead.client.flush()).await;
    outcome
}

/// Repeats the heartbeat or the end of the run to its agents, because one message may be lost with a connection.
async fn beat(client: Client, subject: String, stopped: Arc<AtomicBool>) {
    loop {
        let word = if stopped.load(Relaxed) { RunMessage::Stop } else { RunMessage::Beat };
        let Ok(bytes) = wire::encode(&word) else { return };
        let sent = client.publish(subject.clone(), bytes.into());
        // The broker may be gone; then the agents end by their lease.
        let _ = tokio::time::timeout(BEAT, sent).await;
        tokio::time::sleep(BEAT).await;
    }
}

/// A run that is led.
struct Lead<'a> {
    client: Client,
    run: String,
    options: &'a LeadOptions,
    plan: &'a Plan,
    /// What the plan's own was made of.
    tls: Option<TlsOrder>,
    members: Vec<Participant>,
    events: Subscriber,
    clock: Clock,
    interrupted: &'a AtomicBool,
    observer: &'a mut dyn FnMut(RunEvent<'_>),
    troubles: Vec<String>,
    seconds: PendingSeconds,
    /// The seconds of all that have been reported.
    reported: Vec<Second>,
    /// The moment at which all begin, once it is announced.
    began: Option<Instant>,
    /// Members whose parts have to be given to others.
    unshared: Vec<usize>,
    /// The agents are asked to end early.
    stopped: Arc<AtomicBool>,
    /// When the members were last looked at.
    looked: Instant,
}

impl Lead<'_> {
    /// From the distribution to the result.
    async fn conduct(&mut self) -> Result<Report, ClusterError> {
        if let Err(e) = self.hand_out().await {
            for member in &self.members {
                self.say(&RunMessage::Dismiss { agent: member.id.clone(), share: member.share }).await;
            }
            return Err(e);
        }
        self.watch(|lead| lead.members.iter().all(|m| m.ready || m.is_over())).await;
        self.check_before_the_start().await?;
        let (attempted, connected) = self
            .members
            .iter()
            .filter(|m| !m.lost)
            .fold((0, 0), |(a, c), m| (a + m.attempted, c + m.connected));
        if !self.plan.begins_at_once() {
            (self.observer)(RunEvent::Connected { attempted, connected });
        }
        self.start().await;
        // The start is announced ahead, and a warm-up comes before the window.
        let window = self.began.map(|began| began + self.plan.warm_up);
        self.watch_until(window, |lead| lead.members.iter().all(Participant::is_over)).await;
        (self.observer)(RunEvent::Measuring);
        self.watch(|lead| lead.members.iter().all(Participant::is_over)).await;
        self.report_seconds();
        let report = self.result()?;
        Ok(self.bring(report).await)
    }

    /// Gives each agent its part.
    async fn hand_out(&mut self) -> Result<(), ClusterError> {
        for at in 0..self.members.len() {
            let agent = self.members[at].name.clone();
            match self.ask(&self.members[at].id, &self.work(&self.members[at])).await {
                Ok(AgentReply::Taken) => self.members[at].heard = Instant::now(),
                Ok(AgentReply::Refused { why }) => return Err(ClusterError::Refused { agent, why }),
                Ok(AgentReply::Clock(_)) => {
                    return Err(ClusterError::Refused { agent, why: "unexpected answer".into() });
                }
                Err(why) => {
                    let broker = silence(&self.client).await;
                    let why = format!("agent {agent} refuses its part: {why}{broker}");
                    return Err(ClusterError::NotBegun(why));
                }
            }
        }
        self.looked = Instant::now();
        Ok(())
    }

    /// What a member is asked to do.
    fn work(&self, member: &Participant) -> AgentRequest {
        let PartNumber { index, of } = member.part;
        let mut plan = self.plan.clone();
        if member.took_over.is_some() {
            plan.ramp_connections = Duration::ZERO; // the time for that is over
        }
        let began_mono_ns = self.began.map(|began| self.clock.mono_ns(began) + member.distance.mono_ns);
        AgentRequest::Work {
            run: self.run.clone(),
            share: member.share,
            order: Box::new(WorkOrder::of(&plan, self.tls.clone(), (index, of))),
            began_mono_ns,
            lease_ms: self.options.timeout.as_millis() as u64,
            hold: self.options.hold,
        }
    }

    /// Tells the observer the result. Connections that are held are closed when it has heard it.
    async fn bring(&mut self, mut report: Report) -> Report {
        if self.plan.begins_at_once() {
            let (attempted, connected) = (report.attempted, report.connected);
            (self.observer)(RunEvent::Connected { attempted, connected });
        }
        (self.observer)(RunEvent::Done { report: &report });
        let held = self.members.iter().filter(|m| self.options.hold && m.report.is_some());
        let released = join_all(held.map(async |m| {
            let why =
                match self.ask(&m.id, &AgentRequest::Release { run: self.run.clone(), share: m.share }).await
                {
                    Ok(AgentReply::Taken) => return None,
                    Ok(AgentReply::Refused { why }) | Err(why) => why,
                    Ok(AgentReply::Clock(_)) => "unexpected answer".to_owned(),
                };
            Some(format!("agent {} did not keep its connections open until the end: {why}", m.name))
        }));
        let troubles: Vec<_> = released.await.into_iter().flatten().collect();
        if let Some(together) = &mut report.together {
            together.troubles.extend(troubles);
        }
        report
    }

    /// Nothing begins if something has gone wrong already, unless the setting is to go on.
    async fn check_before_the_start(&mut self) -> Result<(), ClusterError> {
        let nobody = self.members.iter().all(Participant::is_over);
        let in_trouble = !self.troubles.is_empty() && self.options.on_lost == OnLost::Stop;
        let interrupted = self.interrupted.load(Relaxed);
        if !(nobody || in_trouble || interrupted) {
            return Ok(());
        }
        self.stop().await;
        self.watch(|lead| lead.members.iter().all(Participant::is_over)).await;
        match interrupted {
            true => Err(ClusterError::Interrupted),
            false => Err(ClusterError::NotBegun(self.troubles.join("; "))),
        }
    }

    /// Announces the common start to all members.
    async fn start(&mut self) {
        let at = self.soon();
        self.began = Some(at);
        // Also those that took over before the start.
        for (at, _) in self.members.iter().enumerate().filter(|(_, m)| !m.is_over()) {
            self.seconds.expect(at, 0);
        }
        self.start_all((0..self.members.len()).collect(), at).await;
    }

    /// A moment late enough for all members to be notified.
    fn soon(&self) -> Instant {
        let slowest = self.members.iter().map(|m| m.distance.round_trip_ns).max().unwrap_or(0);
        Instant::now() + AHEAD + Duration::from_nanos(slowest.max(0) as u64) * 4
    }

    /// Has these members begin then.
    async fn start_all(&mut self, who: Vec<usize>, when: Instant) {
        let at_ns = self.clock.mono_ns(when);
        let answers = join_all(who.iter().map(|&at| self.start_one(&self.members[at], at_ns))).await;
        self.looked = Instant::now();
        for (at, answer) in who.into_iter().zip(answers) {
            self.members[at].starts_ns = at_ns + self.members[at].distance.mono_ns;
            self.members[at].starts_at = Some(when);
            if let Err(why) = answer {
                self.lose(at, &format!("does not start: {why}")).await;
            }
        }
    }

    async fn start_one(&self, member: &Participant, at_ns: i64) -> Result<(), String> {
        if member.is_over() {
            return Ok(());
        }
        let at_mono_ns = at_ns + member.distance.mono_ns;
        let start = AgentRequest::Start { run: self.run.clone(), share: member.share, at_mono_ns };
        match self.ask(&member.id, &start).await? {
            AgentReply::Taken => Ok(()),
            AgentReply::Refused { why } => Err(why),
            AgentReply::Clock(_) => Err("unexpected answer".to_owned()),
        }
    }

    /// Makes all members end early.
    async fn stop(&mut self) {
        if !self.stopped.swap(true, Relaxed) {
            self.say(&RunMessage::Stop).await;
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    async fn say(&self, word: &RunMessage) {
        let Ok(bytes) = wire::encode(word) else { return };
        // Without a broker nobody hears it, and the leases end.
        let sent = self.client.publish(wire::words_of(&self.run), bytes.into());
        let _ = tokio::time::timeout(BEAT, sent).await;
    }

    async fn ask(&self, id: &str, ask: &AgentRequest) -> Result<AgentReply, String> {
        registration::ask(&self.client, id, ask, self.options.timeout).await
    }

    /// The part of the load that is over at so many seconds, 0 to 1.
    fn part_over(&self, at_s: f64) -> f64 {
        let part = match self.plan.amount {
            Amount::Time(time) => at_s / time.as_secs_f64().max(1e-9),
            Amount::Requests(n) => {
                self.reported.iter().map(|s| s.requests).sum::<u64>() as f64 / n.max(1) as f64
            }
        };
        part.min(1.0)
    }
}
