//! One candidate measured once, with a fresh server and load.

use std::time::{Duration, Instant};

use tidegate::Model;

use tidegate_load::verdict::LimitedBy;

use super::search::{FailedSide, Laboratory, Trial, TrialFailure, TuneCandidate};
use super::{Goal, Setting, Settings};
use crate::experiment::generator::Generator;
use crate::experiment::round::{self, Round};
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
    /// What the server has of its processors in a closed loop, so that it is the limit.
    share: Option<CpuShare>,
    progress: P,
}

impl<'a, P: FnMut(&str)> Workbench<'a, P> {
    /// The budget begins now.
    pub(super) fn new(bench: &'a Bench, settings: &'a Settings, window: Duration, progress: P) -> Self {
        Self { bench, settings, window, begun: Instant::now(), rate: settings.rate, share: None, progress }
    }

    /// Finds the rate of an open loop, if it was not asked for, and the server's share in a closed one.
    pub(super) fn settle(&mut self, model: Model) -> Result<(), LabError> {
        let candidate = TuneCandidate::of(Setting::new(model), self.settings.connections);
        match self.settings.goal {
            Goal::P99 | Goal::Cpu if self.rate.is_none() => {
                (self.progress)(&format!("{model}: what can be answered at all"));
                let closed = self.trial(None, &candidate)?;
                self.rate = Some((closed.requests_per_s * PART_OF_CAPACITY).max(1.0).round());
            }
            Goal::Throughput => {
                (self.progress)(&format!("{model}: calibration"));
                let mut share = CpuShare::new(self.bench, None);
                share.calibrate(&[candidate], |share, candidate| self.trial(Some(share), candidate));
                self.share = Some(share);
            }
            Goal::P99 | Goal::Cpu | Goal::Connections => {}
        }
        Ok(())
    }

    fn trial(&self, share: Option<&CpuShare>, candidate: &TuneCandidate) -> Result<Round, LabError> {
        self.http(share, candidate).map_err(|failure| LabError::Process {
            what: candidate.setting.model.to_string(),
            why: failure.to_string(),
        })
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
        notes.extend(self.share.as_ref().filter(|share| share.value() < 1.0).map(|share| {
            let percent = share.value() * 100.0;
            let method = share.method();
            format!(
                "the server has {percent:.0}% of its processor ({method}); rates are those of a whole one"
            )
        }));
        notes
    }

    fn http(&self, share: Option<&CpuShare>, candidate: &TuneCandidate) -> Result<Round, TrialFailure> {
        let TuneCandidate { setting, connections, .. } = candidate;
        self.size(candidate)?;
        if let (_, Some(why)) = affordable(*connections) {
            return Err(TrialFailure { side: FailedSide::Load, why });
        }
        let options = setting.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut server =
            ServerProcess::start(self.bench, Goal::Throughput.service(), setting.model, &options)
                .map_err(|e| TrialFailure { side: FailedSide::Server, why: e.to_string() })?;
        let held = share.map_or(Ok(()), |share| share.hold(server.process.id(), setting.model));
        held.map_err(|e| TrialFailure { side: FailedSide::Unknown, why: e.to_string() })?;
        let share = share.map_or(1.0, CpuShare::value);
        let (connections, seconds) = (connections.to_string(), self.window.as_secs_f64().to_string());
        let mut load = vec!["-c", &connections, "-d", &seconds];
        let rate = self.rate.map(|rate| rate.to_string());
        load.extend(rate.iter().flat_map(|rate| ["--rate", rate.as_str()]));
        load.extend((!self.settings.keep_alive).then_some("--no-keepalive"));
        let round = round::load(Generator::here(self.bench), &server.url, server.process.id(), &load, share);
        let round = round.map_err(|e| match server.process.has_ended() {
            true => TrialFailure {
                side: FailedSide::Server,
                why: server.process.failure("ended".into()).to_string(),
            },
            false => TrialFailure { side: FailedSide::Unknown, why: e.to_string() },
        })?;
        if round.failed > 0 {
            let side = match round.verdict.limited_by {
                LimitedBy::Server => FailedSide::Server,
                LimitedBy::Generator => FailedSide::Load,
                LimitedBy::Neither => FailedSide::Unknown,
            };
            let why = format!("{} requests failed or were not answered in time", round.failed);
            return Err(TrialFailure { side, why });
        }
        Ok(round)
    }

    /// Whether this machine can give both sides so many connections.
    fn size(
        &self,
        TuneCandidate { setting, connections, .. }: &TuneCandidate,
    ) -> Result<sizing::Sizing, TrialFailure> {
        let source = sizing::LoadSource::Here(Model::best().model);
        let plan = sizing::size(sizing::MachineLimits::here(), setting.model, source, *connections);
        match &plan.note {
            Some(why) => Err(TrialFailure { side: side_of(&plan), why: why.clone() }),
            None => Ok(plan),
        }
    }

    fn resting(&self, candidate: &TuneCandidate) -> Result<Trial, TrialFailure> {
        let TuneCandidate { setting, .. } = candidate;
        let plan = self.size(candidate)?;
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
        Ok(Trial { figure, cpu_s_per_100k: None, verdict: None })
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
        let of = |figure: f64, round: Round| Trial {
            figure,
            cpu_s_per_100k: Some(round.cpu_s_per_100k),
            verdict: Some(round.verdict),
        };
        match self.settings.goal {
            Goal::Throughput => {
                let share = self.share.as_ref().map_or(1.0, CpuShare::value);
                let round = self.http(self.share.as_ref(), candidate)?;
                Ok(of(round.requests_per_s / share, round))
            }
            Goal::P99 => self.http(None, candidate).map(|round| of(round.p99_us, round)),
            Goal::Cpu => self.http(None, candidate).map(|round| Trial {
                figure: round.cpu_s_per_100k,
                cpu_s_per_100k: None,
                verdict: Some(round.verdict),
            }),
            Goal::Connections => self.resting(candidate),
        }
    }

    fn is_over(&mut self, part: f64) -> bool {
        self.begun.elapsed() >= self.settings.budget.mul_f64(part)
    }
}
