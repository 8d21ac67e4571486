//! One of several equal parts of a load, for generators that run it together.
//!
//! Connections and requests are numbered across the whole load and distributed in turn: part `i` of `n` has the numbers
//! `i`, `i + n`, `i + 2n`, and so on. So the parts always sum to the whole, and each part of a schedule is spread over
//! all of it.
//!
//! A part of a part is a part: part `j` of `m` of it is part `i + jn` of `nm` of the whole. So other generators can
//! take over the share of a lost one ([`Plan::joining`]).

use std::time::{Duration, Instant};

use crate::pacer::Schedule;
use crate::plan::{Amount, LoadError, Plan};

/// Which part of a load a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 0.
    index: u64,
    /// Parts of the whole.
    of: u64,
    /// Connections of the whole.
    connections: u64,
    /// When the whole began, if this part joins it later.
    joins: Option<Instant>,
}

impl Part {
    /// All of a load.
    pub(crate) fn whole(connections: usize) -> Self {
        Self { index: 0, of: 1, connections: connections as u64, joins: None }
    }

    /// The number in the whole of number `own` in this part.
    pub(crate) fn number(self, own: u64) -> u64 {
        own.saturating_mul(self.of).saturating_add(self.index)
    }

    /// How many of the first `all` of the whole are in this part.
    pub(crate) fn share(self, all: u64) -> u64 {
        all.saturating_sub(self.index).div_ceil(self.of)
    }

    /// Parts of the whole.
    pub(crate) fn of(self) -> u64 {
        self.of
    }

    /// Connections of the whole.
    pub(crate) fn connections(self) -> u64 {
        self.connections
    }

    /// When the whole began, if this part joins it later.
    pub(crate) fn joins(self) -> Option<Instant> {
        self.joins
    }
}

impl Plan {
    /// Part `index` (from 0) of `of`: its connections, its requests, and its slots in the schedule. All parts together
    /// are exactly this plan. Rates and limits per connection are unchanged.
    ///
    /// # Errors
    /// [`LoadError::Plan`] if a part would be empty, or this is a part already.
    pub fn part(&self, index: usize, of: usize) -> Result<Self, LoadError> {
        let wrong = |why: String| Err(LoadError::Plan(why));
        if index >= of || self.part.is_some() {
            return wrong(format!("part {index} of {of} is not possible for this load"));
        }
        let part =
            Part { index: index as u64, of: of as u64, connections: self.connections as u64, joins: None };
        let connections = part.share(self.connections as u64) as usize;
        if connections == 0 {
            return wrong(format!("{} connections cannot be shared by {of}: raise -c", self.connections));
        }
        let amount = match (self.amount, self.messages_each) {
            (Amount::Requests(n), _) if part.share(n) == 0 => {
                return wrong(format!("{n} requests cannot be shared by {of}: raise -n"));
            }
            (Amount::Requests(_), Some(each)) => Amount::Requests(each.saturating_mul(connections as u64)),
            (Amount::Requests(n), None) => Amount::Requests(part.share(n)),
            (time, _) => time,
        };
        Ok(Self { connections, amount, part: Some(part), ..self.clone() })
    }

    /// This part of a load that began then, before this part does: requests due earlier belong to others, and it ends
    /// when the whole does. Has no effect for a number of requests without a schedule, which is never late.
    #[must_use]
    pub fn joining(mut self, begun: Instant) -> Self {
        let mut part = self.its_part();
        part.joins = Some(begun);
        self.part = Some(part);
        self
    }

    /// How long its window is that begins then: shorter for a part that joins later.
    pub(crate) fn window_time(&self, time: Duration, window_begun: Instant) -> Duration {
        match self.its_part().joins {
            Some(begun) => (begun + self.warm_up + time).saturating_duration_since(window_begun),
            None => time,
        }
    }

    /// Requests of this part that are due from one time after the start of the schedule to another; none without a
    /// schedule.
    #[must_use]
    pub fn due_between(&self, from: Duration, until: Duration) -> Option<u64> {
        let schedule = Schedule::new(self.rate?, self.its_part());
        let end = self.schedule_end(&schedule);
        let before = |time| schedule.before(time).min(end);
        Some(before(until).saturating_sub(before(from)))
    }

    /// The number in this part of the first request that is not to be begun.
    pub(crate) fn schedule_end(&self, schedule: &Schedule) -> u64 {
        match self.amount {
            Amount::Requests(n) => n,
            Amount::Time(time) => schedule.before(self.warm_up + time),
        }
    }

