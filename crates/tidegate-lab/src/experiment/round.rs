//! One round: a load against a running server, what the server used for it, and who was the limit.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_load::Report;
use tidegate_load::assessment::assess;
use tidegate_load::cpu_time::CpuTime;
use tidegate_load::verdict::{Evidence, Share, Verdict, Warning};

use super::generator::Generator;
use super::{LoadResultFile, MeasuredServer, TIMEOUT, check_it_lasted};
use crate::process::{Process, shown};
use crate::sample::peak_bytes;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// Answers a second that even a slow server gives. A round of a number of requests has failed if it takes longer.
pub(super) const LEAST_PER_S: u64 = 100;

/// How long so many take at this rate.
pub(crate) fn per_s(count: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rate.max(1) as f64)
}

/// The figures of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Right answers a second.
    pub requests_per_s: f64,
    /// Mean time of a request in microseconds.
    pub mean_us: f64,
    /// Median of it.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Server CPU seconds for 100,000 answers, user and kernel.
    pub cpu_s_per_100k: f64,
    /// Answers a second that the server would have given with a whole processor, at this cost of each.
    #[serde(default)]
    pub per_processor_s: f64,
    /// Requests, those that failed included.
    #[serde(default)]
    pub requests: u64,
    /// Requests that failed, or were not answered in time.
    pub failed: u64,
    /// Bytes of an answer, head and body.
    pub bytes_each: f64,
    /// The most resident memory that the server had until the end of the round; `None` where it cannot be asked.
    #[serde(default)]
    pub peak_bytes: Option<u64>,
    /// Who was the limit, and what makes the round doubtful.
    pub verdict: Verdict,
}

impl AsRef<Self> for Round {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Round {
    /// From what the load saw, and the processor time that the server used meanwhile.
    pub(crate) fn of(bench: &Bench, report: &Report, server_cpu_s: f64) -> Self {
        Self::with_share(bench, report, server_cpu_s, 1.0)
    }

    /// The same of a server that had only this share of its processors.
    pub(super) fn with_share(bench: &Bench, report: &Report, server_cpu_s: f64, share: f64) -> Self {
        let l = &report.latency_us;
        let failed = report.failed + report.timed_out;
        Self {
            requests_per_s: report.requests_per_s,
            mean_us: l.mean,
            p50_us: l.p50 as f64,
            p99_us: l.p99 as f64,
            p99_9_us: l.p99_9 as f64,
            cpu_s_per_100k: server_cpu_s * 1e5 / report.requests.max(1) as f64,
            per_processor_s: report.requests as f64 / server_cpu_s.max(1e-9),
            requests: report.requests + failed,
            failed,
            bytes_each: report.bytes_received as f64 / report.requests.max(1) as f64,
            peak_bytes: None,
            verdict: assessed(bench, report, server_cpu_s / share),
        }
    }

    /// The same, in an experiment that shows no latencies, without a doubt about those of a server that was paused.
    /// A server that has used up its share rests in the middle of requests. The longest of them end after a short
    /// window, or after their connections' turn in it, so the mean of those that ended in it is too small for Little's
    /// law, which says nothing about the rate and the processor time.
    pub(super) fn without_latencies_of_pauses(mut self, share: f64) -> Self {
        self.verdict
            .warnings
            .retain(|warning| share >= 1.0 || !matches!(warning, Warning::LittlesLaw { .. }));
        self
    }

