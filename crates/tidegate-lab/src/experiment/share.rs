//! The share of their processors that servers get, chosen so that the load has processor time left and the server is
//! the limit.

use tidegate_load::verdict::LimitedBy;

use super::LeftOut;
use super::generator::Agents;
use super::round::Round;
use crate::throttle::Throttle;
use crate::{Bench, LabError};

/// What the load may be busy in a round, of its time. The rest is for what differs from the calibration.
const LOAD_BUSY: f64 = 0.55;

/// The smallest share of a server. Below it the quota's steps are too coarse.
const LEAST_SHARE: f64 = 0.1;

/// By how much the share shrinks at least after a round whose limit was not the server, and how often.
const SHRINK: f64 = 0.7;
const MOST_REPEATS: usize = 3;

/// What servers have of their processors from now on.
pub(crate) struct CpuShare {
    /// None if the load runs elsewhere, or is not the limit anyway.
    throttle: Option<Throttle>,
    value: f64,
    can_shrink: bool,
    /// How many processors servers have.
    processors: f64,
}

impl CpuShare {
    /// All of them, until a round shows that the load was the limit.
    pub(crate) fn new(bench: &Bench, agents: Option<&Agents>) -> Self {
        let throttle = agents.is_none().then(|| Throttle::new(bench));
        let can_shrink = throttle.is_some() && bench.is_pinned_apart();
        let processors = bench.server_cpus.len().max(1) as f64;
        Self { throttle, value: 1.0, can_shrink, processors }
    }

    /// All of them, whatever a round shows.
    pub(crate) fn whole() -> Self {
        Self { throttle: None, value: 1.0, can_shrink: false, processors: 1.0 }
    }

    /// 0 to 1.
    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    /// How servers were limited so far, for the reader of the figures.
    pub(crate) fn method(&self) -> String {
        let elsewhere = || "nothing, since the load runs on other machines".into();
        self.throttle.as_ref().map_or_else(elsewhere, Throttle::method)
    }

    pub(super) fn set(&mut self, share: f64) {
        self.value = self.throttle.as_mut().map_or(share, |throttle| throttle.set(share));
    }

    /// Puts a running server under the limit. Its share may become smaller by that.
    pub(crate) fn hold(&mut self, pid: u32) {
        if let Some(throttle) = &mut self.throttle {
            self.value = throttle.hold(pid, self.value);
        }
    }

    /// Chooses the share at which the load has time left with the subject that is cheapest beside it.
    pub(crate) fn calibrate<S, T: AsRef<Round>>(
        &mut self,
        subjects: &[S],
        mut trial: impl FnMut(&mut Self, &S) -> Result<T, LabError>,
    ) {
        if !self.can_shrink {
            return;
        }
        self.set(1.0);
        // A subject that fails does so again when it is measured, and is named then.
        let rounds = subjects.iter().filter_map(|subject| trial(self, subject).ok());
        let rounds: Vec<T> = rounds.collect();
        let least = rounds.iter().map(|round| self.share_for(round.as_ref())).fold(1.0, f64::min);
        self.set(least);
    }

    /// A result of each subject for each turn, `None` where one failed. Within a turn all have the same share, because
    /// it has an effect on what a request costs: when it shrinks, the rounds of the turn so far are measured again.
    /// Turns go there and back, so that a slow moment of the machine affects all alike.
    pub(super) fn in_turns<S, T: AsRef<Round>>(
        &mut self,
        subjects: &[S],
        turns: impl IntoIterator<Item = usize>,
        failed: &mut Vec<LeftOut>,
        name: impl Fn(&S) -> String,
        mut measure: impl FnMut(&mut Self, &S) -> Result<T, LabError>,
    ) -> Vec<Vec<Option<T>>> {
        let mut results: Vec<Vec<Option<T>>> = subjects.iter().map(|_| Vec::new()).collect();
        for number in turns {
            let mut order: Vec<usize> = (0..subjects.len()).collect();
            if number % 2 == 1 {
                order.reverse();
            }
            let mut turn: Vec<Option<(f64, Result<T, LabError>)>> = subjects.iter().map(|_| None).collect();
            // It only shrinks.
            let is_due = |share: f64, one: &Option<(f64, _)>| one.as_ref().is_none_or(|one| one.0 > share);
            while let Some(&at) = order.iter().find(|&&at| is_due(self.value, &turn[at])) {
                let result = self.fitted(|share| measure(share, &subjects[at]));
                turn[at] = Some((self.value, result));
            }
            for ((subject, results), one) in subjects.iter().zip(&mut results).zip(turn) {
                let result = one.map(|(_, result)| result);
                if let Some(Err(e)) = &result {
                    failed.push(LeftOut { model: name(subject), why: e.to_string() });
                }
                results.push(result.and_then(Result::ok));
            }
        }
        results
    }

