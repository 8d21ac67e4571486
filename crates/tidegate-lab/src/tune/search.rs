//! The descent and its judgement. Pure: what measures, and what knows the time, is passed in.

use tidegate_load::verdict::{LimitedBy, Verdict};

use super::{Goal, Knob, Setting, Settings};
use crate::LabError;
use crate::compare::{FALSE_ALARM, Judged, Significance, judge};
use crate::experiment::LeftOut;
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
pub(super) struct Candidate {
    /// Its name in the stage.
    pub(super) name: String,
    pub(super) setting: Setting,
    pub(super) connections: usize,
}

impl Candidate {
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
}

/// Measures candidates.
pub(super) trait Laboratory {
    fn measure(&mut self, stage: &str, candidate: &Candidate) -> Result<Trial, LabError>;
    /// Whether this part of the budget is over, so that no trial is to be begun any more.
    fn is_over(&mut self, part: f64) -> bool;
}

/// Candidates that differ in one thing, what each came to, and which one was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
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
}

/// What a descent has done.
pub(super) struct Found {
    pub(super) stages: Vec<Stage>,
    pub(super) is_cut_short: bool,
}

/// A search that goes on from stage to stage.
pub(super) struct Descent<'a, L, F> {
    laboratory: &'a mut L,
    settings: &'a Settings,
    shown: F,
    found: Found,
    /// Part of the budget that the present stage may use.
    part: f64,
}

impl<'a, L: Laboratory, F: FnMut(&Stage)> Descent<'a, L, F> {
    pub(super) fn new(laboratory: &'a mut L, settings: &'a Settings, shown: F) -> Self {
        let found = Found { stages: Vec::new(), is_cut_short: false };
        Self { laboratory, settings, shown, found, part: BEFORE_THE_CAP }
    }

    pub(super) fn found(self) -> Found {
        self.found
    }

    /// The best model; the first one is the default. `None` if none could be measured.
    pub(super) fn model(&mut self, candidates: Vec<Candidate>) -> Option<Setting> {
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
        let mut values = self.settings.values(knob, setting.model, processors);
        if values.is_empty() || self.is_over() {
            return setting;
        }
        let now = setting.values.get(&knob).copied();
        values.sort_by_key(|&value| value != now); // stable: what is set now comes first
        let candidates = values.into_iter().map(|value| Candidate {
            name: value.map_or("default".into(), |value| knob.text(value)),
            setting: setting.with(knob, value),
            connections: self.settings.connections,
        });
        let again = if pass > 0 { ", again" } else { "" };
        let (mut stage, measured) = self.compared(&format!("{}{again}", knob.name()), candidates.collect());
        if measured.first().is_none_or(|first| first.setting != setting) {
            stage.chosen = None;
            stage.decision = format!("{} stays as it is: there is nothing to compare with", knob.name());
        }
        let chosen = stage.chosen.map_or(setting, |i| measured[i].setting.clone());
        self.show(stage);
        chosen
    }

    /// The most connections under which the figure is not clearly worse than at its best: the knee of the curve.
    pub(super) fn knee(&mut self, setting: Setting, ladder: &[usize]) -> Setting {
        self.part = 1.0;
        if ladder.is_empty() || self.is_over() {
            return setting;
        }
        let (mut stage, measured) = self.measured("connections", self.ladder(&setting, ladder));
        let (by, why) = judged_by(self.settings.goal, &stage.rows);
        let cap = knee(&stage.rows, by).map(|i| (i, measured[i].connections));
        stage.chosen = cap.map(|(i, _)| i);
        let (decision, chosen) = match cap {
            None => ("max-connections stays at its default: nothing could be judged".into(), setting),
            Some((i, n)) if i + 1 == stage.rows.len() => {
                (format!("max-connections stays at its default: up to {n} nothing is lost for sure"), setting)
            }
            Some((_, n)) => {
                let lost = TOLERATED * 100.0;
                let decision =
                    format!("max-connections {n}: more of them cost over {lost:.0}% for sure{why}");
                (decision, setting.with(Knob::MaxConnections, Some(n as u64)))
            }
        };
        stage.decision = decision;
        self.show(stage);
        chosen
    }

    /// The most connections that are all established and all served.
    pub(super) fn most(&mut self, setting: Setting, ladder: &[usize]) -> Setting {
        self.part = 1.0;
        let mut stage = Stage::new("connections");
        let mut most = None;
        for candidate in self.ladder(&setting, ladder) {
            if self.is_over() {
                break;
            }
            match self.laboratory.measure(&stage.name, &candidate) {
                Ok(trial) => {
                    stage.rows.push(row(self.settings.goal, &stage.name, &candidate.name, &[trial]));
                    most = Some(candidate.connections);
                }
                Err(e) => {
                    stage.failed.push(LeftOut { model: candidate.name, why: e.to_string() });
                    break;
                }
            }
        }
        stage.chosen = stage.rows.len().checked_sub(1);
        stage.decision = match most {
            Some(n) => format!("max-connections {n}: as many were established and served"),
            None => {
                "max-connections stays at its default: no number of connections was tried with success".into()
            }
        };
        self.show(stage);
        setting.with(Knob::MaxConnections, most.map(|n| n as u64))
    }

