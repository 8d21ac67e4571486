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
    /// Whose the failures are.
    side: FailedSide,
    limit: LimitedBy,
    /// Who is the limit of a candidate instead, in this many of every five rounds.
    limits: BTreeMap<&'static str, (LimitedBy, usize)>,
    /// What a candidate answers of 1,000 requests a second, in this many of every five rounds; of the others all.
    answered: BTreeMap<&'static str, (f64, usize)>,
    trials_left: usize,
    asked: Vec<String>,
}

impl Fake {
    fn new(factors: &[(&'static str, f64)]) -> Self {
        let factors = factors.iter().copied().collect();
        Self {
            factors,
            failing: Vec::new(),
            side: FailedSide::Server,
            limit: LimitedBy::Server,
            limits: BTreeMap::new(),
            answered: BTreeMap::new(),
            trials_left: 10_000,
            asked: Vec::new(),
        }
    }
}

impl Laboratory for Fake {
    fn measure(&mut self, _: &str, candidate: &TuneCandidate) -> Result<Trial, TrialFailure> {
        self.trials_left = self.trials_left.saturating_sub(1);
        self.asked.push(candidate.name.clone());
        if self.failing.contains(&candidate.name.as_str()) {
            return Err(TrialFailure { side: self.side, why: "broken".into() });
        }
        let by_value =
            candidate.setting.values.iter().map(|(&knob, &v)| format!("{} {}", knob.name(), knob.text(v)));
        let names = by_value.chain([candidate.setting.model.to_string(), candidate.connections.to_string()]);
        let factor: f64 = names.filter_map(|name| self.factors.get(name.as_str())).product();
        let noise = [1.0, 1.01, 0.99, 1.005, 0.995, 1.008, 0.992][self.asked.len() % 7];
        let before = self.asked.iter().filter(|&name| *name == candidate.name).count() - 1;
        let other = self.limits.get(candidate.name.as_str()).filter(|&&(_, rounds)| before % 5 < rounds);
        let answered = self.answered.get(candidate.name.as_str()).filter(|&&(_, rounds)| before % 5 < rounds);
        let answered_per_s = answered.map_or(1000.0, |&(answered, _)| answered);
        let verdict = Verdict {
            limited_by: other.map_or(self.limit, |&(limit, _)| limit),
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        Ok(Trial {
            // The load sets the rate if it is the limit; the cost shows the difference.
            figure: if self.limit == LimitedBy::Generator { 1000.0 * noise } else { 1000.0 * factor * noise },
            cpu_s_per_100k: Some(noise / factor),
            verdict: Some(verdict),
            rate: Some(AnsweredRate { scheduled_per_s: 1000.0, answered_per_s }),
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

fn knobs(fake: &mut Fake, start: Setting) -> (Setting, SearchResult) {
    let settings = settings(Goal::Throughput);
    let mut descent = Descent::new(fake, &settings, |_| {});
    let chosen = descent.knobs(start, 2, 2);
    (chosen, descent.found())
}

fn model(fake: &mut Fake) -> (Option<Setting>, SearchStage) {
    let settings = settings(Goal::Throughput);
    let mut descent = Descent::new(fake, &settings, |_| {});
    let models = [Model::Epoll, Model::Uring, Model::Poll].map(|m| TuneCandidate::of(Setting::new(m), 100));
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
    assert!(!found.is_cut_short && found.stages.len() == 7, "{:?}", found.stages); // buffers belong to uring
    assert!(found.stages.iter().all(|stage| stage.chosen == Some(0) && !stage.decision.is_empty()));
}

#[test]
fn what_is_better_for_sure_is_taken_and_the_rest_stays() {
    let factors = [("threads 4", 1.2), ("buffer-bytes 4096", 0.5), ("events-per-wait 64", 1.3)];
    let (chosen, found) = knobs(&mut Fake::new(&factors), epoll());
    assert_eq!(chosen.to_string(), "epoll, threads 4, events-per-wait 64");
    // What has changed may change the rest: all is tried again.
    assert_eq!(found.stages.len(), 14);
    assert!(found.stages[7].name.ends_with(", again") && found.stages[7].rows[0].name == "4");
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
fn what_has_no_effect_beside_what_was_taken_is_not_tried() {
    let receives = |setting, factor| {
        let (mut fake, settings) = (Fake::new(&[("posted-receives 4", factor)]), settings(Goal::Throughput));
        Descent::new(&mut fake, &settings, |_| {}).knob(Knob::PostedReceives, setting, 2, 0).to_string()
    };
    let posted = Setting::new(Model::Iocp);
    let zero_byte = posted.with(Knob::Receive, Some(1));
    assert_eq!(receives(posted, 1.2), "iocp, posted-receives 4");
    assert_eq!(receives(zero_byte.clone(), 1.2), "iocp, receive zero-byte");
    let both = zero_byte.with(Knob::PostedReceives, Some(4));
    assert_eq!(receives(both, 0.8), "iocp, receive zero-byte", "what was taken before can be taken back");
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
fn a_candidate_is_out_if_the_median_of_its_rounds_is_below_the_rate() {
    let with = |name: &'static str, answered: f64, rounds, limit| {
        let mut fake = Fake::new(&[("uring", 1.3)]);
        fake.answered.insert(name, (answered, rounds));
        fake.limits.insert(name, (limit, rounds));
        let settings = Settings { rounds: 4, ..settings(Goal::Throughput) };
        let mut descent = Descent::new(&mut fake, &settings, |_| {});
        let models = [Model::Epoll, Model::Uring].map(|m| TuneCandidate::of(Setting::new(m), 100));
        let chosen = descent.model(models.into()).unwrap().to_string();
        let stage = descent.found().stages.remove(0);
        let why: Vec<String> = stage.failed.iter().map(|left_out| left_out.why.clone()).collect();
        (chosen, why.join(", "), fake.asked.iter().filter(|asked| *asked == name).count())
    };
    let kept = || ("uring".to_owned(), String::new(), 4);
    for name in ["epoll", "uring"] {
        assert_eq!(with(name, 950.0, 1, LimitedBy::Server), kept(), "{name}: one short round is a pause");
        assert_eq!(with(name, 950.0, 2, LimitedBy::Server), kept(), "{name}: the median is 97.5%");
    }
    assert_eq!(with("uring", 400.0, 1, LimitedBy::Server), kept());
    let out =
        |by: &str, rounds| ("epoll".to_owned(), format!("{by}it answered 400 of 1000 requests/s"), rounds);
    assert_eq!(
        with("uring", 400.0, 5, LimitedBy::Server),
        out("the server failed: ", 3),
        "none is to be had"
    );
    assert_eq!(with("uring", 400.0, 5, LimitedBy::Neither), out("", 3));
    assert_eq!(with("uring", 400.0, 4, LimitedBy::Generator).1, "", "rounds of the load are not counted");
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
    let models = [Model::Epoll, Model::Uring, Model::Poll].map(|m| TuneCandidate::of(Setting::new(m), 100));
    let chosen = descent.model(models.into()).unwrap();
    assert_eq!(chosen, epoll());
    assert_eq!(descent.knobs(chosen.clone(), 2, 2), epoll());
    assert_eq!(descent.knee(chosen, &[10, 100]), epoll());
    let found = descent.found();
    assert!(found.is_cut_short && found.stages.len() == 1);
    assert_eq!(fake.asked.len(), 8);
}

fn cap(fake: &mut Fake, goal: Goal) -> (Option<u64>, SearchStage) {
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
    let (found, stage) = cap(&mut fake, Goal::Connections);
    // What still served is no limit.
    assert_eq!((found, stage.chosen), (None, Some(3)));
    assert!(stage.decision.contains("up to 10000 were established and served"), "{}", stage.decision);
    fake.failing = vec!["1000"];
    let (found, stage) = cap(&mut fake, Goal::Connections);
    assert_eq!((found, stage.failed.len()), (Some(100), 1));
    assert!(stage.decision.ends_with("with 1000 the server failed: broken"), "{}", stage.decision);
    assert_eq!(fake.asked.last().map(String::as_str), Some("1000"), "nothing beyond what failed is tried");
    fake.failing = vec!["10"];
    assert_eq!(cap(&mut fake, Goal::Connections).0, None);
}

#[test]
fn what_the_load_could_not_open_is_no_limit_of_the_server() {
    for (side, says) in
        [(FailedSide::Load, "with 1000 the load failed: broken"), (FailedSide::Unknown, "with 1000 broken")]
    {
        for goal in [Goal::Connections, Goal::Throughput, Goal::P99, Goal::Cpu] {
            let mut fake = Fake::new(&[("10000", if goal == Goal::Throughput { 0.5 } else { 2.0 })]);
            (fake.failing, fake.side) = (vec!["1000"], side);
            let (found, stage) = cap(&mut fake, goal);
            assert_eq!((found, stage.failed.len()), (None, 1), "{goal:?}");
            let decision = &stage.decision;
            assert!(decision.contains("stays at its default") && decision.ends_with(says), "{decision}");
        }
    }
    let mut fake = Fake::new(&[]);
    fake.failing = vec!["1000"];
    let (found, stage) = cap(&mut fake, Goal::Throughput);
    assert_eq!((found, stage.chosen), (Some(100), Some(1)), "{}", stage.decision);
    assert!(stage.decision.ends_with("with 1000 the server failed: broken"), "{}", stage.decision);
}

#[test]
fn a_curve_that_the_load_bends_has_no_cap() {
    // Worse by half at the end, for whichever reason.
    let bent = |goal, limits: &[(&'static str, (LimitedBy, usize))]| {
        let worse = if goal == Goal::Throughput { 0.5 } else { 2.0 };
        let mut fake = Fake::new(&[("10000", worse)]);
        fake.limits = limits.iter().copied().collect();
        cap(&mut fake, goal)
    };
    let (load, server) = (LimitedBy::Generator, LimitedBy::Server);
    for goal in [Goal::Throughput, Goal::P99, Goal::Cpu] {
        assert_eq!(bent(goal, &[]).0, Some(1_000), "{goal:?}");
        // Two of its own rounds, and then three, are too few.
        for rounds in [5, 3, 2] {
            let (found, stage) = bent(goal, &[("10000", (load, rounds))]);
            assert_eq!(found, None, "{goal:?}, {}", stage.decision);
            let says = format!("with 10000 the load was the limit in {rounds} of 5 rounds");
            assert!(stage.decision.ends_with(&says) && stage.is_judged, "{}", stage.decision);
        }
        // One that is in doubt leaves enough.
        assert_eq!(bent(goal, &[("10000", (load, 1))]).0, Some(1_000), "{goal:?}");
        // Beyond a rung that says nothing of the server the curve may be anything.
        let (found, stage) = bent(goal, &[("1000", (load, 5))]);
        assert_eq!(found, None, "{goal:?}");
        assert!(stage.decision.contains("with 1000 the load was the limit"), "{}", stage.decision);
        let all = [("10", (load, 5)), ("100", (load, 5)), ("1000", (load, 5)), ("10000", (load, 5))];
        let (found, stage) = bent(goal, &all);
        assert!(found.is_none() && !stage.is_judged, "{}", stage.decision);
    }
    // A rate that falls while neither was busy is nobody's; a latency at a rate that was kept is the server's.
    let neither = [("10000", (LimitedBy::Neither, 5))];
    let (found, stage) = bent(Goal::Throughput, &neither);
    assert!(found.is_none() && stage.decision.contains("in only 0 of 5 rounds"), "{}", stage.decision);
    assert_eq!(bent(Goal::P99, &neither).0, Some(1_000));
    assert_eq!(bent(Goal::Throughput, &[("10000", (server, 5))]).0, Some(1_000));
}

#[test]
fn rounds_of_the_load_decide_nothing_for_latency_and_cost() {
    for goal in [Goal::P99, Goal::Cpu] {
        let search = |rounds| {
            let settings = settings(goal);
            let mut fake = Fake::new(&[("threads 4", 0.5)]);
            fake.limits.insert("4", (LimitedBy::Generator, rounds));
            let mut descent = Descent::new(&mut fake, &settings, |_| {});
            let chosen = descent.knob(Knob::Threads, epoll(), 2, 0);
            (chosen.to_string(), descent.found().stages.remove(0))
        };
        assert_eq!(search(0).0, "epoll, threads 4");
        let (chosen, stage) = search(1);
        assert_eq!(chosen, "epoll, threads 4");
        assert!(stage.decision.ends_with("not counting 1 of 15 rounds in which the load was the limit"));
        let (chosen, stage) = search(4);
        assert_eq!((chosen.as_str(), stage.rows[2].measures[0].rounds.len()), ("epoll", 5), "all are shown");
        assert!(stage.is_judged, "the other one is");
    }
}

#[test]
fn nothing_is_written_of_what_was_not_judged() {
    let search = |goal, trials, limit| {
        let mut fake = Fake::new(&[("poll", 2.0)]);
        (fake.trials_left, fake.limit) = (trials, limit);
        let settings = Settings { budget: Duration::from_secs(7), ..settings(goal) };
        let mut descent = Descent::new(&mut fake, &settings, |_| {});
        let models = [Model::Epoll, Model::Poll].map(|m| TuneCandidate::of(Setting::new(m), 100));
        let chosen = descent.model(models.into()).unwrap();
        descent.knee(chosen, &[10, 100]);
        crate::tune::refuse_what_was_not_judged(&descent.found(), &settings).map_err(|e| e.to_string())
    };
    let cut = search(Goal::Throughput, 6, LimitedBy::Server).unwrap_err();
    for says in ["the budget of 7 s was over", "--budget", "Nothing was written"] {
        assert!(cut.contains(says), "{says:?} in {cut}");
    }
    assert_eq!(search(Goal::Throughput, 8, LimitedBy::Server), Ok(()));
    let by_load = search(Goal::P99, 100, LimitedBy::Generator).unwrap_err();
    assert!(by_load.contains("not counting 10 of 10 rounds in which the load was the limit"), "{by_load}");
    assert_eq!(search(Goal::Throughput, 100, LimitedBy::Generator), Ok(()), "the cost was judged");
}
