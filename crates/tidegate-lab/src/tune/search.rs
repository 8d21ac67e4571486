//! The descent and its judgement. Pure: what measures, and what knows the time, is passed in.

use std::fmt;

use tidegate_load::verdict::{LimitedBy, Verdict};

use super::{Goal, Knob, Setting, Settings};
use crate::bootstrap::{LEAST_ROUNDS, median};
use crate::compare::{FALSE_ALARM, Judged, Significance, judge};
use crate::experiment::LeftOut;
use crate::experiment::demand::LEAST_PART;
use crate::run::{Better, Measure, Row};

/// How much better a value has to be for sure to take the place of the default: less is not worth a file that others
/// have to understand.
const WORTH: f64 = 0.02;

/// Part of the budget after which only the cap is looked for.
const BEFORE_THE_CAP: f64 = 0.75;

/// How much of the best figure more connections may cost before the cap is drawn below them.
const TOLERATED: f64 = 0.10;

/// What is measured: a server's settings, under so many connections.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TuneCandidate {
    /// Its name in the stage.
    pub(super) name: String,
    pub(super) setting: Setting,
    pub(super) connections: usize,
}

impl TuneCandidate {
    /// A model with its defaults.
    pub(super) fn of(setting: Setting, connections: usize) -> Self {
        Self { name: setting.to_string(), setting, connections }
    }
}

/// One round of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// The figure of the goal.
    pub(super) figure: f64,
    /// Server CPU seconds for 100,000 answers, where answers are counted.
    pub(super) cpu_s_per_100k: Option<f64>,
    /// Who was the limit of a rate.
    pub(super) verdict: Option<Verdict>,
    /// What was answered of a schedule.
    pub(super) rate: Option<AnsweredRate>,
}

/// Requests a second of an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AnsweredRate {
    pub(super) scheduled_per_s: f64,
    pub(super) answered_per_s: f64,
}

impl Trial {
    fn is_limited_by(&self, side: LimitedBy) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.limited_by == side)
    }

    /// What was answered of a schedule that the load did not limit.
    fn rate_of_server(&self) -> Option<AnsweredRate> {
        self.rate.filter(|_| !self.is_limited_by(LimitedBy::Generator))
    }

    /// Whether less was answered than a figure of this rate takes, and the load was not the limit.
    fn is_short(&self) -> bool {
        self.rate_of_server().is_some_and(|rate| rate.answered_per_s < LEAST_PART * rate.scheduled_per_s)
    }
}

/// Why the rounds of a candidate are no figures of the rate: their median is below it. One short round with a pause in
/// it is not enough.
fn shortfall(trials: &[Trial]) -> Option<TrialFailure> {
    let rates: Vec<AnsweredRate> = trials.iter().filter_map(Trial::rate_of_server).collect();
    let scheduled_per_s = rates.first()?.scheduled_per_s;
    let answered: Vec<f64> = rates.iter().map(|rate| rate.answered_per_s).collect();
    let answered_per_s = median(&answered)?;
    if answered_per_s >= LEAST_PART * scheduled_per_s {
        return None;
    }
    let short = trials.iter().filter(|trial| trial.is_short());
    let of_server = short.clone().filter(|trial| trial.is_limited_by(LimitedBy::Server)).count();
    let side = if of_server * 2 > short.count() { FailedSide::Server } else { FailedSide::Unknown };
    let why = format!("it answered {answered_per_s:.0} of {scheduled_per_s} requests/s");
    Some(TrialFailure { side, why })
}

/// Which side a failure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedSide {
    Server,
    Load,
    /// Unknown, or the machine.
    Unknown,
}

/// Why a candidate has no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrialFailure {
    pub(super) side: FailedSide,
    pub(super) why: String,
}

impl fmt::Display for TrialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.side {
            FailedSide::Server => "the server failed: ",
            FailedSide::Load => "the load failed: ",
            FailedSide::Unknown => "",
        };
        write!(f, "{who}{}", self.why)
    }
}