    /// Which part this is of a load, or all of it.
    pub(crate) fn its_part(&self) -> Part {
        self.part.unwrap_or_else(|| Part::whole(self.connections))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pacer::Pacer;
    use crate::plan::Rate;
    use crate::plan::tests::plan;

    fn parts(plan: &Plan, of: usize) -> Vec<Plan> {
        (0..of).map(|index| plan.part(index, of).unwrap()).collect()
    }

    #[test]
    fn parts_sum_to_the_whole_also_where_it_cannot_be_divided() {
        for (connections, n, of) in [(7, 100, 3), (3, 3, 3), (10_000, 99_999, 7), (5, 11, 1)] {
            let whole = Plan { connections, amount: Amount::Requests(n), ..plan() };
            let parts = parts(&whole, of);
            assert_eq!(parts.iter().map(|p| p.connections).sum::<usize>(), connections);
            let requests = parts.iter().map(|p| match p.amount {
                Amount::Requests(n) => n,
                Amount::Time(_) => 0,
            });
            assert_eq!(requests.sum::<u64>(), n);
        }
    }

    #[test]
    fn messages_of_each_connection_stay_with_it() {
        let whole = Plan { connections: 7, messages_each: Some(5), amount: Amount::Requests(35), ..plan() };
        let amounts: Vec<_> = parts(&whole, 3).iter().map(|p| p.amount).collect();
        assert_eq!(amounts, [15, 10, 10].map(Amount::Requests));
    }

    #[test]
    fn the_schedules_of_the_parts_are_the_schedule_of_the_whole() {
        let ramp = Some((0.0, Duration::from_millis(300)));
        for (rate, n) in
            [(Rate { requests_per_s: 1_000.0, ramp: None }, 100), (Rate { requests_per_s: 333.0, ramp }, 101)]
        {
            let whole = Plan { connections: 9, rate: Some(rate), amount: Amount::Requests(n), ..plan() };
            let start = std::time::Instant::now();
            let dues = |plan: &Plan| {
                let pacer = Pacer::of(plan).unwrap();
                pacer.begin(start, start, start);
                std::iter::from_fn(|| pacer.take(start + Duration::from_secs(60))).collect::<Vec<_>>()
            };
            let mut together: Vec<_> = parts(&whole, 4).iter().flat_map(&dues).collect();
            together.sort();
            assert_eq!(together, dues(&whole));
        }
        let timed = Plan {
            connections: 9,
            rate: Some(Rate { requests_per_s: 100.0, ramp: None }),
            amount: Amount::Time(Duration::from_secs(1)),
            ..plan()
        };
        let shares = parts(&timed, 3);
        let scheduled = shares.iter().map(|p| {
            let pacer = Pacer::of(p).unwrap();
            let start = std::time::Instant::now();
            pacer.begin(start, start, start);
            pacer.outcome().0
        });
        assert_eq!(scheduled.collect::<Vec<_>>(), [34, 33, 33]);
    }

    #[test]
    fn the_parts_of_a_part_are_that_part() {
        for (connections, n, (index, of), shared) in [(20, 101, (2, 3), 2), (7, 50, (0, 4), 2)] {
            let whole = Plan { connections, amount: Amount::Requests(n), ..plan() };
            let lost = whole.part(index, of).unwrap().its_part();
            let numbers = |part: Part, all: u64| (0..part.share(all)).map(move |own| part.number(own));
            let again = (0..shared).map(|j| whole.part(index + j * of, of * shared).unwrap().its_part());
            let mut together: Vec<_> = again.flat_map(|part| numbers(part, n)).collect();
            together.sort_unstable();
            assert_eq!(together, numbers(lost, n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn who_joins_later_takes_what_is_due_from_then_on_and_ends_with_the_others() {
        let rate = Some(Rate { requests_per_s: 100.0, ramp: None });
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (warm_up, time) = (Duration::from_secs(1), Duration::from_secs(2));
        for amount in [Amount::Time(time), Amount::Requests(301)] {
            let warm_up = if amount == Amount::Time(time) { warm_up } else { Duration::ZERO };
            let whole = Plan { connections: 9, rate, amount, warm_up, ..plan() };
            let late = whole.part(1, 3).unwrap().joining(start);
            let pacer = Pacer::of(&late).unwrap();
            pacer.begin(start, at(1_500), at(1_500));
            // Numbers 1, 4, 7 … of the whole, 10 ms apart: the first that is due at 1.5 s or later is 151.
            assert_eq!(pacer.take(at(1_509)), None);
            assert_eq!(pacer.take(at(1_510)), Some(at(1_510)));
            let rest = std::iter::from_fn(|| pacer.take(at(60_000))).collect::<Vec<_>>();
            assert_eq!((rest[0], rest.last().copied()), (at(1_540), Some(at(2_980))));
            assert_eq!(pacer.outcome(), (50, 0));
            assert_eq!(pacer.length(), at(3_010) - at(1_500));
            let due = |from, until| {
                late.due_between(Duration::from_millis(from), Duration::from_millis(until)).unwrap()
            };
            assert_eq!((due(0, 1_500), due(1_500, 9_000)), (50, 50));
            if let Amount::Time(time) = amount {
                assert_eq!(late.window_time(time, at(1_500)), Duration::from_millis(1_500));
                assert_eq!(late.window_time(time, at(9_000)), Duration::ZERO);
            }
        }
        let closed = Plan { connections: 9, amount: Amount::Time(time), ..plan() };
        assert_eq!(closed.due_between(Duration::ZERO, time), None);
    }

    #[test]
    fn a_part_with_nothing_to_do_is_refused() {
        let few = Plan { connections: 2, amount: Amount::Requests(9), ..plan() };
        assert!(few.part(2, 3).unwrap_err().to_string().contains("raise -c"));
        let few = Plan { connections: 9, amount: Amount::Requests(2), ..plan() };
        assert!(few.part(2, 3).unwrap_err().to_string().contains("raise -n"));
        let part = Plan { connections: 9, ..plan() }.part(0, 1).unwrap();
        assert!(part.part(0, 1).is_err());
    }
}
