//! Who lives where: each node says that it lives, and who lives there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_services::chat::Residents;

use super::state::BridgeState;
use super::wire::{NICKS, NODES, NodeMessage};
use crate::wire;

/// How often a node asks the others for everything, or says everything, at most.
const SELDOM: Duration = Duration::from_secs(1);

/// What is to be said to all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcements {
    beat: Instant,
    hail: Option<Instant>,
    state: Option<Instant>,
    /// When it was done last.
    hailed: Option<Instant>,
    stated: Option<Instant>,
}

impl Announcements {
    pub(super) fn new(now: Instant) -> Self {
        Self { beat: now, hail: Some(now), state: Some(now), hailed: None, stated: None }
    }

    /// We want to know everything.
    pub(super) fn hail(&mut self) {
        let at = self.hailed.map_or_else(Instant::now, |last| last + SELDOM);
        self.hail.get_or_insert(at);
    }

    /// Everything is to be said.
    fn state(&mut self) {
        let at = self.stated.map_or_else(Instant::now, |last| last + SELDOM);
        self.state.get_or_insert(at);
    }
}

/// Whether it is time; if so it is done.
fn is_due(at: &mut Option<Instant>, done: &mut Option<Instant>, now: Instant) -> bool {
    let due = at.is_some_and(|at| now >= at);
    if due {
        (*at, *done) = (None, Some(now));
    }
    due
}

impl BridgeState {
    /// Another node, or this one, says something.
    pub(super) fn hear(&mut self, payload: &[u8]) {
        let body = match NodeMessage::read(payload) {
            Ok(body) => body,
            Err(e) => return self.reject(&e.to_string()),
        };
        let now = Instant::now();
        match body {
            NodeMessage::Beat { node, .. } if node == self.node => self.standing.echo(now),
            NodeMessage::Hail { node } | NodeMessage::Here { node, .. } | NodeMessage::Bye { node }
                if node == self.node => {}
            NodeMessage::Beat { node, name, stream, seen } => {
                if stream == self.made {
                    self.hear_of(seen);
                }
                if self.peers.hear(node, &name, now) {
                    self.word.hail();
                    self.news(
                        "node",
                        &format!("node {name} is there; {} others in all", self.peers.len()),
                        now,
                    );
                }
            }
            NodeMessage::Hail { .. } => self.word.state(),
            NodeMessage::Here { node, room, members, nicks } if self.peers.knows(node) => {
                let nicks = nicks.into_iter().map(Arc::from).collect();
                if let Err(e) = self.federation.set_residents(node, &room, Residents { members, nicks }) {
                    self.reject(&e.to_string());
                }
            }
            NodeMessage::Here { .. } => self.word.hail(),
            NodeMessage::Bye { node } => {
                if let Some(name) = self.peers.leave(node) {
                    self.federation.forget(node, None);
                    self.news("node-left", &format!("node {name} has ended"), now);
                }
            }
        }
    }

    /// Says that a node came or went, but not more often than anybody can read.
    fn news(&mut self, event: &str, text: &str, now: Instant) {
        if self.news.lets(now) {
            self.report(event, text);
        }
    }

    /// Others that have said nothing for too long are lost, and their members with them.
    pub(super) fn lose_silent(&mut self, now: Instant) {
        for (node, name) in self.peers.silent(self.options.timeout, now) {
            // Members are notified of as many as people can read.
            let is_announced = self.news.lets(now);
            self.federation.forget(node, is_announced.then_some(&*name));
            if !is_announced {
                continue;
            }
            let timeout = self.options.timeout.as_secs_f64();
            let text =
                format!("node {name} has said nothing for {timeout:.1} s; its members are taken for gone");
            self.report("node-lost", &text);
        }
    }

    /// Says what is due to all nodes.
    pub(super) async fn talk(&mut self, now: Instant) {
        let word = &mut self.word;
        let beats = now >= word.beat;
        let hails = is_due(&mut word.hail, &mut word.hailed, now);
        let states = is_due(&mut word.state, &mut word.stated, now);
        if beats || states {
            self.word.beat = now + self.options.timeout / 5;
            let name = self.options.name.clone();
            let beat = NodeMessage::Beat { node: self.node, name, stream: self.made, seen: self.seen };
            self.publish(&beat).await;
        }
        if hails {
            self.publish(&NodeMessage::Hail { node: self.node }).await;
        }
        let residents = if states { self.federation.residents_of_all() } else { self.federation.moved() };
        for (room, Residents { members, nicks }) in residents {
            let nicks = nicks.iter().take(NICKS.min(members)).map(|nick| nick.to_string()).collect();
            let here = NodeMessage::Here { node: self.node, room: room.to_string(), members, nicks };
            self.publish(&here).await;
        }
    }

    async fn publish(&mut self, body: &NodeMessage) {
        let Ok(message) = wire::encode(body) else { return };
        let sent = tokio::time::timeout(SELDOM, self.client.publish(NODES, message.into())).await;
        if !matches!(sent, Ok(Ok(()))) {
            // A node that did not hear it has to hear everything.
            self.word.state();
        }
    }

    /// Says goodbye.
    pub(super) async fn leave(mut self) {
        self.publish(&NodeMessage::Bye { node: self.node }).await;
        let _ = tokio::time::timeout(SELDOM, self.client.flush()).await; // the others notice its silence, too
        let counts = self.federation.counts();
        let text = format!(
            "the bridge ends: {} things were refused because the others could not be notified in time, {} waits for \
             queues of members",
            counts.refused(),
            counts.waits
        );
        self.report("bridge-ended", &text);
    }
}
