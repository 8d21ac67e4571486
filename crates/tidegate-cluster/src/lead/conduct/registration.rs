//! Registration of agents, and their clock offsets.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State;
use futures_util::StreamExt as _;

use super::member::{PartNumber, Participant};
use super::{Lead, LeadOptions, OnLost};
use crate::clock::{ClockSample, distance};
use crate::error::ClusterError;
use crate::text::printable;
use crate::wire::{self, AgentInfo, AgentReply, AgentRequest, Hail, WireError};

/// How often agents are polled.
const AGAIN: Duration = Duration::from_millis(250);

/// Round trips for a clock comparison, and fewer if they take longer than this together.
const ROUND_TRIPS: usize = 12;
const LEAST_ROUND_TRIPS: usize = 3;
const COMPARING: Duration = Duration::from_secs(1);

/// Maximum offers stored; more can only be forged.
const MOST_OFFERS: usize = 10_000;

/// Timeout for the broker's answer when no agent answers.
const PROBE: Duration = Duration::from_secs(2);

/// Waits until enough agents have registered; returns the first ones, in the order of their names.
pub(super) async fn register(
    client: &Client,
    options: &LeadOptions,
    run: &str,
    interrupted: &AtomicBool,
) -> Result<Vec<Participant>, ClusterError> {
    let broken = |why: String| ClusterError::Broker { url: options.access.shown(), why };
    let inbox = client.new_inbox();
    let mut offers = client.subscribe(inbox.clone()).await.map_err(|e| broken(e.to_string()))?;
    let hail = wire::encode(&Hail { run: run.to_owned() }).map_err(|e| broken(e.to_string()))?;
    let begun = Instant::now();
    let (mut free, mut busy): (Vec<AgentInfo>, Vec<AgentInfo>) = Default::default();
    loop {
        if interrupted.load(Relaxed) {
            return Err(ClusterError::Interrupted);
        }
        let sent = client.publish_with_reply(wire::HAIL, inbox.clone(), hail.clone().into()).await;
        sent.map_err(|e| broken(e.to_string()))?;
        let until = Instant::now() + AGAIN;
        while let Ok(Some(message)) = tokio::time::timeout_at(until.into(), offers.next()).await {
            if message.status.is_some() {
                continue; // the broker says that nobody is there (503, no responders)
            }
            let offer = match wire::of_an_agent::<AgentInfo>(&message.payload) {
                Ok(offer) => offer,
                Err(e @ WireError::Version(_)) => return Err(ClusterError::NotBegun(e.to_string())),
                Err(e) => {
                    tracing::debug!(error = %printable(&e.to_string()), "an offer that no agent makes");
                    continue;
                }
            };
            // One that was busy may be free when it is asked again.
            busy.retain(|other| other.id != offer.id);
            let list = if offer.busy { &mut busy } else { &mut free };
            if list.len() < MOST_OFFERS && !list.iter().any(|other| other.id == offer.id) {
                list.push(offer);
            }
            if free.len() >= options.agents {
                break;
            }
        }
        if free.len() >= options.agents {
            free.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
            let of = free.len();
            let parts = (0..of).map(|index| PartNumber { index, of });
            return Ok(free
                .into_iter()
                .zip(parts)
                .map(|(o, part)| Participant::new(o.id, o.name, part))
                .collect());
        }
        if begun.elapsed() >= options.wait {
            break;
        }
    }
    if !silence(client).await.is_empty() {
        return Err(broken("it stopped answering; check that nats-server runs there".into()));
    }
    Err(ClusterError::TooFew {
        came: free.len(),
        wanted: options.agents,
        waited_s: options.wait.as_secs_f64(),
        busy: if busy.is_empty() {
            String::new()
        } else {
            format!(", and {} at work for another run", busy.len())
        },
    })
}

/// Whether it may be the broker that an agent is not heard of, in words.
pub(super) async fn silence(client: &Client) -> &'static str {
    if client.connection_state() != State::Connected {
        return " (the connection to the broker is lost)";
    }
    // A round trip, which a suspended broker does not make.
    let probe = client.request(client.new_inbox(), "".into());
    match tokio::time::timeout(PROBE, probe).await {
        Err(_) => " (the broker does not answer)",
        Ok(_) => "",
    }
}

/// Sends a request to one agent.
pub(super) async fn ask(
    client: &Client,
    id: &str,
    ask: &AgentRequest,
    timeout: Duration,
) -> Result<AgentReply, String> {
    let bytes = wire::encode(ask).map_err(|e| e.to_string())?;
    if bytes.len() > client.max_payload() {
        return Err(format!(
            "the plan has {} bytes and the broker takes messages of {}: use a smaller body or raise its max_payload",
            bytes.len(),
            client.max_payload()
        ));
    }
    let asked = tokio::time::timeout(timeout, client.request(wire::of_agent(id), bytes.into())).await;
    let message = asked.map_err(|_| format!("it did not answer within {timeout:?}"))?;
    let message = message.map_err(|e| format!("it cannot be asked: {e}"))?;
    match wire::of_an_agent(&message.payload) {
        Ok(AgentReply::Refused { why }) => Ok(AgentReply::Refused { why: printable(&why) }),
        Ok(answer) => Ok(answer),
        Err(e) => Err(printable(&e.to_string())),
    }
}

impl Lead<'_> {
    /// Measures the clock offsets of all agents.
    pub(super) async fn compare_clocks(&mut self) -> Result<(), ClusterError> {
        for at in 0..self.members.len() {
            let mut trips = Vec::with_capacity(ROUND_TRIPS);
            let begun = Instant::now();
            let enough = |made| made >= LEAST_ROUND_TRIPS && begun.elapsed() > COMPARING;
            for made in 0..ROUND_TRIPS {
                if enough(made) {
                    break;
                }
                let before = self.clock.read();
                let answer = self.ask(&self.members[at].id, &AgentRequest::Clock).await;
                let after = self.clock.read();
                match answer {
                    Ok(AgentReply::Clock(other)) => trips.push(ClockSample { before, other, after }),
                    Ok(_) => {}
                    Err(why) => {
                        let (name, broker) = (&self.members[at].name, silence(&self.client).await);
                        let why = format!("the clock of agent {name} cannot be read: {why}{broker}");
                        return Err(ClusterError::NotBegun(why));
                    }
                }
            }
            let Some(found) = distance(&trips) else { continue };
            let member = &mut self.members[at];
            member.distance = found;
            member.origin_ns = trips.last().map_or(0, |trip| trip.other.origin_ns());
            let bound_ns = self.options.clock_bound.as_nanos() as i64;
            let name = &member.name;
            if found.wall_ns.abs() - found.round_trip_ns / 2 > bound_ns {
                let ahead_s = found.wall_ns as f64 / 1e9;
                self.troubles.push(format!(
                    "the clock of agent {name} is {:.3} s {} this one: set it (NTP), or raise --clock-bound",
                    ahead_s.abs(),
                    if ahead_s > 0.0 { "ahead of" } else { "behind" },
                ));
            }
            if found.round_trip_ns / 2 > bound_ns {
                self.troubles.push(format!(
                    "agent {name} is {:.3} s away, so its start cannot be determined exactly",
                    found.round_trip_ns as f64 / 1e9
                ));
            }
        }
        if !self.troubles.is_empty() && self.options.on_lost == OnLost::Stop {
            return Err(ClusterError::NotBegun(self.troubles.join("; ")));
        }
        Ok(())
    }
}
