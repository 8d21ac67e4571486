//! The results of the agents as one.

use tidegate_load::certificate::{Evidence, certify};
use tidegate_load::{Report, Together, merge};

use super::Lead;
use super::member::Member;
use crate::error::ClusterError;

impl Lead<'_> {
    /// Everything that was counted, and what is doubtful about it.
    pub(super) fn result(&mut self) -> Result<Report, ClusterError> {
        let reports: Vec<Report> = self.members.iter().filter_map(|m| m.report.clone()).collect();
        if reports.is_empty() {
            return Err(ClusterError::NoResult(self.troubles.join("; ")));
        }
        let mut all = merge(&reports).map_err(|e| ClusterError::NoResult(e.to_string()))?;
        // As of one generator: what was asked for, and rates over the one window.
        all.connections = self.plan.connections;
        all.rate_bytes_per_s_per_block = self.plan.rate_bytes_per_s_per_block;
        all.interrupted |= self.stopped;
        let per_s = |n: u64| if all.elapsed_s > 0.0 { n as f64 / all.elapsed_s } else { 0.0 };
        (all.requests_per_s, all.sent_bytes_per_s, all.received_bytes_per_s) =
            (per_s(all.requests), per_s(all.bytes_sent), per_s(all.bytes_received));
        if let (Some(open), Some(rate)) = (&mut all.open_loop, self.plan.rate) {
            open.rate_per_s = rate.requests_per_s;
            open.started_per_s = if all.elapsed_s > 0.0 { open.started as f64 / all.elapsed_s } else { 0.0 };
        }
        all.seconds = std::mem::take(&mut self.told);
        all.certificate = Some(certify(&all, evidence(&reports)));
        all.together = Some(Together {
            agents: self.members.iter().map(Member::told).collect(),
            troubles: self.troubles.clone(),
        });
        Ok(all)
    }
}

/// What all of it is judged by: the busiest thread of any agent, and what was in flight everywhere.
fn evidence(reports: &[Report]) -> Evidence {
    let seen = || reports.iter().filter_map(|r| r.certificate.as_ref()).map(|c| &c.evidence);
    let busiest = seen().filter_map(|e| e.generator).max_by(|a, b| a.wanted().total_cmp(&b.wanted()));
    Evidence {
        generator: busiest,
        server: None,
        mean_in_flight: seen().map(|e| e.mean_in_flight).sum(),
        samples: seen().map(|e| e.samples).min().unwrap_or(0),
        events_per_wake_up: seen().map(|e| e.events_per_wake_up).fold(f64::INFINITY, f64::min).min(1e9),
    }
}
