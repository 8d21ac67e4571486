//! The plan of a `bench`: a list of experiments, each with its settings.

use tidegate::Model;

use crate::Bench;
use crate::experiment::{
    concurrency, connections, contestants, demand, files, latency, memory, models, peers, survival, udp,
};
use crate::report::Results;
use crate::run::Facts;

/// One experiment with its settings: fills one table of the results.
pub trait Experiment {
    /// How often `progress` will be called.
    fn steps(&self) -> usize;

    /// The settings that a saved run must contain, because they change the figures.
    fn facts(&self) -> Facts {
        Facts::new()
    }

    /// Runs it; calls `progress` before each step.
    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str));
}

/// Selects the models that are available.
fn here(models: &[Model]) -> usize {
    contestants(models).0.len()
}

impl Experiment for models::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.loads.len() * self.repeats
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

    fn facts(&self) -> Facts {
        Self::facts(self)
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.concurrency = Some(concurrency::run(bench, self, progress));
    }
}

/// The few points from which the answer is taken, where concurrency is measured in another way.
pub struct Answer(pub concurrency::Settings);

impl Experiment for Answer {
    fn steps(&self) -> usize {
        self.0.steps()
    }

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.answer = Some(concurrency::run(bench, &self.0, progress));
    }
}

impl Experiment for connections::Settings {
    fn steps(&self) -> usize {
        here(&self.models) * self.sizes.len()
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

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.udp = Some(udp::run(bench, self, progress));
    }
}

impl Experiment for peers::Settings {
    fn steps(&self) -> usize {
        let rounds = self.cases.len() * self.repeats;
        self.peers.len() + (self.peers.len() + here(&self.models)) * rounds
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

    fn run(&self, bench: &Bench, results: &mut Results, progress: &mut dyn FnMut(&str)) {
        results.latency = Some(latency::run(bench, self, progress));
    }
}
