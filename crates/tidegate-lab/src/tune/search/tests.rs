use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::Model;
use tidegate_load::verdict::Evidence;

use super::*;
use crate::tune::Extent;

/// A machine on which each value is as good as it says, with a little noise.
struct Fake {
    /// How many times as good as the default: by name of the candidate, or its number of connections.
    factors: BTreeMap<&'static str, f64>,
    failing: Vec<&'static str>,
    limit: LimitedBy,
    trials_left: usize,
    asked: Vec<String>,
}

impl Fake {
    fn new(factors: &[(&'static str, f64)]) -> Self {
        let factors = factors.iter().copied().collect();
        Self {
            factors,
            failing: Vec::new(),
            limit: LimitedBy::Server,
            trials_left: 10_000,
            asked: Vec::new(),
        }
    }
}

impl Laboratory for Fake {
    fn measure(&mut self, stage: &str, candidate: &Candidate) -> Result<Trial, LabError> {
        self.trials_left = self.trials_left.saturating_sub(1);
        self.asked.push(candidate.name.clone());
        if self.failing.contains(&candidate.name.as_str()) {
            return Err(LabError::Process { what: stage.into(), why: "broken".into() });
        }
        let by_value =
            candidate.setting.values.iter().map(|(&knob, &v)| format!("{} {}", knob.name(), knob.text(v)));
        let names = by_value.chain([candidate.setting.model.to_string(), candidate.connections.to_string()]);
        let factor: f64 = names.filter_map(|name| self.factors.get(name.as_str())).product();
        let noise = [1.0, 1.01, 0.99, 1.005, 0.995, 1.008, 0.992][self.asked.len() % 7];
        let verdict = Verdict {
            limited_by: self.limit,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        Ok(Trial {
            // The load sets the rate if it is the limit; the cost shows the difference.
            figure: if self.limit == LimitedBy::Generator { 1000.0 * noise } else { 1000.0 * factor * noise },
            cpu_s_per_100k: Some(noise / factor),
            verdict: Some(verdict),
        })
    }

    fn is_over(&mut self, _part: f64) -> bool {
        self.trials_left == 0
    }
}

fn settings(goal: Goal) -> Settings {
    Settings {
        goal,
        models: Vec::new(),
        connections: 100,
        ladder: Vec::new(),
        rate: None,
        max_delay: None,
        keep_alive: true,
        rounds: 5,
        extent: Extent::Full,
        budget: Duration::ZERO,
    }
}

fn epoll() -> Setting {
    Setting::new(Model::Epoll)
}

fn knobs(fake: &mut Fake, start: Setting) -> (Setting, Found) {
    let settings = settings(Goal::Throughput);
    let mut descent = Descent::new(fake, &settings, |_| {});
    let chosen = descent.knobs(start, 2, 2);
    (chosen, descent.found())
}

fn model(fake: &mut Fake) -> (Option<Setting>, Stage) {
    let settings = settings(Goal::Throughput);
    let mut descent = Descent::new(fake, &settings, |_| {});
    let models = [Model::Epoll, Model::Uring, Model::Poll].map(|m| Candidate::of(Setting::new(m), 100));
    let chosen = descent.model(models.into());
    (chosen, descent.found().stages.remove(0))
}

#[test]
fn noise_changes_nothing() {
    let (chosen, found) = knobs(
        &mut Fake::new(&[
            ("threads 1", 1.004),
            ("buffer-bytes 4096", 0.998),
            ("outstanding-sends 50", 1.015),
        ]),
        epoll(),
    );
    assert_eq!(chosen, epoll());
    assert!(!found.is_cut_short && found.stages.len() == 4, "{:?}", found.stages); // buffers belong to uring
    assert!(found.stages.iter().all(|stage| stage.chosen == Some(0) && !stage.decision.is_empty()));
}

#[test]
fn what_is_better_for_sure_is_taken_and_the_rest_stays() {
    let factors = [("threads 4", 1.2), ("buffer-bytes 4096", 0.5), ("events-per-wait 64", 1.3)];
    let (chosen, found) = knobs(&mut Fake::new(&factors), epoll());
    assert_eq!(chosen.to_string(), "epoll, threads 4, events-per-wait 64");
    // What has changed may change the rest: all is tried again.
    assert_eq!(found.stages.len(), 8);
    assert!(found.stages[4].name.ends_with(", again") && found.stages[4].rows[0].name == "4");
}

#[test]
fn a_delay_that_is_allowed_is_tried_and_taken_if_it_saves_processor_time() {
    let search = |factor, max_delay| {
        // Less is better: the fake's figure is that of the goal.
        let mut fake = Fake::new(&[("coalesce 200us", factor)]);
        let settings = Settings { max_delay, ..settings(Goal::Cpu) };
        Descent::new(&mut fake, &settings, |_| {}).knobs(epoll(), 2, 2).to_string()
    };
    let delay = Some(Duration::from_micros(200));
    assert_eq!(search(0.7, delay), "epoll, coalesce 200us");
    assert_eq!(search(1.0, delay), "epoll");
    assert_eq!(search(0.7, None), "epoll");
    let settings = Settings { max_delay: delay, ..settings(Goal::Cpu) };
    assert!(settings.values(Knob::Coalesce, Model::Pool, 2).is_empty(), "it has no loop");
}

#[test]
fn of_two_as_good_the_simpler_is_taken() {
    let (chosen, _) = knobs(&mut Fake::new(&[("threads 1", 1.2), ("threads 4", 1.201)]), epoll());
    assert_eq!(chosen.to_string(), "epoll, threads 1");
    let (chosen, _) = knobs(&mut Fake::new(&[("threads 1", 1.2), ("threads 4", 1.5)]), epoll());
    assert_eq!(chosen.to_string(), "epoll, threads 4");
}

#[test]
fn candidates_take_turns() {
    let mut fake = Fake::new(&[]);
    model(&mut fake);
    assert_eq!(fake.asked[..4], ["epoll", "uring", "poll", "epoll"]);
    assert_eq!(fake.asked.len(), 15);
}

#[test]
fn the_best_model_is_found_and_one_that_fails_is_out() {
    assert_eq!(model(&mut Fake::new(&[("poll", 1.3)])).0, Some(Setting::new(Model::Poll)));
    let mut fake = Fake::new(&[("uring", 1.3)]);
    fake.failing = vec!["uring"];
    let (chosen, stage) = model(&mut fake);
    assert_eq!(chosen, Some(epoll()));
    assert_eq!((stage.rows.len(), stage.failed.len(), stage.failed[0].model.as_str()), (2, 1, "uring"));
    fake.failing = vec!["epoll", "uring", "poll"];
    assert_eq!(model(&mut fake).0, None);
}

#[test]
fn what_cannot_be_compared_with_the_present_value_is_not_taken() {
    let mut fake = Fake::new(&[("threads 4", 2.0)]);
    fake.failing = vec!["default"];
    let (chosen, found) = knobs(&mut fake, epoll());
    assert_eq!(chosen, epoll());
    assert!(found.stages.iter().all(|stage| stage.chosen.is_none()));
}

#[test]
fn a_rate_that_the_load_has_set_decides_nothing() {
    let mut fake = Fake::new(&[("poll", 1.3)]);
    fake.limit = LimitedBy::Generator;
    let (chosen, stage) = model(&mut fake);
    assert_eq!(chosen, Some(Setting::new(Model::Poll)));
    assert!(stage.decision.contains("the load was the limit"), "{}", stage.decision);
    assert_eq!(stage.against_first[0].measure, "cpu_s_per_100k");
}

#[test]
fn a_budget_that_is_over_ends_the_search_and_decides_nothing() {
    let mut fake = Fake::new(&[("poll", 2.0)]);
    fake.trials_left = 8; // two rounds and a bit: too few to judge
    let settings = settings(Goal::Throughput);
    let mut descent = Descent::new(&mut fake, &settings, |_| {});
    let models = [Model::Epoll, Model::Uring, Model::Poll].map(|m| Candidate::of(Setting::new(m), 100));
    let chosen = descent.model(models.into()).unwrap();
    assert_eq!(chosen, epoll());
    assert_eq!(descent.knobs(chosen.clone(), 2, 2), epoll());
    assert_eq!(descent.knee(chosen, &[10, 100]), epoll());
    let found = descent.found();
    assert!(found.is_cut_short && found.stages.len() == 1);
    assert_eq!(fake.asked.len(), 8);
}

fn cap(fake: &mut Fake, goal: Goal) -> (Option<u64>, Stage) {
    let settings = settings(goal);
    let mut descent = Descent::new(fake, &settings, |_| {});
    let ladder = [10, 100, 1_000, 10_000];
    let chosen = match goal {
        Goal::Connections => descent.most(epoll(), &ladder),
        Goal::Throughput | Goal::P99 | Goal::Cpu => descent.knee(epoll(), &ladder),
    };
    (chosen.values.get(&Knob::MaxConnections).copied(), descent.found().stages.remove(0))
}

#[test]
fn the_cap_is_where_the_curve_bends() {
    let (found, stage) =
        cap(&mut Fake::new(&[("10", 0.5), ("1000", 0.95), ("10000", 0.6)]), Goal::Throughput);
    assert_eq!((found, stage.chosen), (Some(1_000), Some(2)), "{}", stage.decision);
    assert_eq!(cap(&mut Fake::new(&[("10", 0.5)]), Goal::Throughput).0, None);
    // A dip is not passed through.
    assert_eq!(cap(&mut Fake::new(&[("1000", 0.6)]), Goal::Throughput).0, Some(100));
    // Here less is better.
    assert_eq!(cap(&mut Fake::new(&[("10000", 3.0)]), Goal::P99).0, Some(1_000));
}

#[test]
fn the_most_connections_that_stood_are_the_cap() {
    let mut fake = Fake::new(&[]);
    assert_eq!(cap(&mut fake, Goal::Connections).0, Some(10_000));
    fake.failing = vec!["1000"];
    let (found, stage) = cap(&mut fake, Goal::Connections);
    assert_eq!((found, stage.failed.len()), (Some(100), 1));
    assert_eq!(fake.asked.last().map(String::as_str), Some("1000"), "nothing beyond what failed is tried");
    fake.failing = vec!["10"];
    assert_eq!(cap(&mut fake, Goal::Connections).0, None);
}
