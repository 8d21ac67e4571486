//! The results of the agents as one.

use tidegate_load::assessment::assess;
use tidegate_load::verdict::{Evidence, LimitedBy, Verdict, Warning};
use tidegate_load::{AgentReport, Amount, Loss, Report, Together, merge};

use super::Lead;
use super::member::Participant;
use crate::error::ClusterError;

impl Lead<'_> {
    /// Everything that was counted, and what is doubtful about it.
    pub(super) fn result(&mut self) -> Result<Report, ClusterError> {
        let reports: Vec<Report> = self.members.iter().filter_map(of_the_whole).collect();
        if reports.is_empty() {
            return Err(ClusterError::NoResult(self.troubles.join("; ")));
        }
        let mut all = merge(&reports).map_err(|e| ClusterError::NoResult(e.to_string()))?;
        self.complete_accounts(all.elapsed_s);
        // As of one generator: what was asked for, and rates over the one window.
        all.connections = self.plan.connections;
        all.rate_bytes_per_s_per_block = self.plan.rate_bytes_per_s_per_block;
        all.interrupted |= self.is_stopped();
        let per_s = |n: u64| if all.elapsed_s > 0.0 { n as f64 / all.elapsed_s } else { 0.0 };
        let late = all.open_loop.as_ref().map_or(0, |open| open.answered_late);
        (all.requests_per_s, all.sent_bytes_per_s, all.received_bytes_per_s) =
            (per_s(all.requests.saturating_sub(late)), per_s(all.bytes_sent), per_s(all.bytes_received));
        if let (Some(open), Some(rate)) = (&mut all.open_loop, self.plan.rate) {
            open.rate_per_s = rate.requests_per_s;
            open.started_per_s = if all.elapsed_s > 0.0 { open.started as f64 / all.elapsed_s } else { 0.0 };
        }
        all.seconds = std::mem::take(&mut self.reported);
        all.verdict = Some(self.verdict(&all));
        all.together = Some(Together { agents: self.reports_of_agents(), troubles: self.troubles.clone() });
        Ok(all)
    }

    fn reports_of_agents(&self) -> Vec<AgentReport> {
        let name = |at: usize| self.members[at].name.clone();
        let report = |m: &Participant| AgentReport { taken_over_from: m.took_over.map(name), ..m.report() };
        self.members.iter().map(report).collect()
    }

    /// Which side was the limit of all of it, and which agent if it was theirs.
    fn verdict(&self, all: &Report) -> Verdict {
        let seen =
            |m: &Participant| Some((m.name.clone(), m.report.as_ref()?.verdict.as_ref()?.evidence.clone()));
        let seen: Vec<_> = self.members.iter().filter_map(seen).collect();
        let mut verdict = assess(all, evidence(&seen));
        if verdict.limited_by == LimitedBy::Generator
            && let Some(name) = busiest(&seen)
        {
            verdict.because.push_str(&format!(" (of the agents {name} was the busiest)"));
        }
        let lost = self.members.iter().filter(|m| m.loss.is_some()).count();
        if lost == 0 {
            return verdict;
        }
        // Less than was asked for came, and that was not the server's doing.
        let missing = self.missing(all);
        if !missing.is_empty() {
            verdict.limited_by = LimitedBy::Generator;
            verdict.because = format!("a part of the load is missing, that of {}", missing.join(" and "));
        }
        verdict.warnings.push(Warning::AgentsLost { lost: lost as u64 });
        verdict
    }

    /// The names of those whose part was not done in full, by themselves or by others.
    fn missing(&self, all: &Report) -> Vec<&str> {
        let of_a_number = |n: u64| all.requests + all.failed + all.timed_out < n;
        let is_missing = |m: &&Participant| match (&m.loss, m.took_over, self.plan.amount) {
            // What an heir lost is in the account of the one it had it from.
            (None, ..) | (_, Some(_), _) => false,
            (Some(Loss { missing_requests: Some(n), .. }), ..) => *n > 0,
            (Some(_), None, Amount::Requests(n)) => of_a_number(n),
            (Some(_), None, Amount::Time(_)) => true,
        };
        self.members.iter().filter(is_missing).map(|m| m.name.as_str()).collect()
    }
}

/// What a member brought, with the length of its window counted from the beginning of that of the whole.
fn of_the_whole(member: &Participant) -> Option<Report> {
    let mut report = member.report.clone()?;
    report.elapsed_s += member.offset_s;
    Some(report)
}

/// The name of the agent with the busiest thread.
fn busiest(seen: &[(String, Evidence)]) -> Option<&str> {
    let wanted = |e: &Evidence| e.generator.map(|share| share.wanted());
    let shares = seen.iter().filter_map(|(name, evidence)| Some((name, wanted(evidence)?)));
    shares.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name.as_str())
}

/// What all of it is judged by: the busiest thread of any agent, and what was in flight everywhere.
fn evidence(seen: &[(String, Evidence)]) -> Evidence {
    let seen = || seen.iter().map(|(_, evidence)| evidence);
    Evidence {
        generator: seen().filter_map(|e| e.generator).max_by(|a, b| a.wanted().total_cmp(&b.wanted())),
        server: None,
        mean_in_flight: seen().map(|e| e.mean_in_flight).sum(),
        backlog_growth: seen().map(|e| e.backlog_growth).sum(),
        samples: seen().map(|e| e.samples).min().unwrap_or(0),
        events_per_wake_up: seen().map(|e| e.events_per_wake_up).fold(f64::INFINITY, f64::min).min(1e9),
        is_remote: seen().any(|e| e.is_remote),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_load::verdict::Share;

    use super::*;

    #[test]
    fn the_busiest_agent_speaks_for_all() {
        let seen = |name: &str, ran: f64, mean_in_flight: f64| {
            let generator = Some(Share { ran, waited: 0.0 });
            (name.to_owned(), Evidence { generator, mean_in_flight, samples: 20, ..Evidence::default() })
        };
        let all = [seen("a", 0.2, 3.0), seen("b", 0.95, 4.0), seen("c", 0.4, 5.0)];
        assert_eq!(busiest(&all), Some("b"));
        let evidence = evidence(&all);
        assert_eq!((evidence.generator.map(|s| s.ran), evidence.mean_in_flight), (Some(0.95), 12.0));
        let report = Report { requests: 10, requests_per_s: 10.0, elapsed_s: 2.0, ..Report::default() };
        assert_eq!(assess(&report, evidence).limited_by, LimitedBy::Generator);
    }
}
