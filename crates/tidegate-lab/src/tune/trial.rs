//! One candidate measured once, with a fresh server and load.

use std::time::{Duration, Instant};

use tidegate::Model;

use tidegate_load::verdict::LimitedBy;

use super::search::{AnsweredRate, FailedSide, Laboratory, Trial, TrialFailure, TuneCandidate};
use super::{Goal, Setting, Settings};
use crate::experiment::generator::Generator;
use crate::experiment::round::{self, Length, Round};
use crate::experiment::share::CpuShare;
use crate::experiment::{ServerProcess, affordable, connections, sizing};
use crate::{Bench, LabError};

/// Part of what a server can answer that the open loops of [`Goal::P99`] and [`Goal::Cpu`] ask for: enough to be busy,
/// and away from the queue that grows without bound at all of it.
const PART_OF_CAPACITY: f64 = 0.5;

/// Servers and loads of this machine.
pub(super) struct Workbench<'a, P> {
    bench: &'a Bench,
    settings: &'a Settings,
    window: Duration,
    begun: Instant,
    /// Requests a second of an open loop.
    rate: Option<f64>,
    /// What the server has of its processors: in a closed loop so much that it is the limit, otherwise all.
    share: CpuShare,
    progress: P,
}

impl<'a, P: FnMut(&str)> Workbench<'a, P> {
    /// The budget begins now.
    pub(super) fn new(bench: &'a Bench, settings: &'a Settings, window: Duration, progress: P) -> Self {
        let share = CpuShare::whole();
        Self { bench, settings, window, begun: Instant::now(), rate: settings.rate, share, progress }
    }

    /// Finds the rate of an open loop, if it was not asked for, and the server's share in a closed one.
    pub(super) fn settle(&mut self, model: Model) -> Result<(), LabError> {
        let candidate = TuneCandidate::of(Setting::new(model), self.settings.connections);
        let load = self.load();
        let trial = |share: &mut CpuShare, candidate: &TuneCandidate| {
            let named = |e: TrialFailure| LabError::Process { what: model.to_string(), why: e.to_string() };
            load.trial(share, candidate).map_err(named)
        };
        match self.settings.goal {
            Goal::P99 | Goal::Cpu if self.rate.is_none() => {
                (self.progress)(&format!("{model}: what can be answered at all"));
                let closed = trial(&mut self.share, &candidate)?;
                self.rate = Some((closed.requests_per_s * PART_OF_CAPACITY).max(1.0).round());
            }
            Goal::Throughput => {
                (self.progress)(&format!("{model}: calibration"));
                self.share = CpuShare::new(self.bench, None);
                self.share.calibrate(&[candidate], trial);
            }
            Goal::P99 | Goal::Cpu | Goal::Connections => {}
        }
        Ok(())
    }

