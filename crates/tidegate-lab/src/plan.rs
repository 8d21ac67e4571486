//! The plan of a `bench`: a list of experiments, each with its settings.

use std::time::Duration;

use tidegate::Model;

use crate::Bench;
use crate::experiment::round::{Length, per_s};
use crate::experiment::{
    concurrency, connections, contestants, demand, files, latency, memory, models, peers, reuse, survival,
    udp,
};
use crate::report::Results;
use crate::run::Facts;

/// One experiment with its settings: fills one table of the results.
pub trait Experiment {
    /// How often `progress` will be called.
    fn steps(&self) -> usize;

    /// How long a step takes on average, by the lengths that were asked for and what starting processes and opening
    /// connections took on a small machine.
    fn step_time(&self) -> Duration;

    /// The settings that a saved run must contain, because they change the figures.
    fn facts(&self) -> Facts {
        Facts::new()
    }

    /// Runs it; calls `progress` before each step.
    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str));
}

/// Starting and ending a server and a load.
const START: Duration = Duration::from_millis(400);
/// Connections opened, and requests answered, a second.
const CONNECTS_PER_S: u64 = 8_000;
const REQUESTS_PER_S: u64 = 20_000;

fn opening(connections: usize) -> Duration {
    per_s(connections as u64, CONNECTS_PER_S)
}

fn length(length: Length) -> Duration {
    match length {
        Length::Requests(count) => per_s(count, REQUESTS_PER_S),
        Length::Time(time) => time,
    }
}

fn mean(times: impl ExactSizeIterator<Item = Duration>) -> Duration {
    let count = times.len().max(1) as u32;
    times.sum::<Duration>() / count
}

/// How far a plan has got, by the time of its steps and not by their number: a step of one experiment may take a
/// hundred times as long as one of another.
#[derive(Clone, Debug)]
pub struct Timetable {
    /// Steps of each experiment, and the time of each.
    experiments: Vec<(usize, Duration)>,
    /// The experiment that is being run, and how many of its steps have begun.
    at: usize,
    begun: usize,
}

impl Timetable {
    /// Of these experiments, in order.
    #[must_use]
    pub fn new<'a>(plan: impl IntoIterator<Item = &'a dyn Experiment>) -> Self {
        let experiments = plan.into_iter().map(|one| (one.steps(), one.step_time())).collect();
        Self { experiments, at: 0, begun: 0 }
    }

    /// The expected time of everything.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.experiments.iter().map(|&(steps, time)| time * steps as u32).sum()
    }

    /// The expected time of what has been done. An experiment that takes more steps than expected ends when it ends.
    #[must_use]
    pub fn done(&self) -> Duration {
        let before = self.experiments.iter().take(self.at).map(|&(steps, time)| time * steps as u32);
        let now = self
            .experiments
            .get(self.at)
            .map_or(Duration::ZERO, |&(steps, time)| time * self.begun.saturating_sub(1).min(steps) as u32);
        before.sum::<Duration>() + now
    }

    /// What is left, if the rest takes as much longer or shorter than expected as what was done in `elapsed`.
    #[must_use]
    pub fn left(&self, elapsed: Duration) -> Duration {
        /// Before that, one slow step would say too much about the others.
        const ENOUGH: Duration = Duration::from_secs(10);
        let (done, left) = (self.done(), self.total().saturating_sub(self.done()));
        let factor = elapsed.as_secs_f64() / done.as_secs_f64();
        if done < ENOUGH { left } else { left.mul_f64(factor.clamp(0.2, 5.0)) }
    }

    /// A step begins.
    pub fn step(&mut self) {
        self.begun += 1;
    }

    /// The experiment has ended.
    pub fn next(&mut self) {
        (self.at, self.begun) = (self.at + 1, 0);
    }
}

/// Selects the models that are available.
fn here(models: &[Model]) -> usize {
    contestants(models).0.len()
}

impl Experiment for models::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.rounds()
    }

    fn step_time(&self) -> Duration {
        mean(self.loads.iter().map(|load| load.window + opening(load.connections))) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.models = Some(models::run(bench, self, progress));
    }
}

impl Experiment for concurrency::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.rounds()
    }

    fn step_time(&self) -> Duration {
        length(self.length) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.concurrency = Some(concurrency::run(bench, self, progress));
    }
}

/// The few points from which the answer is taken, where concurrency is measured in another way.
pub struct ConcurrencySummary(pub concurrency::Settings);

impl Experiment for ConcurrencySummary {
    fn steps(&self) -> usize {
        self.0.steps()
    }

    fn step_time(&self) -> Duration {
        self.0.step_time()
    }

    fn facts(&self) -> Facts {
        self.0.facts()
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.answer = Some(concurrency::run(bench, &self.0, progress));
    }
}