/// Measures candidates.
pub(super) trait Laboratory {
    fn measure(&mut self, stage: &str, candidate: &TuneCandidate) -> Result<Trial, TrialFailure>;
    /// Whether this part of the budget is over, so that no trial is to be begun any more.
    fn is_over(&mut self, part: f64) -> bool;
}

/// Candidates that differ in one thing, what each came to, and which one was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchStage {
    /// What they differ in.
    pub name: String,
    /// Every candidate that was measured; the first one is what the search came with.
    pub rows: Vec<Row>,
    /// The others against the first, by the figure that the stage was judged by; nothing where another question is
    /// asked.
    pub against_first: Vec<Judged>,
    /// The row that was taken, if there is one.
    pub chosen: Option<usize>,
    /// What was decided and why, in words.
    pub decision: String,
    /// Candidates that could not be measured, and why.
    pub failed: Vec<LeftOut>,
    /// Whether it could be judged at all: enough rounds that the load did not limit.
    pub is_judged: bool,
}

/// What a descent has done.
pub(super) struct SearchResult {
    pub(super) stages: Vec<SearchStage>,
    pub(super) is_cut_short: bool,
}

/// A search that goes on from stage to stage.
pub(super) struct Descent<'a, L, F> {
    laboratory: &'a mut L,
    settings: &'a Settings,
    shown: F,
    found: SearchResult,
    /// Part of the budget that the present stage may use.
    part: f64,
}

impl<'a, L: Laboratory, F: FnMut(&SearchStage)> Descent<'a, L, F> {
    pub(super) fn new(laboratory: &'a mut L, settings: &'a Settings, shown: F) -> Self {
        let found = SearchResult { stages: Vec::new(), is_cut_short: false };
        Self { laboratory, settings, shown, found, part: BEFORE_THE_CAP }
    }

    pub(super) fn found(self) -> SearchResult {
        self.found
    }

    /// The best model; the first one is the default. `None` if none could be measured.
    pub(super) fn model(&mut self, candidates: Vec<TuneCandidate>) -> Option<Setting> {
        let (stage, measured) = self.compared("model", candidates);
        let setting = stage.chosen.map(|i| measured[i].setting.clone());
        self.show(stage);
        setting
    }

    /// Goes through all settings of the model, and through them again while that changes something, `passes` times at
    /// most.
    pub(super) fn knobs(&mut self, mut setting: Setting, processors: usize, passes: usize) -> Setting {
        for pass in 0..passes {
            let before = setting.clone();
            for knob in Knob::ALL {
                setting = self.knob(knob, setting, processors, pass);
            }
            if setting == before {
                break;
            }
        }
        setting
    }

    fn knob(&mut self, knob: Knob, setting: Setting, processors: usize, pass: usize) -> Setting {
        let now = setting.values.get(&knob).copied();
        let admitted = |value| setting.admits(knob, value, processors);
        let mut values = self.settings.values(knob, setting.model, processors);
        values.retain(|&value| value == now || value.is_none_or(admitted));
        if values.len() < 2 || self.is_over() {
            return setting;
        }
        values.sort_by_key(|&value| value != now); // stable: what is set now comes first
        let candidates = values.into_iter().map(|value| TuneCandidate {
            name: value.map_or("default".into(), |value| knob.text(value)),
            setting: setting.with(knob, value),
            connections: self.settings.connections,
        });
        let again = if pass > 0 { ", again" } else { "" };
        let (mut stage, measured) = self.compared(&format!("{}{again}", knob.name()), candidates.collect());
        if measured.first().is_none_or(|first| first.setting != setting) {
            stage.chosen = None;
            stage.is_judged = false;
            stage.decision = format!("{} stays as it is: there is nothing to compare with", knob.name());
        }
        let chosen = stage.chosen.map_or(setting, |i| measured[i].setting.clone());
        self.show(stage);
        chosen
    }