    fn load(&self) -> TuneLoad<'a> {
        TuneLoad { bench: self.bench, settings: self.settings, window: self.window, rate: self.rate }
    }

    fn http(&mut self, candidate: &TuneCandidate) -> Result<Round, TrialFailure> {
        self.load().trial(&mut self.share, candidate)
    }

    /// How everything is measured.
    pub(super) fn notes(&self) -> Vec<String> {
        let Settings { connections, rounds, .. } = self.settings;
        let window = self.window.as_secs_f64();
        let kept = if self.settings.keep_alive { "kept" } else { "a new one for each request" };
        let load = match (self.settings.goal, self.rate) {
            (Goal::Connections, _) => {
                format!(
                    "echo, {connections} connections that have spoken once and rest; user and kernel memory of each"
                )
            }
            (_, None) => {
                format!(
                    "http, closed loop of {connections} connections ({kept}), {window:.2} s each, longer with more --budget"
                )
            }
            (_, Some(rate)) => {
                format!(
                    "http, open loop of {rate} requests/s on {connections} connections ({kept}), {window:.2} s each, longer with more --budget"
                )
            }
        };
        let pinning = if self.bench.is_pinned_apart() {
            format!("server on processors {:?}, load on {:?}", self.bench.server_cpus, self.bench.load_cpus)
        } else {
            "server and load share a processor: figures are about both".to_owned()
        };
        let mut notes = vec![format!("{load}; {rounds} interleaved rounds; {pinning}")];
        if self.share.value() < 1.0 {
            let (percent, method) = (self.share.value() * 100.0, self.share.method());
            notes.push(format!(
                "the server has {percent:.0}% of its processors ({method}); rates are those of all"
            ));
        }
        notes
    }

    fn resting(&self, candidate: &TuneCandidate) -> Result<Trial, TrialFailure> {
        let TuneCandidate { setting, .. } = candidate;
        let plan = size(candidate)?;
        let most = plan.server_connections.to_string();
        let own = setting.options();
        // Connections are to be established whether they have spoken or not.
        let mut options =
            vec!["--max-connections", &most, "--defer-accept", "none", "--first-byte-timeout", "none"];
        options.extend(own.iter().map(String::as_str));
        let server = ServerProcess::start(self.bench, Goal::Connections.service(), setting.model, &options)
            .map_err(|e| TrialFailure { side: FailedSide::Server, why: e.to_string() })?;
        let unknown = |why: String| TrialFailure { side: FailedSide::Unknown, why };
        let row =
            connections::measure(Generator::here(self.bench), setting.model, server, &plan, self.window)
                .map_err(|e| unknown(e.to_string()))?;
        if let Some(why) = connections::shortfall(&row) {
            // What the kernel has established is the server's to answer and to hold.
            let is_established = row.connected >= row.load.connections as u64;
            return Err(TrialFailure {
                side: if is_established { FailedSide::Server } else { FailedSide::Unknown },
                why,
            });
        }
        let user = row.user_bytes_each.ok_or_else(|| unknown("no connection was established".into()))?;
        // Memory has no limit that a load could be: every connection stood and had its message back, or there is no
        // figure.
        let figure = user + row.kernel_bytes_each.unwrap_or(0.0);
        Ok(Trial { figure, cpu_s_per_100k: None, verdict: None, rate: None })
    }
}

/// A load of HTTP requests against a candidate.
#[derive(Clone, Copy)]
struct TuneLoad<'a> {
    bench: &'a Bench,
    settings: &'a Settings,
    window: Duration,
    /// Requests a second of an open loop.
    rate: Option<f64>,
}

impl TuneLoad<'_> {
    /// One round of a fresh server.
    fn trial(self, share: &mut CpuShare, candidate: &TuneCandidate) -> Result<Round, TrialFailure> {
        let TuneCandidate { setting, connections, .. } = candidate;
        size(candidate)?;
        if let (_, Some(why)) = affordable(*connections) {
            return Err(TrialFailure { side: FailedSide::Load, why });
        }
        let options = setting.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut server =
            ServerProcess::start(self.bench, Goal::Throughput.service(), setting.model, &options)
                .map_err(|e| TrialFailure { side: FailedSide::Server, why: e.to_string() })?;
        share.hold(server.process.id());
        let (connections, length) = (connections.to_string(), Length::Time(self.window));
        let mut load = vec!["-c", connections.as_str()];
        let rate = self.rate.map(|rate| rate.to_string());
        load.extend(rate.iter().flat_map(|rate| ["--rate", rate.as_str()]));
        load.extend((!self.settings.keep_alive).then_some("--no-keepalive"));
        let round = round::load(Generator::here(self.bench), &mut server, length, &load, share.value());
        let round = round.map_err(|e| {
            let side =
                if server.process.ended().is_some() { FailedSide::Server } else { FailedSide::Unknown };
            TrialFailure { side, why: e.to_string() }
        })?;
        checked(round)
    }
}

/// A round with failures has no figure.
fn checked(round: Round) -> Result<Round, TrialFailure> {
    if round.failed == 0 {
        return Ok(round);
    }
    let side = match round.verdict.limited_by {
        LimitedBy::Server => FailedSide::Server,
        LimitedBy::Generator => FailedSide::Load,
        LimitedBy::Neither => FailedSide::Unknown,
    };
    let why = format!("{} requests failed or were not answered in time", round.failed);
    Err(TrialFailure { side, why })
}

