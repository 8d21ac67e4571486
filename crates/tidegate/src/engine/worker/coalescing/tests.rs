//! In virtual time: a thread that needs a while to wake up and for each request, and clients of every kind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use proptest::prelude::*;

use super::*;

const BUDGET: Duration = Duration::from_micros(200);
const WAKE_UP: Duration = Duration::from_micros(20);
const REQUEST: Duration = Duration::from_micros(6);

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    requests: u32,
    /// Times the thread slept: in pauses, and until something came.
    sleeps: u32,
    pauses: u32,
    /// What pauses have added to requests, all together and at most.
    added: Duration,
    most_added: Duration,
}

impl Outcome {
    fn mean_added(&self) -> Duration {
        self.added / self.requests.max(1)
    }
}

/// Serves requests that come at these times until `end`. A client that waits for answers comes again `again` after
/// each.
fn serve(budget: Duration, arrivals: Vec<Duration>, again: Option<Duration>, end: Duration) -> Outcome {
    let start = Instant::now();
    let mut coalescing = Coalescing::new(budget, start);
    let mut arrivals: BinaryHeap<_> = arrivals.into_iter().map(Reverse).collect();
    let (mut now, mut looked, mut outcome) = (Duration::ZERO, Duration::ZERO, Outcome::default());
    while now < end {
        let before = now;
        let pause = coalescing.pause(start + now);
        assert!(pause.is_zero() || before + pause <= looked + budget, "{pause:?} at {before:?}");
        now += pause;
        outcome.pauses += u32::from(!pause.is_zero());
        outcome.sleeps += u32::from(!pause.is_zero());
        let Some(&Reverse(next)) = arrivals.peek() else { break };
        if next > now {
            now = next + WAKE_UP;
            outcome.sleeps += 1;
        }
        let paused_until = before + pause;
        looked = now;
        let mut events = 0;
        while let Some(&Reverse(at)) = arrivals.peek().filter(|at| at.0 <= looked) {
            arrivals.pop();
            events += 1;
            let added = paused_until.saturating_sub(at.max(before));
            outcome.added += added;
            outcome.most_added = outcome.most_added.max(added);
            now += REQUEST;
            arrivals.extend(again.map(|again| Reverse(now + again)));
        }
        outcome.requests += events;
        coalescing.looked(start + looked, events as usize);
    }
    outcome
}

/// Random arrivals at a mean rate, for so long.
fn random(rate: f64, time: Duration) -> Vec<Duration> {
    let mut rng = Rng::with_seed(7);
    let gaps = std::iter::repeat_with(|| Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate));
    let times = gaps.scan(Duration::ZERO, |now, gap| {
        *now += gap;
        Some(*now)
    });
    times.take_while(|&at| at < time).collect()
}

/// The same as a schedule.
fn regular(rate: f64, time: Duration) -> Vec<Duration> {
    let count = (time.as_secs_f64() * rate) as u32;
    (0..count).map(|n| Duration::from_secs_f64(f64::from(n) / rate)).collect()
}

const SECOND: Duration = Duration::from_secs(1);

fn with_and_without(arrivals: &[Duration], again: Option<Duration>) -> (Outcome, Outcome) {
    let with = serve(BUDGET, arrivals.into(), again, SECOND);
    (with, serve(Duration::ZERO, arrivals.into(), again, SECOND))
}

#[test]
fn many_requests_are_answered_with_half_of_the_wake_ups() {
    for arrivals in [random, regular] {
        for (rate, part) in [(10_000.0, 0.75), (50_000.0, 0.35)] {
            let (with, without) = with_and_without(&arrivals(rate, SECOND), None);
            assert!(f64::from(with.sleeps) < part * f64::from(without.sleeps), "{with:?} {without:?}");
            assert!(with.pauses > 1_000 && with.most_added <= BUDGET, "{rate}: {with:?}");
            assert!(without.pauses == 0 && without.added.is_zero());
        }
    }
}

#[test]
fn few_requests_do_not_wait() {
    for rate in [1.0, 100.0, 1_000.0, 3_000.0] {
        for arrivals in [random(rate, SECOND), regular(rate, SECOND)] {
            let outcome = serve(BUDGET, arrivals, None, SECOND);
            assert_eq!(outcome.pauses, 0, "{rate}: {outcome:?}");
        }
    }
}

#[test]
fn a_lone_client_that_waits_for_each_answer_is_hardly_delayed() {
    for round_trip in [10, 30, 60, 100, 130] {
        for time in [20, 100, 1_000] {
            let outcome = serve(BUDGET, vec![micros(1)], Some(micros(round_trip)), micros(time * 1_000));
            assert!(outcome.mean_added() < micros(20), "{round_trip} for {time} ms: {outcome:?}");
            assert!(outcome.most_added <= BUDGET);
        }
    }
}

#[test]
fn a_thread_that_is_never_idle_does_not_pause() {
    let outcome = serve(BUDGET, vec![micros(1); 100], Some(micros(50)), SECOND);
    assert!(outcome.requests > 160_000 && outcome.pauses < 100, "{outcome:?}");
}

#[test]
fn bursts_that_come_together_anyway_do_not_wait() {
    let bursts = (0..1_000).flat_map(|n| std::iter::repeat_n(micros(n * 1_000), 15)).collect();
    let outcome = serve(BUDGET, bursts, None, SECOND);
    assert!(outcome.mean_added() < micros(5), "{outcome:?}");
}

#[test]
fn a_rate_that_rises_is_met_and_one_that_falls_is_left() {
    let mut arrivals = random(1_000.0, SECOND);
    arrivals.extend(random(20_000.0, SECOND).into_iter().map(|at| SECOND + at));
    arrivals.extend(random(1_000.0, SECOND).into_iter().map(|at| 2 * SECOND + at));
    let until = |end| serve(BUDGET, arrivals.clone(), None, end).pauses;
    let (first, second, third) = (until(SECOND), until(2 * SECOND), until(3 * SECOND));
    assert_eq!(first, 0);
    assert!(second > 3_000 && third - second < 100, "{second} {third}");
}

#[test]
fn a_thread_that_was_idle_for_longer_answers_at_once() {
    let start = Instant::now();
    let mut coalescing = Coalescing::new(BUDGET, start);
    let mut now = start;
    for _ in 0..400 {
        now += micros(50);
        coalescing.looked(now, 1);
    }
    assert_eq!(coalescing.pause(now), BUDGET);
    assert_eq!(coalescing.pause(now + micros(90)), micros(110));
    for later in [BUDGET - micros(1), BUDGET, SECOND] {
        assert_eq!(coalescing.pause(now + later), Duration::ZERO, "{later:?}");
    }
}

proptest! {
    #[test]
    fn nothing_waits_for_longer_than_the_budget(
        budget in 0_u64..10_000,
        steps in prop::collection::vec((0_u64..400, 0_usize..300, 0_u64..400), 1..2_000),
    ) {
        let (start, budget) = (Instant::now(), micros(budget));
        let (mut coalescing, mut now, mut looked) = (Coalescing::new(budget, start), start, start);
        for (worked, events, idle) in steps {
            now += micros(worked);
            let pause = coalescing.pause(now);
            prop_assert!(pause.is_zero() || now + pause <= looked + budget);
            now += pause;
            if pause.is_zero() {
                now += micros(idle);
            }
            looked = now;
            coalescing.looked(now, events);
        }
    }
}