    /// The most connections under which the figure is not clearly worse than at its best: the knee of the curve. Only
    /// what the server did decides; where the load was the limit the curve is its own.
    pub(super) fn knee(&mut self, setting: Setting, ladder: &[usize]) -> Setting {
        self.part = 1.0;
        if ladder.is_empty() || self.is_over() {
            return setting;
        }
        let (mut stage, rungs) = self.climbed(self.ladder(&setting, ladder));
        let bend = bend(&rungs, self.settings.goal);
        stage.is_judged = rungs.iter().filter(|rung| rung.is_judged()).count() > 1;
        let at_default = |why: String| format!("max-connections stays at its default: {why}");
        let (decision, row, cap) = match bend {
            Bend::At { last, why } => {
                let n = rungs[last].connections;
                (format!("max-connections {n}: {why}"), rungs[last].row, Some(n as u64))
            }
            Bend::Nowhere { last } => {
                let n = rungs[last].connections;
                (at_default(format!("up to {n} nothing is lost for sure")), rungs[last].row, None)
            }
            Bend::Unknown(why) => (at_default(why), None, None),
        };
        (stage.decision, stage.chosen) = (decision, row);
        self.show(stage);
        setting.with(Knob::MaxConnections, cap)
    }

    /// The most connections that are all established and all served, if the server is what ends them.
    pub(super) fn most(&mut self, setting: Setting, ladder: &[usize]) -> Setting {
        self.part = 1.0;
        let mut stage = SearchStage::new("connections");
        let (mut most, mut end) = (None, None);
        for candidate in self.ladder(&setting, ladder) {
            if self.is_over() {
                break;
            }
            match self.laboratory.measure(&stage.name, &candidate) {
                Ok(trial) => {
                    stage.rows.push(row(self.settings.goal, &stage.name, &candidate.name, &[trial]));
                    most = Some(candidate.connections);
                }
                Err(failure) => {
                    stage.failed.push(LeftOut { model: candidate.name.clone(), why: failure.to_string() });
                    end = Some((candidate.connections, failure));
                    break;
                }
            }
        }
        stage.chosen = stage.rows.len().checked_sub(1);
        stage.is_judged = most.is_some();
        let served = most.map_or_else(
            || "no number of connections was tried with success".to_owned(),
            |n| format!("up to {n} were established and served"),
        );
        let mut cap = None;
        stage.decision = match (most, end) {
            (Some(n), Some((more, TrialFailure { side: FailedSide::Server, why }))) => {
                cap = Some(n as u64);
                format!(
                    "max-connections {n}: as many were established and served; with {more} the server failed: {why}"
                )
            }
            (_, Some((more, failure))) => {
                format!("max-connections stays at its default: {served}; with {more} {failure}")
            }
            (_, None) => format!(
                "max-connections stays at its default: {served}, so the server's limit was not reached; try more with --caps"
            ),
        };
        self.show(stage);
        setting.with(Knob::MaxConnections, cap)
    }

    fn ladder(&self, setting: &Setting, ladder: &[usize]) -> Vec<TuneCandidate> {
        let at = |&n: &usize| TuneCandidate { name: n.to_string(), setting: setting.clone(), connections: n };
        ladder.iter().map(at).collect()
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.laboratory.is_over(self.part);
        self.found.is_cut_short |= is_over;
        is_over
    }

    fn show(&mut self, stage: SearchStage) {
        (self.shown)(&stage);
        self.found.stages.push(stage);
    }

    /// Measures candidates and decides between them; also those that the rows are of.
    fn compared(&mut self, name: &str, candidates: Vec<TuneCandidate>) -> (SearchStage, Vec<TuneCandidate>) {
        let (mut stage, measured) = self.measured(name, candidates);
        let Ranking { rows, by, why } = judged_by(self.settings.goal, &stage.rows);
        stage.against_first = against_first(&rows, by);
        stage.is_judged = stage.against_first.iter().any(|j| j.interval.is_some());
        stage.chosen = choose(&rows, by);
        stage.decision = match stage.chosen {
            None => format!("{name} stays as it is: nothing could be measured"),
            Some(0) if stage.is_judged || rows.len() < 2 => {
                format!("{name} stays at {}: nothing else is better for sure{why}", measured[0].name)
            }
            Some(0) => format!("{name} stays at {}: nothing could be judged{why}", measured[0].name),
            Some(i) => format!("{name} {}: better for sure{why}", measured[i].name),
        };
        (stage, measured)
    }

