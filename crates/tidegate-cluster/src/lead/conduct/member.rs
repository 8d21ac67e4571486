//! An agent as its lead knows it: once for each part that it has.

use std::time::Instant;

use tidegate_load::{AgentReport, Loss, Plan, Report};

use crate::clock::Distance;

/// An agent of a run, with one part of it.
pub(super) struct Participant {
    pub(super) id: String,
    pub(super) name: String,
    /// Which of its parts it is; the first is 0.
    pub(super) share: u32,
    /// Parts that the agent was ever asked to carry, whether it said yes or not; kept with its first.
    pub(super) asked: u32,
    /// Its part of the load.
    pub(super) part: PartNumber,
    /// Whose part it was before, by number.
    pub(super) took_over: Option<usize>,
    pub(super) distance: Distance,
    /// What its wall clock showed when its process began, as first seen.
    pub(super) origin_ns: i64,
    /// When it last said something.
    pub(super) heard: Instant,
    /// The number of its next event.
    pub(super) next: u64,
    pub(super) ready: bool,
    pub(super) attempted: u64,
    pub(super) connected: u64,
    pub(super) open: u64,
    /// Requests of the seconds that it said.
    pub(super) reported_requests: u64,
    /// When it was to begin, by its own clock, and how much later it did.
    pub(super) starts_ns: i64,
    /// The same by our clock; none until it is announced.
    pub(super) starts_at: Option<Instant>,
    /// How long after that of the whole load its window begins, in seconds.
    pub(super) offset_s: f64,
    pub(super) late_ns: i64,
    pub(super) report: Option<Report>,
    /// Its result does not come.
    pub(super) lost: bool,
    /// What is known of that, also if it ended early.
    pub(super) loss: Option<Loss>,
}

/// Part `index` of `of` of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartNumber {
    pub(super) index: usize,
    pub(super) of: usize,
}

impl PartNumber {
    /// Its plan. Parts that nothing is in are never made.
    pub(super) fn plan(self, whole: &Plan) -> Option<Plan> {
        whole.part(self.index, self.of).ok()
    }

    /// Itself as up to so many parts of the whole, of which none is empty.
    pub(super) fn shared(self, whole: &Plan, by: usize) -> Vec<Self> {
        let shares = |by: usize| -> Option<Vec<Self>> {
            let parts = (0..by).map(|j| Self { index: self.index + j * self.of, of: self.of * by });
            parts.map(|part| part.plan(whole).map(|_| part)).collect()
        };
        (1..=by).rev().find_map(shares).unwrap_or_default()
    }
}

impl Participant {
    /// Nothing is known yet but who it is.
    pub(super) fn new(id: String, name: String, part: PartNumber) -> Self {
        Self {
            id,
            name,
            share: 0,
            asked: 1,
            part,
            took_over: None,
            distance: Distance { mono_ns: 0, wall_ns: 0, round_trip_ns: 0 },
            origin_ns: 0,
            heard: Instant::now(),
            next: 0,
            ready: false,
            attempted: 0,
            connected: 0,
            open: 0,
            reported_requests: 0,
            starts_ns: 0,
            starts_at: None,
            offset_s: 0.0,
            late_ns: 0,
            report: None,
            lost: false,
            loss: None,
        }
    }

    /// The same agent with a part that was another's.
    pub(super) fn with_part_of(&self, lost: usize, share: u32, part: PartNumber) -> Self {
        let mut again = Self::new(self.id.clone(), self.name.clone(), part);
        (again.share, again.took_over) = (share, Some(lost));
        (again.distance, again.origin_ns) = (self.distance, self.origin_ns);
        again
    }

    /// Whether nothing more is expected of it.
    pub(super) fn is_over(&self) -> bool {
        self.lost || self.report.is_some()
    }

    /// What is notified of it.
    pub(super) fn report(&self) -> AgentReport {
        let us = |ns: i64| ns as f64 / 1e3;
        let mut report = AgentReport {
            name: self.name.clone(),
            counted: self.report.is_some(),
            clock_ahead_us: us(self.distance.wall_ns),
            round_trip_us: us(self.distance.round_trip_ns),
            began_late_us: us(self.late_ns),
            loss: self.loss.clone(),
            ..AgentReport::default()
        };
        if let Some(r) = &self.report {
            report.connections = r.connections;
            report.connected = r.connected;
            report.requests = r.requests;
            report.failed = r.failed;
            report.requests_per_s = r.requests_per_s;
            report.latency_us = r.latency_us.clone();
            report.latency_v2.clone_from(&r.latency_v2);
            report.verdict.clone_from(&r.verdict);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use tidegate_load::{Amount, Protocol};

    use super::*;
    use crate::order::tests::plan;

    #[test]
    fn a_part_is_shared_by_as_many_as_it_has_work_for() {
        let whole = Plan {
            connections: 10,
            amount: Amount::Requests(100),
            messages_each: None,
            half_close: false,
            ..plan(Protocol::Echo { size: 1, window: 1 })
        };
        // Of three parts of ten connections the second has three.
        let part = PartNumber { index: 1, of: 3 };
        let shared = |by| part.shared(&whole, by).iter().map(|p| (p.index, p.of)).collect::<Vec<_>>();
        assert_eq!(shared(2), [(1, 6), (4, 6)]);
        assert_eq!(shared(9), [(1, 9), (4, 9), (7, 9)]);
        assert_eq!(shared(0), []);
        let all = part.shared(&whole, 9).iter().filter_map(|p| p.plan(&whole)).map(|p| p.connections).sum();
        assert_eq!(part.plan(&whole).map(|p| p.connections), Some(all));
    }
}
