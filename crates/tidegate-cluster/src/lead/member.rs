//! An agent as its lead knows it.

use std::time::Instant;

use tidegate_load::{AgentReport, Report};

use crate::clock::Distance;

/// An agent of a run.
pub(super) struct Member {
    pub(super) id: String,
    pub(super) name: String,
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
    /// When it was to begin, by its own clock, and how much later it did.
    pub(super) starts_ns: i64,
    pub(super) late_ns: i64,
    pub(super) report: Option<Report>,
    /// Its result does not come.
    pub(super) lost: bool,
}

impl Member {
    /// Nothing is known yet but who it is.
    pub(super) fn new(id: String, name: String) -> Self {
        Self {
            id,
            name,
            distance: Distance { mono_ns: 0, wall_ns: 0, round_trip_ns: 0 },
            origin_ns: 0,
            heard: Instant::now(),
            next: 0,
            ready: false,
            attempted: 0,
            connected: 0,
            open: 0,
            starts_ns: 0,
            late_ns: 0,
            report: None,
            lost: false,
        }
    }

    /// Whether nothing more is expected of it.
    pub(super) fn is_over(&self) -> bool {
        self.lost || self.report.is_some()
    }

    /// What is told of it.
    pub(super) fn told(&self) -> AgentReport {
        let us = |ns: i64| ns as f64 / 1e3;
        let mut told = AgentReport {
            name: self.name.clone(),
            counted: self.report.is_some(),
            clock_ahead_us: us(self.distance.wall_ns),
            round_trip_us: us(self.distance.round_trip_ns),
            began_late_us: us(self.late_ns),
            ..AgentReport::default()
        };
        if let Some(r) = &self.report {
            told.connections = r.connections;
            told.connected = r.connected;
            told.requests = r.requests;
            told.failed = r.failed;
            told.requests_per_s = r.requests_per_s;
            told.latency_us = r.latency_us.clone();
            told.latency_v2.clone_from(&r.latency_v2);
            told.certificate.clone_from(&r.certificate);
        }
        told
    }
}