    /// The same without a warning of a short window: the spread of the rounds shows what a short one is worth.
    pub(super) fn without_short_window(mut self) -> Self {
        self.verdict.warnings.retain(|warning| !matches!(warning, Warning::ShortWindow { .. }));
        self
    }
}

/// Judges a load again, with what the lab knows of the server: many threads that share one processor may fill it
/// although none of them is busy, and of very many threads the load looks at none. `server_cpu_s` is what the server
/// would have used of whole processors.
pub(super) fn assessed(bench: &Bench, report: &Report, server_cpu_s: f64) -> Verdict {
    let mut evidence: Evidence = report.verdict.clone().map(|c| c.evidence).unwrap_or_default();
    let processors = bench.server_cpus.len().max(1) as f64;
    let ran = (server_cpu_s / report.elapsed_s.max(1e-9) / processors).min(1.0);
    if evidence.server.is_none_or(|share| share.wanted() < ran) {
        evidence.server = Some(Share { ran, waited: 0.0 });
    }
    assess(report, evidence)
}

/// What several rounds of the same come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Right answers a second.
    pub requests_per_s: Spread,
    /// Mean time of a request in microseconds.
    pub mean_us: Spread,
    /// Median of it.
    pub p50_us: Spread,
    /// 99th percentile.
    pub p99_us: Spread,
    /// 99.9th percentile.
    pub p99_9_us: Spread,
    /// Server CPU seconds for 100,000 answers.
    pub cpu_s_per_100k: Spread,
    /// Answers a second of a whole processor.
    #[serde(default)]
    pub per_processor_s: Spread,
    /// The server's peak of resident memory in bytes; `None` where it could not be asked in every round.
    #[serde(default)]
    pub peak_bytes: Option<Spread>,
    /// Requests of all rounds, those that failed included.
    #[serde(default)]
    pub requests: u64,
    /// Failed requests of all rounds.
    pub failed: u64,
    /// Of each round.
    pub verdicts: Vec<Verdict>,
    /// The turn of each round, from 0: one whose round failed is missing. Empty where only the order is known.
    #[serde(default)]
    pub turns: Vec<usize>,
}

impl Figures {
    /// Of these rounds; `None` of none.
    #[must_use]
    pub fn of(rounds: &[Round]) -> Option<Self> {
        let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        Some(Self {
            requests_per_s: spread(|r| r.requests_per_s)?,
            mean_us: spread(|r| r.mean_us)?,
            p50_us: spread(|r| r.p50_us)?,
            p99_us: spread(|r| r.p99_us)?,
            p99_9_us: spread(|r| r.p99_9_us)?,
            cpu_s_per_100k: spread(|r| r.cpu_s_per_100k)?,
            per_processor_s: spread(|r| r.per_processor_s)?,
            peak_bytes: rounds
                .iter()
                .map(|r| r.peak_bytes.map(|bytes| bytes as f64))
                .collect::<Option<Vec<_>>>()
                .and_then(Spread::of),
            requests: rounds.iter().map(|r| r.requests).sum(),
            failed: rounds.iter().map(|r| r.failed).sum(),
            verdicts: rounds.iter().map(|r| r.verdict.clone()).collect(),
            turns: Vec::new(),
        })
    }

    /// Of these turns, of which some may have failed; `None` if all did.
    #[must_use]
    pub fn in_turns(turns: &[Option<Round>]) -> Option<Self> {
        let good = || turns.iter().enumerate().filter_map(|(turn, round)| Some((turn, round.as_ref()?)));
        let rounds: Vec<Round> = good().map(|(_, round)| round.clone()).collect();
        Some(Self { turns: good().map(|(turn, _)| turn).collect(), ..Self::of(&rounds)? })
    }

    /// Server CPU seconds for 100,000 answers, by turn.
    pub(crate) fn cost_by_turn(&self) -> BTreeMap<usize, f64> {
        let turn = |at: usize| self.turns.get(at).copied().unwrap_or(at);
        self.cpu_s_per_100k.rounds.iter().enumerate().map(|(at, &cost)| (turn(at), cost)).collect()
    }
}

/// When a round ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// After so many requests.
    Requests(u64),
    /// After this time.
    Time(Duration),
}

impl Length {
    /// A part of it that is enough to see what a request costs.
    pub(super) fn trial(self) -> Self {
        match self {
            Self::Requests(count) => Self::Requests((count / 4).max(1)),
            Self::Time(time) => Self::Time(time / 2),
        }
    }

    /// How long a load may take that measures for this length: starting it and its last answers take time, too.
    pub(super) fn limit(self) -> Duration {
        let expected = match self {
            Self::Requests(count) => per_s(count, LEAST_PER_S),
            Self::Time(time) => time,
        };
        TIMEOUT + expected
    }