    fn ladder(&self, setting: &Setting, ladder: &[usize]) -> Vec<Candidate> {
        let at = |&n: &usize| Candidate { name: n.to_string(), setting: setting.clone(), connections: n };
        ladder.iter().map(at).collect()
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.laboratory.is_over(self.part);
        self.found.is_cut_short |= is_over;
        is_over
    }

    fn show(&mut self, stage: Stage) {
        (self.shown)(&stage);
        self.found.stages.push(stage);
    }

    /// Measures candidates and decides between them; also those that the rows are of.
    fn compared(&mut self, name: &str, candidates: Vec<Candidate>) -> (Stage, Vec<Candidate>) {
        let (mut stage, measured) = self.measured(name, candidates);
        let (by, why) = judged_by(self.settings.goal, &stage.rows);
        stage.against_first = against_first(&stage.rows, by);
        stage.chosen = choose(&stage.rows, by);
        stage.decision = match stage.chosen {
            None => format!("{name} stays as it is: nothing could be measured"),
            Some(0) => format!("{name} stays at {}: nothing else is better for sure{why}", measured[0].name),
            Some(i) => format!("{name} {}: better for sure{why}", measured[i].name),
        };
        (stage, measured)
    }

    /// Rounds of all candidates, which take turns. Who fails once is out.
    fn measured(&mut self, name: &str, candidates: Vec<Candidate>) -> (Stage, Vec<Candidate>) {
        let mut stage = Stage::new(name);
        let mut running: Vec<(Candidate, Vec<Trial>)> =
            candidates.into_iter().map(|c| (c, Vec::new())).collect();
        for round in 0..self.settings.rounds {
            let mut rest = Vec::new();
            for (candidate, mut trials) in running {
                let is_first = round == 0 && rest.is_empty() && self.found.stages.is_empty();
                if !is_first && self.is_over() {
                    rest.push((candidate, trials));
                    continue;
                }
                match self.laboratory.measure(name, &candidate) {
                    Ok(trial) => {
                        trials.push(trial);
                        rest.push((candidate, trials));
                    }
                    Err(e) => stage.failed.push(LeftOut { model: candidate.name, why: e.to_string() }),
                }
            }
            running = rest;
        }
        running.retain(|(_, trials)| !trials.is_empty());
        stage.rows =
            running.iter().map(|(c, trials)| row(self.settings.goal, name, &c.name, trials)).collect();
        (stage, running.into_iter().map(|(candidate, _)| candidate).collect())
    }
}

impl Stage {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            rows: Vec::new(),
            against_first: Vec::new(),
            chosen: None,
            decision: String::new(),
            failed: Vec::new(),
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
    Row { experiment: format!("tune: {stage}"), name: name.into(), measures, verdicts }
}

/// Which of a row's figures decides, and a word about it. A rate that the load has set says nothing about the server;
/// what the server spent on each answer still does.
fn judged_by(goal: Goal, rows: &[Row]) -> (usize, &'static str) {
    let all: Vec<_> = rows.iter().flat_map(|row| &row.verdicts).collect();
    let of_load = all.iter().filter(|c| c.limited_by == LimitedBy::Generator).count();
    let has_cost = rows.iter().all(|row| row.measures.len() > 1);
    if goal == Goal::Throughput && has_cost && of_load * 2 > all.len() {
        return (1, ", by CPU for each answer, because the load was the limit in most rounds");
    }
    (0, "")
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

/// The last row that is not surely worse than the best one by more than what is tolerated. `None` if they cannot be
/// judged.
fn knee(rows: &[Row], by: usize) -> Option<usize> {
    let all: Vec<usize> = (0..rows.len()).collect();
    let best = best(rows, by, &all)?;
    let confidence = confidence(rows.len() - 1);
    let verdict = |i: usize| Some(pair(&rows[best], &rows[i], by, confidence, TOLERATED)?.verdict);
    let verdicts: Vec<Significance> = all.iter().map(|&i| verdict(i)).collect::<Option<_>>()?;
    if verdicts.contains(&Significance::TooFewRounds) {
        return None;
    }
    // What is surely worse ends the search: beyond it the curve may be anything, and who goes there passes through the
    // dip.
    let end = (best..rows.len()).find(|&i| verdicts[i] == Significance::Worse).unwrap_or(rows.len());
    end.checked_sub(1)
}

#[cfg(test)]
mod tests;
