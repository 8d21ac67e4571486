//! The result of a chat load. Serialised as JSON this is the stable output of `tidegate load chat --json`.

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::ChatPlan;
use super::shared::ChatShared;
use super::wire::Speech;
use crate::histogram::encode;
use crate::report::{Latency, TlsReport};
use crate::thread_stats::histogram;

/// The outcome of a load on a messenger. Times are microseconds or seconds, as their names say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatReport {
    /// Version of this format: 1.
    pub format: u32,
    /// `chat`.
    pub protocol: String,
    /// The messenger.
    pub target: String,
    /// The members' protocol.
    pub speech: Speech,
    /// The I/O model of the generator.
    pub model: String,
    /// Its I/O threads.
    pub threads: usize,
    /// Members requested.
    pub members: usize,
    /// Members that had joined when the first message was due.
    pub joined: usize,
    /// Duration of joining in seconds.
    pub joining_s: f64,
    /// Rooms.
    pub rooms: usize,
    /// Members who sent messages.
    pub speakers: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Target rate in messages per second.
    pub rate_per_s: f64,
    /// From when the first message was due to the last one said or heard.
    pub elapsed_s: f64,
    /// Messages said.
    pub said: u64,
    /// Of those, refused by the server.
    pub refused: u64,
    /// Messages received, counted for each member.
    pub delivered: u64,
    /// Missing deliveries: messages accepted by the server that a reading member did not receive, counted for each
    /// member.
    pub undelivered: u64,
    /// Deliveries per second.
    pub delivered_per_s: f64,
    /// Reordered, duplicated or differing deliveries, and messages not received exactly once by every member.
    pub wrong: u64,
    /// Members that lost their connection.
    pub lost_members: usize,
    /// Members that stopped reading,
    pub stopped_reading: usize,
    /// and of those, disconnected by the server.
    pub cut_off: usize,
    /// From when a message was due to when a member had read it.
    pub latency_us: Latency,
    /// All of it: a histogram in µs, V2 encoding, compressed, base64.
    pub latency_v2: String,
    /// From when a message was due to when its last member had read it.
    pub to_all_us: Latency,
    /// How late messages were sent: the generator's own part of the latency.
    pub delay_us: Latency,
    /// TLS handshakes, if members use TLS.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// The run was interrupted: the result covers the time until then.
    #[serde(default)]
    pub interrupted: bool,
    /// CPU time of the generator while messages were exchanged.
    pub generator_cpu_s: Option<f64>,
    /// Of the server; none without `--server-pid`.
    pub server_cpu_s: Option<f64>,
    /// The first error.
    pub first_error: Option<String>,
}

impl ChatReport {
    pub(super) fn new(plan: &ChatPlan, model: Model) -> Self {
        Self {
            format: 1,
            protocol: "chat".into(),
            target: plan
                .targets
                .iter()
                .map(|target| target.endpoint.to_string())
                .collect::<Vec<_>>()
                .join(","),
            speech: plan.speech,
            model: model.name().into(),
            threads: plan.threads,
            members: plan.members,
            joined: 0,
            joining_s: 0.0,
            rooms: plan.rooms,
            speakers: plan.speakers,
            message_bytes: plan.size,
            rate_per_s: plan.rate,
            elapsed_s: 0.0,
            said: 0,
            refused: 0,
            delivered: 0,
            undelivered: 0,
            delivered_per_s: 0.0,
            wrong: 0,
            lost_members: 0,
            stopped_reading: 0,
            cut_off: 0,
            latency_us: Latency::default(),
            latency_v2: String::new(),
            to_all_us: Latency::default(),
            delay_us: Latency::default(),
            tls: None,
            interrupted: false,
            generator_cpu_s: None,
            server_cpu_s: None,
            first_error: None,
        }
    }

    /// Brings together what the threads have heard. Nobody hears anything any more.
    pub(super) fn enter(&mut self, plan: &ChatPlan, shared: &ChatShared, all_in: bool) {
        let (mut latency, mut delay, mut to_all) = (histogram(), histogram(), histogram());
        let mut rooms: Vec<_> = (0..plan.rooms).map(|_| super::record::Record::default()).collect();
        for mut thread_stats in shared.all_stats() {
            // The bounds are the same, so nothing can be out of range.
            let _ = latency.add(&thread_stats.latency_us);
            let _ = delay.add(&thread_stats.delay_us);
            self.delivered += thread_stats.heard;
            self.wrong += thread_stats.wrong;
            for (room, record) in rooms.iter_mut().zip(std::mem::take(&mut thread_stats.rooms)) {
                self.wrong += u64::from(!room.merge(record));
            }
        }
        for (room, record) in rooms.iter().enumerate() {
            let (readers, taken) = (shared.readers(room), shared.taken(room));
            self.wrong += record.wrong(readers);
            self.wrong += record.len().saturating_sub(taken);
            self.undelivered += taken * readers;
            record.worst_us().for_each(|us| to_all.saturating_record(us));
        }
        self.undelivered = self.undelivered.saturating_sub(self.delivered);
        self.said = shared.said();
        self.refused = shared.refused();
        self.lost_members = shared.lost();
        self.delivered_per_s = self.delivered as f64 / self.elapsed_s.max(1e-9);
        self.latency_us = Latency::of(&latency);
        self.latency_v2 = encode(&latency);
        self.to_all_us = Latency::of(&to_all);
        self.delay_us = Latency::of(&delay);
        self.first_error = shared.first_error();
        self.interrupted = shared.is_interrupted();
        if !all_in && !self.interrupted {
            self.first_error.get_or_insert_with(|| "not all members joined in time; see --timeout".into());
        }
        if self.wrong + self.undelivered > 0 {
            let (wrong, missing) = (self.wrong, self.undelivered);
            self.first_error
                .get_or_insert_with(|| format!("{wrong} deliveries were wrong and {missing} are missing"));
        }
    }

    /// Whether every reading member received everything once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.interrupted
            && self.joined == self.members
            && self.said > 0
            && self.wrong + self.undelivered + self.refused == 0
            && self.lost_members == 0
    }
}