    fn option(self) -> [String; 2] {
        match self {
            Self::Requests(count) => ["-n".into(), count.to_string()],
            Self::Time(time) => ["-d".into(), time.as_secs_f64().to_string()],
        }
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Requests(count) => write!(f, "{count} requests"),
            Self::Time(time) => write!(f, "{} s", time.as_secs_f64()),
        }
    }
}

/// A load of HTTP requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoundLoad {
    pub(crate) concurrency: usize,
    pub(crate) length: Length,
    pub(crate) keep_alive: bool,
}

impl RoundLoad {
    fn options(self) -> Vec<String> {
        let mut options = vec!["-c".into(), self.concurrency.to_string()];
        options.extend((!self.keep_alive).then(|| "--no-keepalive".to_owned()));
        options
    }
}

/// Has `requests` answered by this server.
pub(crate) fn http(
    generator: Generator<'_>,
    server: &mut dyn MeasuredServer,
    requests: RoundLoad,
) -> Result<Round, LabError> {
    throttled(generator, server, requests, 1.0)
}

/// The same by a server that has only this share of its processors.
pub(super) fn throttled(
    generator: Generator<'_>,
    server: &mut dyn MeasuredServer,
    requests: RoundLoad,
    share: f64,
) -> Result<Round, LabError> {
    let options = requests.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let round = load(generator, server, requests.length, &options, share)?;
    Ok(Round { peak_bytes: peak_bytes(server.id()), ..round })
}

/// Has this server, which has this share of its processors, answer a load of HTTP requests of this length with these
/// options.
pub(crate) fn load(
    generator: Generator<'_>,
    server: &mut dyn MeasuredServer,
    length: Length,
    options: &[&str],
    share: f64,
) -> Result<Round, LabError> {
    let own = length.option();
    let options = [options, &own.each_ref().map(String::as_str)].concat();
    let (report, used) = carried(generator, server, &options, length.limit())?;
    Ok(Round::with_share(generator.bench, &report, used, share).without_latencies_of_pauses(share))
}

/// What the load saw, and the processor seconds that the server used for it. The load itself looks at the server when
/// its window begins and ends: connections that are opened before, and answers that come later, do not count, and cost
/// nothing. Agents of other hosts cannot, so the server is looked at here, when they say so.
fn carried(
    generator: Generator<'_>,
    server: &mut dyn MeasuredServer,
    options: &[&str],
    limit: Duration,
) -> Result<(Report, f64), LabError> {
    let (bench, pid) = (generator.bench, server.id());
    let file = LoadResultFile::new()?;
    let mut args: Vec<String> = vec!["load".into(), "http".into(), server.url().into()];
    args.extend(options.iter().map(ToString::to_string));
    args.extend(generator.options(&["--server-pid", &pid.to_string()]));
    args.extend(["--json".into(), file.path(), "--tolerate-failures".into()]);
    args.extend(generator.is_led().then(|| "--phases".into()));
    let name = shown(&args);
    let mut process = Process::start(bench, &args)?;
    let seen_here = generator.is_led().then(|| used_in_window(&mut process, pid, limit));
    let good = process.wait(limit)?;
    let report = file.read(&name);
    check_it_lasted(server, report.as_ref().ok())?;
    let report = match report {
        Err(_) if !good => return Err(process.failure("ended without a result".into())),
        report => report?,
    };
    if !good || report.requests == 0 {
        let trouble = report.together.and_then(|together| together.troubles.into_iter().next());
        return Err(match trouble.or(report.first_error) {
            Some(why) => LabError::Process { what: name, why },
            None => LabError::NoAnswer { what: name },
        });
    }
    let used = match seen_here {
        Some(used) => used?,
        None => report.server_cpu_s.ok_or_else(|| LabError::Process {
            what: name,
            why: "did not say what the server used".into(),
        })?,
    };
    Ok((report, used))
}

