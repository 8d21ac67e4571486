//! Seconds of several agents as one: counts are summed and histograms merged, so that the percentiles of a second are
//! those of all its answers.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate_load::Second;
use tidegate_load::histogram::empty;
use tidegate_load::report::Latency;

/// A second may end so much after its time and still is that second.
const LATE_S: f64 = 0.25;

/// Seconds that not every agent has said yet.
pub(crate) struct PendingSeconds {
    open: BTreeMap<u64, (Second, Histogram<u64>)>,
    /// The last second that each agent has said; none once nothing more will come from it.
    said: Vec<Option<u64>>,
    /// The last one that was given out.
    reported: u64,
}

impl PendingSeconds {
    /// Of so many agents.
    pub(crate) fn new(agents: usize) -> Self {
        Self { open: BTreeMap::new(), said: vec![Some(0); agents], reported: 0 }
    }

    /// One more agent, of which nothing is expected yet.
    pub(crate) fn join(&mut self) {
        self.said.push(None);
    }

    /// From now on an agent is expected to say every second after this one.
    pub(crate) fn expect(&mut self, agent: usize, after: u64) {
        if let Some(said) = self.said.get_mut(agent) {
            *said = Some(after);
        }
    }

    /// An agent says one.
    pub(crate) fn add(&mut self, agent: usize, second: &Second, latency_us: &Histogram<u64>) {
        let number = (second.at_s - LATE_S).ceil().max(1.0) as u64;
        if let Some(Some(said)) = self.said.get_mut(agent) {
            *said = number.max(*said);
        }
        // What comes after its second was given out is of the next one: nothing is lost.
        let number = number.max(self.reported + 1);
        let (sum, all) = self.open.entry(number).or_insert_with(|| (Second::default(), empty()));
        all.auto(true);
        // It grows by itself, so nothing is out of range.
        let _ = all.add(latency_us);
        sum.at_s = sum.at_s.max(second.at_s);
        sum.length_s = sum.length_s.max(second.length_s);
        sum.requests = sum.requests.saturating_add(second.requests);
        sum.failed = sum.failed.saturating_add(second.failed);
        sum.late_starts = sum.late_starts.saturating_add(second.late_starts);
        sum.in_flight = sum.in_flight.saturating_add(second.in_flight);
        sum.bytes_sent = sum.bytes_sent.saturating_add(second.bytes_sent);
        sum.bytes_received = sum.bytes_received.saturating_add(second.bytes_received);
    }

    /// Nothing more comes from an agent.
    pub(crate) fn end(&mut self, agent: usize) {
        if let Some(said) = self.said.get_mut(agent) {
            *said = None;
        }
    }

    /// The next second that every agent has said, with all its latencies.
    pub(crate) fn next(&mut self) -> Option<(Second, Histogram<u64>)> {
        let (&number, _) = self.open.first_key_value()?;
        if self.said.iter().flatten().any(|&said| said < number) {
            return None;
        }
        let (mut second, all) = self.open.remove(&number)?;
        self.reported = number;
        second.latency_us = Latency::of(&all);
        Some((second, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(seconds: &mut PendingSeconds, agent: usize, at_s: f64, us: u64) {
        let mut latencies = empty();
        latencies.record(us).unwrap();
        let second = Second { at_s, length_s: 1.0, requests: 1, in_flight: 2, ..Second::default() };
        seconds.add(agent, &second, &latencies);
    }

    #[test]
    fn a_second_is_given_out_when_every_agent_has_said_it() {
        let mut seconds = PendingSeconds::new(3);
        say(&mut seconds, 0, 1.0002, 100);
        say(&mut seconds, 1, 1.1, 200);
        say(&mut seconds, 0, 2.0, 1_000);
        assert!(seconds.next().is_none());
        say(&mut seconds, 2, 1.0, 300);
        let (first, all) = seconds.next().unwrap();
        assert_eq!(
            (first.requests, first.in_flight, first.latency_us.p50, first.latency_us.max),
            (3, 6, 200, 300)
        );
        assert_eq!((all.len(), first.at_s), (3, 1.1));
        assert!(seconds.next().is_none());
        // One is gone, and the others need not wait for it.
        seconds.end(2);
        say(&mut seconds, 1, 2.0, 1_000);
        assert_eq!(seconds.next().unwrap().0.requests, 2);
    }

    #[test]
    fn who_joins_later_is_waited_for_from_then_on() {
        let mut seconds = PendingSeconds::new(1);
        seconds.join();
        say(&mut seconds, 0, 1.0, 1);
        assert_eq!(seconds.next().unwrap().0.requests, 1);
        seconds.expect(1, 2);
        say(&mut seconds, 0, 2.0, 1);
        say(&mut seconds, 0, 3.0, 1);
        assert_eq!(seconds.next().map(|(second, _)| second.requests), Some(1));
        assert!(seconds.next().is_none());
        say(&mut seconds, 1, 3.1, 1);
        assert_eq!(seconds.next().map(|(second, _)| second.requests), Some(2));
    }

    #[test]
    fn what_comes_late_is_not_lost() {
        let mut seconds = PendingSeconds::new(1);
        say(&mut seconds, 0, 1.0, 1);
        assert_eq!(seconds.next().unwrap().0.requests, 1);
        // The answers that came after the window.
        say(&mut seconds, 0, 1.05, 1);
        assert_eq!(seconds.next().map(|(second, _)| second.requests), None);
        seconds.end(0);
        assert_eq!(seconds.next().unwrap().0.requests, 1);
        assert!(seconds.next().is_none());
    }
}