/// The same with a page of another size, beside the table of [`concurrency`].
pub struct PageSize(pub concurrency::Settings);

impl Experiment for PageSize {
    fn steps(&self) -> usize {
        self.0.steps()
    }

    fn step_time(&self) -> Duration {
        self.0.step_time()
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.pages.push(concurrency::run(bench, &self.0, progress));
    }
}

impl Experiment for reuse::Settings {
    fn steps(&self) -> usize {
        self.rounds()
    }

    fn step_time(&self) -> Duration {
        length(self.length) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.reuse = Some(reuse::run(bench, self, progress));
    }
}

impl Experiment for connections::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.sizes.len()
    }

    fn step_time(&self) -> Duration {
        mean(self.sizes.iter().map(|&connections| opening(connections))) + self.probe * 2 + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.connections = Some(connections::run(bench, self, progress));
    }
}

impl Experiment for demand::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.rates.len() * self.repeats * self.servers().len()
    }

    fn step_time(&self) -> Duration {
        self.window + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.demand = Some(demand::run(bench, self, progress));
    }
}

impl Experiment for memory::Settings {
    fn steps(&self) -> usize {
        self.rounds()
    }

    fn step_time(&self) -> Duration {
        self.window + opening(self.connections) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.memory = Some(memory::run(bench, self, progress));
    }
}

impl Experiment for files::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.arrivals.len() * 2 * self.repeats
    }

    fn step_time(&self) -> Duration {
        let rate = |arrival: &files::ArrivalRate| match arrival {
            files::ArrivalRate::AtOnce => 10_000,
            files::ArrivalRate::Rate(rate) => *rate,
        };
        let asking = self.arrivals.iter().map(|arrival| per_s(self.clients as u64, rate(arrival)));
        mean(asking) + opening(self.clients) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.files = Some(files::run(bench, self, progress));
    }
}

impl Experiment for survival::Settings {
    fn steps(&self) -> usize {
        here(&self.models)
    }

    fn step_time(&self) -> Duration {
        self.attack + self.undisturbed * 2 + START * 3
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.survival = Some(survival::run(bench, self, progress));
    }
}

impl Experiment for udp::Settings {
    fn steps(&self) -> usize {
        self.runs()
    }

    fn step_time(&self) -> Duration {
        self.window + START * 2
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.udp = Some(udp::run(bench, self, progress));
    }
}

impl Experiment for peers::Settings {
    fn steps(&self) -> usize {
        let rounds = self.cases.len() * self.repeats;
        self.peers.len() + (self.peers.len() + here(&self.models)) * rounds
    }

    fn step_time(&self) -> Duration {
        per_s(self.requests, REQUESTS_PER_S) + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.peers = Some(peers::run(bench, self, progress));
    }
}

impl Experiment for latency::Settings {
    fn steps(&self) -> usize {
        self.windows()
    }

    fn step_time(&self) -> Duration {
        self.window + START
    }

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.latency = Some(latency::run(bench, self, progress));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Steps(usize, Duration);

    impl Experiment for Steps {
        fn steps(&self) -> usize {
            self.0
        }

        fn step_time(&self) -> Duration {
            self.1
        }

        fn run(&self, _: &Bench, _: &mut Results, _: &mut dyn FnMut(&str)) {}
    }

    #[test]
    fn steps_count_by_their_time() {
        let seconds = Duration::from_secs;
        let plan: [&dyn Experiment; 2] = [&Steps(100, seconds(1)), &Steps(10, seconds(90))];
        let mut table = Timetable::new(plan);
        assert_eq!(
            (table.total(), table.done(), table.left(Duration::ZERO)),
            (seconds(1_000), seconds(0), seconds(1_000))
        );
        for _ in 0..51 {
            table.step();
        }
        assert_eq!(table.done(), seconds(50), "a step that has begun is not done");
        table.next();
        // 100 of 110 steps, but a tenth of the time.
        assert_eq!((table.done(), table.left(seconds(100))), (seconds(100), seconds(900)));
        assert_eq!(table.left(seconds(150)), seconds(1_350), "it takes longer than expected here");
        for _ in 0..30 {
            table.step();
        }
        assert_eq!(table.left(seconds(1_000)), seconds(0), "more steps than expected");
        table.next();
        assert_eq!(table.done(), table.total());
    }

    #[test]
    fn a_step_with_more_connections_or_a_longer_window_takes_longer() {
        let models = |window, quick: bool| {
            let mut settings = models::Settings::classic(vec![Model::Poll], Duration::from_secs(window));
            if quick {
                settings.loads.retain(|load| load.connections < models::MANY);
            }
            settings.step_time()
        };
        assert!(models(5, false) > models(5, true) && models(10, true) > models(5, true));
    }
}