    /// The same of a ladder: every rung of it, also those without a figure.
    fn climbed(&mut self, ladder: Vec<TuneCandidate>) -> (SearchStage, Vec<Rung>) {
        let (stage, measured, failed) = self.tried("connections", ladder.clone());
        let rung = |candidate: TuneCandidate| {
            let row = measured.iter().position(|c| *c == candidate);
            let failure = failed.iter().find(|(c, _)| *c == candidate).map(|(_, failure)| failure.clone());
            let of_server = row.map(|i| of_server(&stage.rows[i]));
            let verdicts = row.map(|i| stage.rows[i].verdicts.clone()).unwrap_or_default();
            Rung { connections: candidate.connections, row, of_server, verdicts, failure }
        };
        let rungs = ladder.into_iter().map(rung).collect();
        (stage, rungs)
    }

    fn measured(&mut self, name: &str, candidates: Vec<TuneCandidate>) -> (SearchStage, Vec<TuneCandidate>) {
        let (stage, measured, _) = self.tried(name, candidates);
        (stage, measured)
    }

    /// Rounds of all candidates, which take turns. One with failed requests in a round is out, and one that does not
    /// keep the rate as soon as most of its rounds cannot.
    fn tried(
        &mut self,
        name: &str,
        candidates: Vec<TuneCandidate>,
    ) -> (SearchStage, Vec<TuneCandidate>, Vec<(TuneCandidate, TrialFailure)>) {
        let (mut stage, mut failed) = (SearchStage::new(name), Vec::new());
        let mut running: Vec<(TuneCandidate, Vec<Trial>)> =
            candidates.into_iter().map(|c| (c, Vec::new())).collect();
        let rounds = self.settings.rounds;
        for round in 0..rounds {
            let mut rest = Vec::new();
            for (candidate, mut trials) in running {
                let is_first = round == 0 && rest.is_empty() && self.found.stages.is_empty();
                let is_lost = trials.iter().filter(|trial| trial.is_short()).count() * 2 > rounds;
                if is_lost || (!is_first && self.is_over()) {
                    rest.push((candidate, trials));
                    continue;
                }
                match self.laboratory.measure(name, &candidate) {
                    Ok(trial) => {
                        trials.push(trial);
                        rest.push((candidate, trials));
                    }
                    Err(failure) => failed.push((candidate, failure)),
                }
            }
            running = rest;
        }
        running.retain(|(candidate, trials)| {
            let shortfall = shortfall(trials);
            let is_kept = shortfall.is_none();
            failed.extend(shortfall.map(|failure| (candidate.clone(), failure)));
            is_kept
        });
        let left_out = |(candidate, failure): &(TuneCandidate, TrialFailure)| LeftOut {
            model: candidate.name.clone(),
            why: failure.to_string(),
        };
        stage.failed = failed.iter().map(left_out).collect();
        running.retain(|(_, trials)| !trials.is_empty());
        stage.rows =
            running.iter().map(|(c, trials)| row(self.settings.goal, name, &c.name, trials)).collect();
        (stage, running.into_iter().map(|(candidate, _)| candidate).collect(), failed)
    }
}

impl SearchStage {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            rows: Vec::new(),
            against_first: Vec::new(),
            chosen: None,
            decision: String::new(),
            failed: Vec::new(),
            is_judged: false,
        }
    }
}

fn row(goal: Goal, stage: &str, name: &str, trials: &[Trial]) -> Row {
    let (figure, better) = goal.measure();
    let measure = |name: &str, better, rounds| Measure { name: name.into(), better, rounds };
    let cpu: Vec<f64> = trials.iter().filter_map(|trial| trial.cpu_s_per_100k).collect();
    let mut measures = vec![measure(figure, better, trials.iter().map(|trial| trial.figure).collect())];
    if !cpu.is_empty() {
        measures.push(measure("cpu_s_per_100k", Better::Lower, cpu));
    }
    let verdicts = trials.iter().filter_map(|trial| trial.verdict.clone()).collect();
    Row { experiment: format!("tune: {stage}"), name: name.into(), measures, verdicts, ..Row::default() }
}

