//! One of several equal parts of a load, for generators that carry it together.
//!
//! Connections and requests are numbered through the whole load and dealt out in turn: part `i` of `n` has the numbers `i`, `i + n`,
//! `i + 2n`, and so on. So the parts always sum to the whole, and each part of a schedule is spread over all of it.

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
}

impl Part {
    /// All of a load.
    pub(crate) fn whole(connections: usize) -> Self {
        Self { index: 0, of: 1, connections: connections as u64 }
    }

    /// The number in the whole of what has number `own` in this part.
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
}

impl Plan {
    /// Part `index` (from 0) of `of`: its connections, its requests, and its places in the schedule. All parts together are exactly
    /// this plan. Rates and limits for each connection stay as they are.
    ///
    /// # Errors
    /// [`LoadError::Plan`] if a part would have nothing to do, or this is a part already.
    pub fn part(&self, index: usize, of: usize) -> Result<Self, LoadError> {
        let wrong = |why: String| Err(LoadError::Plan(why));
        if index >= of || self.part.is_some() {
            return wrong(format!("part {index} of {of} can not be made of this load"));
        }
        if self.connections < of {
            return wrong(format!("{} connections can not be shared by {of}: raise -c", self.connections));
        }
        let part = Part { index: index as u64, of: of as u64, connections: self.connections as u64 };
        let connections = part.share(self.connections as u64) as usize;
        let amount = match (self.amount, self.messages_each) {
            (Amount::Requests(n), _) if n < of as u64 => {
                return wrong(format!("{n} requests can not be shared by {of}: raise -n"));
            }
            (Amount::Requests(_), Some(each)) => Amount::Requests(each.saturating_mul(connections as u64)),
            (Amount::Requests(n), None) => Amount::Requests(part.share(n)),
            (time, _) => time,
        };
        Ok(Self { connections, amount, part: Some(part), ..self.clone() })
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
    fn parts_sum_to_the_whole_also_where_it_can_not_be_divided() {
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
                pacer.begin(start, start);
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
            pacer.begin(start, start);
            pacer.outcome().0
        });
        assert_eq!(scheduled.collect::<Vec<_>>(), [34, 33, 33]);
    }

    #[test]
    fn a_part_with_nothing_to_do_is_refused() {
        let few = Plan { connections: 2, amount: Amount::Requests(9), ..plan() };
        assert!(few.part(0, 3).unwrap_err().to_string().contains("raise -c"));
        let few = Plan { connections: 9, amount: Amount::Requests(2), ..plan() };
        assert!(few.part(0, 3).unwrap_err().to_string().contains("raise -n"));
        let part = Plan { connections: 9, ..plan() }.part(0, 1).unwrap();
        assert!(part.part(0, 1).is_err());
    }
}