/// What the server `pid` uses in the window of a load that says when that begins and ends.
fn used_in_window(load: &mut Process, pid: u32, limit: Duration) -> Result<f64, LabError> {
    load.wait_for_line("phase measuring", limit)?;
    let time = CpuTime::of(pid);
    load.wait_for_line("phase done", limit)?;
    Ok(time.used_s())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::report::Latency;
    use tidegate_load::verdict::LimitedBy;

    fn report() -> Report {
        let latency_us = Latency { mean: 1_000.0, ..Latency::default() };
        Report { requests: 10_000, requests_per_s: 5_000.0, elapsed_s: 2.0, latency_us, ..Report::default() }
    }

    #[test]
    fn a_server_that_fills_its_processor_with_many_threads_is_the_limit() {
        let bench =
            Bench { program: "tidegate".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let full = Round::of(&bench, &report(), 1.9);
        assert_eq!(full.verdict.limited_by, LimitedBy::Server);
        assert!((full.cpu_s_per_100k - 19.0).abs() < 1e-9);
        let half = Round::of(&bench, &report(), 1.0);
        assert_eq!(half.verdict.limited_by, LimitedBy::Neither);
        let two = Bench { server_cpus: vec![0, 1], ..bench };
        assert_eq!(Round::of(&two, &report(), 1.9).verdict.limited_by, LimitedBy::Neither);
    }

    #[test]
    fn pauses_of_a_server_raise_no_doubt_where_no_latency_is_shown() {
        let bench =
            Bench { program: "tidegate".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let evidence = Evidence { mean_in_flight: 1_000.0, samples: 100, ..Evidence::default() };
        let verdict = Some(assess(&report(), evidence));
        let round = Round::with_share(&bench, &Report { verdict, ..report() }, 0.9, 0.5);
        let is_doubted =
            |round: &Round| round.verdict.warnings.iter().any(|w| matches!(w, Warning::LittlesLaw { .. }));
        assert!(is_doubted(&round), "{round:?}");
        assert!(!is_doubted(&round.clone().without_latencies_of_pauses(0.5)));
        assert!(is_doubted(&round.without_latencies_of_pauses(1.0)), "nothing paused this server");
    }

    #[test]
    fn a_load_may_take_longer_than_it_measures() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        assert!(Length::Time(minutes(5)).limit() >= minutes(6), "bench demand --seconds 5m");
        assert!(Length::Time(minutes(60)).limit() >= minutes(61));
        assert!(Length::Requests(1_000_000).limit() > minutes(10), "bench peers --requests 1000000");
        assert!(Length::Requests(1).limit() > minutes(1));
        assert!(Length::Requests(u64::MAX).limit() > minutes(60), "and no overflow");
    }

    #[test]
    fn figures_keep_every_round() {
        let bench =
            Bench { program: "tidegate".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let report = Report { failed: 2, timed_out: 1, ..report() };
        let rounds = [1.0, 3.0, 2.0].map(|cpu_s| Round::of(&bench, &report, cpu_s));
        let figures = Figures::of(&rounds).unwrap();
        assert_eq!((figures.failed, figures.requests), (9, 30_009));
        assert_eq!(figures.cpu_s_per_100k.rounds, [10.0, 30.0, 20.0]);
        assert!((figures.cpu_s_per_100k.median - 20.0).abs() < 1e-9 && figures.verdicts.len() == 3);
        assert_eq!(Figures::of(&[]), None);
    }

    #[test]
    fn a_round_keeps_its_turn_where_one_before_it_failed() {
        let bench =
            Bench { program: "tidegate".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let turns = [Some(1.0), None, Some(2.0)].map(|cpu_s| Some(Round::of(&bench, &report(), cpu_s?)));
        let figures = Figures::in_turns(&turns).unwrap();
        assert_eq!(figures.cost_by_turn(), BTreeMap::from([(0, 10.0), (2, 20.0)]));
        assert_eq!(Figures::in_turns(&[None]), None);
        // Results of before knew the order only.
        let mut saved = serde_json::to_value(&figures).unwrap();
        saved.as_object_mut().unwrap().remove("turns").unwrap();
        let read: Figures = serde_json::from_value(saved).unwrap();
        assert_eq!(read.cost_by_turn(), BTreeMap::from([(0, 10.0), (1, 20.0)]));
    }
}