/// A round of HTTP requests as a trial with this figure.
fn trial(figure: f64, cpu_s_per_100k: Option<f64>, scheduled_per_s: Option<f64>, round: Round) -> Trial {
    let answered_per_s = round.requests_per_s;
    let rate = scheduled_per_s.map(|scheduled_per_s| AnsweredRate { scheduled_per_s, answered_per_s });
    Trial { figure, cpu_s_per_100k, verdict: Some(round.verdict), rate }
}

/// Whether this machine can give both sides so many connections.
fn size(TuneCandidate { setting, connections, .. }: &TuneCandidate) -> Result<sizing::Sizing, TrialFailure> {
    let source = sizing::LoadSource::Here(Model::best().model);
    let plan = sizing::size(sizing::MachineLimits::here(), setting.model, source, *connections);
    match &plan.note {
        Some(why) => Err(TrialFailure { side: side_of(&plan), why: why.clone() }),
        None => Ok(plan),
    }
}

/// Who lacks what there is too little of. Memory is both sides'.
fn side_of(plan: &sizing::Sizing) -> FailedSide {
    match plan.bound.as_ref().map(|bound| bound.scarce) {
        Some(sizing::Scarce::ServerDescriptors | sizing::Scarce::Threads) => FailedSide::Server,
        Some(sizing::Scarce::LoadDescriptors | sizing::Scarce::Ports) => FailedSide::Load,
        Some(sizing::Scarce::Memory) | None => FailedSide::Unknown,
    }
}

impl<P: FnMut(&str)> Laboratory for Workbench<'_, P> {
    fn measure(&mut self, stage: &str, candidate: &TuneCandidate) -> Result<Trial, TrialFailure> {
        (self.progress)(&format!("{stage}: {}", candidate.name));
        let of = |figure: f64, rate, round: Round| trial(figure, Some(round.cpu_s_per_100k), rate, round);
        match self.settings.goal {
            Goal::Throughput => {
                let round = self.http(candidate)?;
                Ok(of(self.share.rate_of_all(&round), self.rate, round))
            }
            Goal::P99 => self.http(candidate).map(|round| of(round.p99_us, self.rate, round)),
            Goal::Cpu => {
                self.http(candidate).map(|round| trial(round.cpu_s_per_100k, None, self.rate, round))
            }
            Goal::Connections => self.resting(candidate),
        }
    }

    fn is_over(&mut self, part: f64) -> bool {
        self.begun.elapsed() >= self.settings.budget.mul_f64(part)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_load::{OpenLoop, Report};

    use super::*;

    #[test]
    fn a_round_with_failures_has_no_figure_and_a_short_one_says_what_was_answered() {
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let of = |requests_per_s: f64, late_wake_ups, failed| {
            let requests = requests_per_s as u64;
            let open = OpenLoop {
                scheduled: 25_000,
                started: requests,
                not_started: 25_000 - requests,
                late_starts: 25_000 - requests,
                late_wake_ups,
                ..OpenLoop::default()
            };
            let report = Report {
                requests,
                requests_per_s,
                failed,
                elapsed_s: 1.0,
                open_loop: Some(open),
                ..Report::default()
            };
            let round = checked(Round::of(&bench, &report, 0.5))?;
            Ok(trial(1.0, None, Some(25_000.0), round))
        };
        let failure: TrialFailure = of(24_990.0, 0, 3).unwrap_err();
        assert!(failure.to_string().ends_with("3 requests failed or were not answered in time"), "{failure}");
        let limited_by = |late_wake_ups| {
            let trial = of(10_538.0, late_wake_ups, 0).unwrap();
            assert_eq!(trial.rate.unwrap().answered_per_s, 10_538.0);
            trial.verdict.unwrap().limited_by
        };
        assert_eq!(limited_by(0), LimitedBy::Server);
        assert_eq!(limited_by(14_000), LimitedBy::Generator, "not counted later");
    }
}
