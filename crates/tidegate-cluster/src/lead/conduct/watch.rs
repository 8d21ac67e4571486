//! Listening to the agents of a run, and seeing who says nothing any more.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tidegate_load::histogram::decode;
use tidegate_load::{RunEvent, RunStatus};

use super::registration::silence;
use super::{Lead, OnLost};
use crate::text::printable;
use crate::wire::{self, AgentEvent, AgentEventKind, RunMessage};

/// How often the agents are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Most troubles that are reported.
const MOST_TROUBLES: usize = 100;

/// A second may be reported so much before it can be over: clocks are not alike.
const EARLY_S: f64 = 5.0;

impl Lead<'_> {
    /// Listens until it is enough.
    pub(super) async fn watch(&mut self, enough: impl Fn(&Self) -> bool) {
        self.watch_until(None, enough).await;
    }

    /// The same, but not longer than to this moment.
    pub(super) async fn watch_until(&mut self, end: Option<Instant>, enough: impl Fn(&Self) -> bool) {
        let is_over = |lead: &Self| {
            lead.unshared.is_empty() && (enough(lead) || end.is_some_and(|end| Instant::now() >= end))
        };
        while !is_over(self) {
            let look = Instant::now() + LOOK;
            let until = end.map_or(look, |end| look.min(end));
            while let Ok(Some(message)) = tokio::time::timeout_at(until.into(), self.events.next()).await {
                match wire::of_an_agent::<AgentEvent>(&message.payload) {
                    Ok(event) => self.hear(event).await,
                    Err(e) => self.trouble(e.to_string()).await,
                }
                if is_over(self) {
                    return;
                }
            }
            if self.interrupted.load(Relaxed) {
                self.stop().await;
            }
            self.look().await;
            self.take_over().await;
        }
    }

    /// Something went wrong; each is said once.
    pub(super) async fn trouble(&mut self, what: String) {
        let what = printable(&what);
        if self.troubles.len() < MOST_TROUBLES && !self.troubles.contains(&what) {
            self.troubles.push(what);
        }
        if self.options.on_lost == OnLost::Stop {
            self.stop().await;
        }
    }

    /// An agent is not counted on any more.
    pub(super) async fn lose(&mut self, at: usize, why: &str) {
        let member = &mut self.members[at];
        if member.is_over() {
            return;
        }
        member.lost = true;
        let (agent, share, name) = (member.id.clone(), member.share, member.name.clone());
        self.seconds.end(at);
        self.account_for(at);
        // If it only slept, it hears so when it wakes up.
        self.say(&RunMessage::Dismiss { agent, share }).await;
        self.trouble(format!("agent {name} {why}; its part is not in the result")).await;
    }

    async fn hear(&mut self, event: AgentEvent) {
        let of = |m: &super::Participant| m.id == event.agent && m.share == event.share;
        let Some(at) = self.members.iter().position(of) else {
            // A part whose acceptance was not heard, and then not that it was given back.
            return self.say(&RunMessage::Dismiss { agent: event.agent, share: event.share }).await;
        };
        let member = &mut self.members[at];
        member.heard = Instant::now();
        if event.number < member.next {
            // A result that was not known to have come.
            if matches!(event.what, AgentEventKind::Done { .. }) {
                self.say(&RunMessage::Thanks { agent: event.agent, share: event.share }).await;
            }
            return;
        }
        let missing = event.number - member.next;
        member.next = event.number + 1;
        if member.lost {
            // What was sent to it then may have been lost with its connection.
            return self.say(&RunMessage::Dismiss { agent: event.agent, share: event.share }).await;
        }
        if member.is_over() {
            return;
        }
        if missing > 0 {
            let what = format!("{missing} messages of agent {} are missing", member.name);
            self.trouble(what).await;
        }
        self.take(at, event).await;
    }

    async fn take(&mut self, at: usize, event: AgentEvent) {
        let member = &mut self.members[at];
        match event.what {
            AgentEventKind::Beat { clock } => {
                let moved = (clock.origin_ns() - member.origin_ns).abs();
                if moved > self.options.clock_bound.as_nanos() as i64 {
                    let what = format!(
                        "the clock of agent {} was set during the run, by {:.3} s",
                        member.name,
                        moved as f64 / 1e9
                    );
                    member.origin_ns = clock.origin_ns();
                    self.trouble(what).await;
                }
            }
            AgentEventKind::Opening { connected } => {
                member.connected = connected;
                let connected = self.members.iter().map(|m| m.connected).sum();
                (self.observer)(RunEvent::Opening { connected });
            }
            AgentEventKind::Ready { attempted, connected } => {
                (member.ready, member.attempted, member.connected) = (true, attempted, connected);
            }
            AgentEventKind::Began { mono_ns } => {
                member.late_ns = mono_ns - member.starts_ns;
                let bound_ns = self.options.clock_bound.as_nanos() as i64;
                if !self.stopped.load(Relaxed) && member.starts_ns != 0 && member.late_ns > bound_ns {
                    let late_s = member.late_ns as f64 / 1e9;
                    let what = format!("agent {} began {late_s:.3} s too late", member.name);
                    self.trouble(what).await;
                }
            }
            AgentEventKind::Second { mut second, latency_v2, open } => {
                member.open = open;
                member.reported_requests = member.reported_requests.saturating_add(second.requests);
                second.at_s += member.offset_s;
                let passed = self.since_the_start(Instant::now()).unwrap_or(0.0);
                match decode(&latency_v2) {
                    Ok(_) if second.at_s > passed + EARLY_S => {
                        let name = &self.members[at].name;
                        let what =
                            format!("agent {name} reported second {:.0} in second {passed:.0}", second.at_s);
                        self.trouble(what).await;
                    }
                    Ok(latencies) => self.seconds.add(at, &second, &latencies),
                    Err(e) => self.trouble(format!("a second of agent {}: {e}", self.members[at].name)).await,
                }
                self.report_seconds();
            }
            AgentEventKind::Done { report } => {
                let early = report.interrupted && !self.stopped.load(Relaxed);
                let what = format!("agent {} was ended early on its own host", member.name);
                member.report = Some(*report);
                self.seconds.end(at);
                self.say(&RunMessage::Thanks { agent: event.agent, share: event.share }).await;
                if early {
                    self.account_for(at);
                    self.trouble(what).await;
                }
            }
            AgentEventKind::Failed { why } => {
                self.say(&RunMessage::Thanks { agent: event.agent, share: event.share }).await;
                self.lose(at, &format!("failed: {why}")).await;
            }
        }
    }

    /// Tells the seconds that all agents have said.
    pub(super) fn report_seconds(&mut self) {
        while let Some((second, latency_us)) = self.seconds.next() {
            let open = self.members.iter().map(|m| m.open).sum();
            let status = RunStatus { open, ..RunStatus::default() };
            (self.observer)(RunEvent::Second { second: &second, latency_us: &latency_us, status });
            let at_s = second.at_s;
            self.reported.push(second);
            let requests = self.reported.iter().map(|s| s.requests).sum();
            let part = self.part_over(at_s);
            (self.observer)(RunEvent::Progress { requests, part });
        }
    }

    /// Sees who has been silent for too long.
    async fn look(&mut self) {
        let timeout = self.options.timeout;
        let held_up = self.looked.elapsed();
        self.looked = Instant::now();
        if held_up > timeout {
            // It is not the others that were silent: what they said is still to be read.
            self.members.iter_mut().for_each(|m| m.heard = Instant::now());
            self.trouble(format!("this process was suspended for {:.1} s", held_up.as_secs_f64())).await;
            return;
        }
        let silent = |lead: &Self| -> Vec<usize> {
            let waited = lead.members.iter().enumerate().filter(|(_, m)| !m.is_over());
            waited.filter(|(_, m)| m.heard.elapsed() > timeout).map(|(at, _)| at).collect()
        };
        let gone = silent(self);
        if gone.is_empty() {
            return;
        }
        let why = silence(&self.client).await;
        self.looked = Instant::now();
        for at in gone {
            self.lose(at, &format!("has said nothing for {:.1} s{why}", timeout.as_secs_f64())).await;
        }
        self.looked = Instant::now();
    }
}