/// Rows as they decide, by which of their figures, and a word about it.
struct Ranking {
    rows: Vec<Row>,
    by: usize,
    why: String,
}

/// The rounds of a row that say something about the server: those that the load did not limit. Where nothing has a
/// verdict, all.
fn of_server(row: &Row) -> Row {
    let is_of_server = |i: usize| row.verdicts.get(i).is_none_or(|v| v.limited_by != LimitedBy::Generator);
    let kept = |measure: &Measure| {
        let rounds = measure.rounds.iter().enumerate().filter(|&(i, _)| is_of_server(i));
        Measure { rounds: rounds.map(|(_, &value)| value).collect(), ..measure.clone() }
    };
    let verdicts = row.verdicts.iter().filter(|v| v.limited_by != LimitedBy::Generator).cloned().collect();
    Row { measures: row.measures.iter().map(kept).collect(), verdicts, ..row.clone() }
}

fn rounds(row: &Row) -> usize {
    row.measures.first().map_or(0, |measure| measure.rounds.len())
}

/// A round that the load has limited decides nothing. Where a rate is left with too few rounds, what the server spent
/// on each answer is compared instead, of all rounds: that is its own, whichever side was the limit.
fn judged_by(goal: Goal, rows: &[Row]) -> Ranking {
    let verdicts: Vec<&Verdict> = rows.iter().flat_map(|row| &row.verdicts).collect();
    let all = verdicts.len();
    let of_load = verdicts.iter().filter(|v| v.limited_by == LimitedBy::Generator).count();
    let kept: Vec<Row> = rows.iter().map(of_server).collect();
    let has_cost = rows.iter().all(|row| row.measures.len() > 1);
    let lacks = |(row, kept): (&Row, &Row)| rounds(kept) < LEAST_ROUNDS && rounds(kept) < rounds(row);
    if goal == Goal::Throughput && has_cost && rows.iter().zip(&kept).any(lacks) {
        let why =
            format!(", by CPU for each answer, because the load was the limit in {of_load} of {all} rounds");
        return Ranking { rows: rows.to_vec(), by: 1, why };
    }
    let why = match of_load {
        0 => String::new(),
        n => format!(", not counting {n} of {all} rounds in which the load was the limit"),
    };
    Ranking { rows: kept, by: 0, why }
}

/// A number of connections, and what came of it.
struct Rung {
    connections: usize,
    /// Its row in the stage.
    row: Option<usize>,
    /// Its rounds that the load did not limit.
    of_server: Option<Row>,
    /// Of all its rounds.
    verdicts: Vec<Verdict>,
    failure: Option<TrialFailure>,
}

impl Rung {
    fn is_judged(&self) -> bool {
        self.failure.is_none() && self.of_server.as_ref().is_some_and(|row| rounds(row) >= LEAST_ROUNDS)
    }

    fn count(&self, limited_by: LimitedBy) -> usize {
        self.verdicts.iter().filter(|v| v.limited_by == limited_by).count()
    }

    /// Why it says nothing about the server.
    fn trouble(&self) -> String {
        let n = self.connections;
        let (of_load, all) = (self.count(LimitedBy::Generator), self.verdicts.len());
        match &self.failure {
            Some(failure) => format!("with {n} {failure}"),
            None if of_load > 0 => format!("with {n} the load was the limit in {of_load} of {all} rounds"),
            None => format!("with {n} there were fewer than {LEAST_ROUNDS} rounds"),
        }
    }
}

/// Where a curve bends.
#[derive(Debug, PartialEq)]
enum Bend {
    /// After this rung.
    At { last: usize, why: String },
    /// Not up to this one, which is the last.
    Nowhere { last: usize },
    /// It cannot be said, and why.
    Unknown(String),
}