    /// A result whose limit is the server, if a smaller share can bring that about.
    fn fitted<T: AsRef<Round>>(
        &mut self,
        mut measure: impl FnMut(&mut Self) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let mut result = measure(self)?;
        for _ in 0..MOST_REPEATS {
            let round = result.as_ref();
            // Above what the server has used, a share limits nothing.
            let smaller = self.share_for(round).min(self.used(round).min(self.value) * SHRINK);
            let is_done = round.verdict.limited_by == LimitedBy::Server || smaller < LEAST_SHARE;
            if is_done || !self.can_shrink {
                break;
            }
            self.set(smaller);
            result = measure(self)?;
        }
        Ok(result)
    }

    /// The share of a server at which the load is busy for [`LOAD_BUSY`] of its time, by what both used for a request
    /// in this round: all of it for one that waits for something else, as for a timer of TCP. No share limits that one,
    /// and the others need not pay for it.
    fn share_for(&self, round: &Round) -> f64 {
        if self.used(round) * SHRINK < LEAST_SHARE {
            return 1.0;
        }
        let Some(load) = round.verdict.evidence.generator else { return 1.0 };
        let load_us = load.ran * 1e6 / round.requests_per_s.max(1e-9);
        let server_us = round.cpu_s_per_100k * 10.0 / self.processors;
        (LOAD_BUSY * server_us / load_us.max(1e-9)).clamp(LEAST_SHARE, 1.0)
    }

    /// What the server had of its processors in this round, 0 to 1.
    fn used(&self, round: &Round) -> f64 {
        round.requests_per_s * round.cpu_s_per_100k / 1e5 / self.processors
    }