/// Goes up from the best rung until one is surely worse by more than what is tolerated, or the server fails. A rung
/// that says nothing about the server ends the search without an answer: what lies beyond may be anything.
fn bend(rungs: &[Rung], goal: Goal) -> Bend {
    let judged: Vec<usize> = (0..rungs.len()).filter(|&i| rungs[i].is_judged()).collect();
    let rows: Vec<Row> = judged.iter().filter_map(|&i| rungs[i].of_server.clone()).collect();
    let Some(best) = best(&rows, 0, &(0..rows.len()).collect::<Vec<_>>()) else {
        let trouble = rungs.first().map_or("nothing was tried".into(), Rung::trouble);
        return Bend::Unknown(format!("nothing could be judged: {trouble}"));
    };
    let confidence = confidence(judged.len() - 1);
    let (best, at_best) = (&rows[best], judged[best]);
    for (i, rung) in rungs.iter().enumerate().skip(at_best + 1) {
        let last = i - 1;
        let up_to = rungs[last].connections;
        match &rung.failure {
            Some(TrialFailure { side: FailedSide::Server, .. }) => {
                return Bend::At { last, why: rung.trouble() };
            }
            _ if !rung.is_judged() => {
                let trouble = rung.trouble();
                return Bend::Unknown(format!("up to {up_to} nothing is lost for sure, and {trouble}"));
            }
            _ => {}
        }
        let against = rung.of_server.as_ref().and_then(|row| pair(best, row, 0, confidence, TOLERATED));
        if against.is_none_or(|j| j.verdict != Significance::Worse) {
            continue;
        }
        // A rate falls if either side is slow; a latency or a cost at a rate that was kept is the server's.
        let (of_server, all) = (rung.count(LimitedBy::Server), rung.verdicts.len());
        if goal == Goal::Throughput && of_server * 2 <= all {
            return Bend::Unknown(format!(
                "with {} the rate is lower, but the server was the limit in only {of_server} of {all} rounds",
                rung.connections
            ));
        }
        let lost = TOLERATED * 100.0;
        return Bend::At { last, why: format!("more of them cost over {lost:.0}% for sure") };
    }
    Bend::Nowhere { last: rungs.len() - 1 }
}

/// B against A by the figure `by`.
fn pair(a: &Row, b: &Row, by: usize, confidence: f64, margin: f64) -> Option<Judged> {
    Some(judge((b, a.measures.get(by)?, b.measures.get(by)?), confidence, margin))
}

/// The confidence of each of so many comparisons, for that of a whole table.
fn confidence(comparisons: usize) -> f64 {
    1.0 - FALSE_ALARM / comparisons.max(1) as f64
}

fn against_first(rows: &[Row], by: usize) -> Vec<Judged> {
    let Some((first, others)) = rows.split_first() else { return Vec::new() };
    let confidence = confidence(others.len());
    others.iter().filter_map(|other| pair(first, other, by, confidence, WORTH)).collect()
}

/// The first row, unless another one is better for sure. Of several such the best; of those that it is not surely
/// better than, the first, because simple values come first.
fn choose(rows: &[Row], by: usize) -> Option<usize> {
    let against = against_first(rows, by);
    let sure: Vec<usize> = (1..rows.len())
        .filter(|&i| against.get(i - 1).is_some_and(|j| j.verdict == Significance::Better))
        .collect();
    let best = best(rows, by, &sure);
    let Some(best) = best else { return (!rows.is_empty()).then_some(0) };
    let confidence = confidence(sure.len());
    let is_as_good = |&i: &usize| {
        pair(&rows[i], &rows[best], by, confidence, WORTH).is_none_or(|j| j.verdict != Significance::Better)
    };
    sure.iter().copied().find(is_as_good)
}

/// The row with the best median among these.
fn best(rows: &[Row], by: usize, among: &[usize]) -> Option<usize> {
    let median = |i: usize| {
        let measure = rows.get(i)?.measures.get(by)?;
        let median = crate::bootstrap::median(&measure.rounds)?;
        Some(if measure.better == Better::Higher { -median } else { median })
    };
    let found = among.iter().filter_map(|&i| Some((i, median(i)?)));
    found.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

#[cfg(test)]
mod tests;