    /// Requests a second that the server would have answered with all of its processors. Competitors leave one with
    /// many busy threads more than its share: what it had counts then.
    pub(crate) fn rate_of_all(&self, round: &Round) -> f64 {
        round.requests_per_s / self.value.max(self.used(round).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::Report;
    use tidegate_load::verdict::{Evidence, Share as Busy, Verdict};

    fn round(load_ran: f64, server_us: f64) -> Round {
        let evidence =
            Evidence { generator: Some(Busy { ran: load_ran, waited: 0.0 }), ..Evidence::default() };
        let verdict = Verdict {
            limited_by: LimitedBy::Generator,
            because: String::new(),
            warnings: Vec::new(),
            evidence,
        };
        let report =
            Report { requests: 10_000, requests_per_s: 100_000.0, elapsed_s: 0.1, ..Report::default() };
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        Round { verdict, ..Round::of(&bench, &report, server_us * 0.01) }
    }

    fn limited_by(limit: LimitedBy) -> Round {
        with_limit(round(1.0, 10.0), limit)
    }

    fn with_limit(round: Round, limit: LimitedBy) -> Round {
        Round { verdict: Verdict { limited_by: limit, ..round.verdict.clone() }, ..round }
    }

    #[test]
    fn the_share_leaves_the_load_time() {
        // The load uses 10 µs for a request.
        let one = CpuShare::whole();
        for (server_us, share) in [(10.0, LOAD_BUSY), (5.0, LOAD_BUSY / 2.0), (60.0, 1.0), (1.5, LEAST_SHARE)]
        {
            assert!((one.share_for(&round(1.0, server_us)) - share).abs() < 1e-9, "{server_us}");
        }
        // Of a request that takes 10 µs of two processors each of them has 5.
        let two = CpuShare { processors: 2.0, ..CpuShare::whole() };
        assert!((two.share_for(&round(1.0, 10.0)) - LOAD_BUSY / 2.0).abs() < 1e-9);
        let unseen = Round {
            verdict: Verdict { evidence: Evidence::default(), ..round(1.0, 1.0).verdict },
            ..round(1.0, 1.0)
        };
        assert!((one.share_for(&unseen) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_rate_of_all_processors_is_that_of_what_a_server_had() {
        // 100,000 requests a second, of 2 µs each.
        let half = CpuShare { value: 0.5, ..CpuShare::whole() };
        assert!((half.rate_of_all(&round(1.0, 2.0)) - 200_000.0).abs() < 1.0, "it did not use all of it");
        assert!((half.rate_of_all(&round(1.0, 8.0)) - 125_000.0).abs() < 1.0, "it had more than its share");
        assert!((half.rate_of_all(&round(1.0, 20.0)) - 100_000.0).abs() < 1.0);
    }

    #[test]
    fn the_rate_of_a_whole_processor_follows_from_the_cost() {
        assert!((round(1.0, 20.0).per_processor_s - 50_000.0).abs() < 1.0);
    }

    #[test]
    fn within_a_turn_all_have_the_same_share() {
        let mut share = CpuShare { throttle: None, value: 1.0, can_shrink: true, processors: 1.0 };
        let shares = std::cell::RefCell::new(Vec::new());
        let mut failed = Vec::new();
        // The second subject needs less, and the third fails.
        let rounds = share.in_turns(
            &[0, 1, 2],
            0..2,
            &mut failed,
            |at| at.to_string(),
            |share, &at| {
                shares.borrow_mut().push((at, share.value()));
                match at {
                    2 => Err(LabError::NoAnswer { what: "the third".into() }),
                    1 if share.value() > 0.9 => Ok(limited_by(LimitedBy::Generator)),
                    _ => Ok(limited_by(LimitedBy::Server)),
                }
            },
        );
        let (shares, less) = (shares.into_inner(), share.value());
        assert!(less < 0.9);
        // The first turn: the second one shrinks it, and the first is measured again. The second turn goes back.
        let expected = [(0, 1.0), (1, 1.0), (1, less), (0, less), (2, less), (2, less), (1, less), (0, less)];
        assert_eq!(shares, expected);
        assert_eq!(rounds.iter().map(|one| one.iter().flatten().count()).collect::<Vec<_>>(), [2, 2, 0]);
        assert_eq!(failed.len(), 2);
    }

    /// As with the least SO_RCVBUF, where timers move the bytes.
    #[test]
    fn a_server_that_waits_for_something_else_leaves_the_others_their_share() {
        let idle =
            || Round { requests_per_s: 1.0, cpu_s_per_100k: 5_000.0, ..limited_by(LimitedBy::Neither) };
        let mut share = CpuShare { throttle: None, value: 1.0, can_shrink: true, processors: 1.0 };
        share.calibrate(&[()], |_, ()| Ok(idle()));
        let mut rounds = 0;
        let measure = |_: &mut CpuShare| {
            rounds += 1;
            Ok(idle())
        };
        share.fitted(measure).unwrap();
        assert_eq!((rounds, share.value()), (1, 1.0));
        // One that used 0.3 of a processor is limited by less than that at once.
        let measure = |share: &mut CpuShare| {
            let limit = if share.value() < 0.3 { LimitedBy::Server } else { LimitedBy::Neither };
            Ok(with_limit(round(0.1, 3.0), limit))
        };
        assert_eq!(share.fitted(measure).unwrap().verdict.limited_by, LimitedBy::Server);
        assert!((share.value() - 0.3 * SHRINK).abs() < 1e-9, "{}", share.value());
    }

    #[test]
    fn rounds_are_repeated_with_less_until_the_server_is_the_limit() {
        // Both sides on processors that nobody takes anything of: the share is a number only.
        let mut share = CpuShare { throttle: None, value: 1.0, can_shrink: true, processors: 1.0 };
        let mut rounds = 0;
        let mut measure = |limits: &[LimitedBy]| {
            rounds += 1;
            Ok(limited_by(limits[rounds - 1]))
        };
        let limits = [LimitedBy::Generator, LimitedBy::Neither, LimitedBy::Server, LimitedBy::Server];
        let round = share.fitted(|_| measure(&limits)).unwrap();
        assert_eq!(round.verdict.limited_by, LimitedBy::Server);
        assert_eq!(rounds, 3);
        let mut whole = CpuShare { can_shrink: false, ..share };
        let round = whole.fitted(|_| Ok(limited_by(LimitedBy::Generator))).unwrap();
        assert_eq!(round.verdict.limited_by, LimitedBy::Generator, "kept, and named in its cell");
    }

    /// The round calls for 0.7 of a processor, and one competitor leaves a half.
    #[cfg(target_os = "linux")]
    #[test]
    fn competitors_leave_less_each_time() {
        let throttle = Throttle::of_competitors(tidegate::system::allowed_cpus());
        let mut share = CpuShare { throttle: Some(throttle), value: 1.0, can_shrink: true, processors: 1.0 };
        let mut shares = Vec::new();
        let measure = |share: &mut CpuShare| {
            shares.push(share.value());
            let limit = if share.value() < 0.6 { LimitedBy::Server } else { LimitedBy::Generator };
            Ok(Round { cpu_s_per_100k: 10.0, ..limited_by(limit) })
        };
        share.fitted(measure).unwrap();
        assert_eq!(shares, [1.0, 0.5]);
    }
}
