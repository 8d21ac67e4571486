//! Survival: what well-behaved clients get before, under and after a mixed attack, and the memory of the server beside
//! the bound that its policy sets.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::policy::{MinRate, OutboxMarks};
use tidegate::{Model, Policy};
use tidegate_load::AttackReport;

use super::{LeftOut, LoadResultFile, ServerProcess, TIMEOUT, contestants};
use crate::process::{Process, cpus, shown};
use crate::run::Facts;
use crate::sample::Sampler;
use crate::{Bench, LabError};

/// Who attacks: connections of each kind, and resets a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attackers {
    /// Connections that never speak.
    pub silent: usize,
    /// Connections that send one byte a second.
    pub trickle: usize,
    /// Connections that flood and never read.
    pub flood: usize,
    /// Connections that finish sending in mid-request.
    pub half_open: usize,
    /// Connections a second that are made and reset.
    pub resets_per_s: u32,
}

impl Default for Attackers {
    fn default() -> Self {
        Self { silent: 500, trickle: 200, flood: 200, half_open: 50, resets_per_s: 100 }
    }
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Well-behaved clients; each waits for its answer before it asks again.
    pub clients: usize,
    /// How long they are measured before the attack and after it.
    pub undisturbed: Duration,
    /// How long the attack lasts; the clients are measured for all of it from when every attacker has come.
    pub attack: Duration,
    /// Who attacks.
    pub attackers: Attackers,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let Attackers { silent, trickle, flood, half_open, resets_per_s } = self.attackers;
        let attackers = format!(
            "{silent} silent, {trickle} trickling, {flood} flooding, {half_open} half-open, {resets_per_s} resets/s"
        );
        let facts = [
            ("clients", self.clients.to_string()),
            ("attack", format!("{} s", self.attack.as_secs_f64())),
            ("attackers", attackers),
        ];
        facts.map(|(name, value)| (format!("survival: {name}"), value)).into()
    }
}

/// What well-behaved clients got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceQuality {
    /// Right answers a second.
    pub requests_per_s: f64,
    /// 99th percentile of the time to an answer, in microseconds.
    pub p99_us: u64,
    /// Requests that failed, were answered wrongly, or not in time.
    pub errors: u64,
    /// Most user memory of the server meanwhile, in bytes.
    pub user_bytes: u64,
    /// Most kernel memory of its sockets, in bytes.
    pub kernel_bytes: Option<u64>,
    /// Processor time of the server, as a percentage of one processor.
    pub cpu_percent: f64,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// Before the attack, under it and after it.
    pub before: ServiceQuality,
    /// Under the attack.
    pub under: ServiceQuality,
    /// After it.
    pub after: ServiceQuality,
    /// The most user memory that the policy allows, in bytes.
    pub bound_bytes: u64,
    /// What the server did to the attackers.
    pub attack: AttackReport,
}

/// Well-behaved clients must keep this part of their undisturbed rate.
pub const LEAST_RATIO: f64 = 0.5;

impl Row {
    /// Rate under the attack as a part of the undisturbed one.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.under.requests_per_s / self.before.requests_per_s.max(1e-9)
    }

    /// What does not hold of what has to; empty if the model has survived.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.ratio() < LEAST_RATIO {
            faults.push(format!("{:.2} of the undisturbed rate", self.ratio()));
        }
        for (when, service) in [("before", &self.before), ("under", &self.under), ("after", &self.after)] {
            if service.errors > 0 {
                faults.push(format!("{} errors {when} the attack", service.errors));
            }
            if service.user_bytes > self.bound_bytes {
                faults.push(format!("more memory than the bound {when} the attack"));
            }
        }
        if self.after.requests_per_s <= 0.0 {
            faults.push("no service after the attack".into());
        }
        faults
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Well-behaved clients.
    pub clients: usize,
    /// Who attacked.
    pub attackers: Attackers,
    /// Seconds of the attack.
    pub attack_s: f64,
    /// In the order of models.
    pub rows: Vec<Row>,
    /// Models that cannot be measured here.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
}

/// The policy of a server that expects to be attacked.
#[must_use]
pub fn hardened() -> Policy {
    Policy::default()
        .max_connections(2_000)
        .first_byte_timeout(Some(Duration::from_secs(5)))
        .send_timeout(Some(Duration::from_secs(5)))
        .min_rate(
            NonZeroU32::new(500).map(|bytes_per_s| MinRate::new(bytes_per_s).grace(Duration::from_secs(2))),
        )
        .buffer_bytes(tidegate::policy::whole_pages(4 * 1024))
        .input_bytes(16 * 1024)
        .outbox(OutboxMarks::default().low(16 * 1024).high(64 * 1024))
        .socket_send_buffer(Some(64 * 1024))
}

/// The same as options of `serve`.
fn options(policy: &Policy) -> Vec<String> {
    let time = |time: Option<Duration>| time.map_or("none".into(), |t| format!("{}ms", t.as_millis()));
    let mut options: Vec<String> = Vec::new();
    let mut add = |name: &str, value: String| options.extend([format!("--{name}"), value]);
    add("max-connections", policy.max_connections.to_string());
    add("first-byte-timeout", time(policy.first_byte_timeout));
    add("send-timeout", time(policy.send_timeout));
    if let Some(rate) = policy.min_rate {
        add("min-rate", rate.bytes_per_s.to_string());
        add("min-rate-grace", time(Some(rate.grace)));
    }
    add("buffer-bytes", policy.buffer_bytes.to_string());
    add("input-bytes", policy.input_bytes.to_string());
    add("outbox-low", policy.outbox.low.to_string());
    add("outbox-high", policy.outbox.high.to_string());
    if let Some(bytes) = policy.socket_send_buffer {
        add("socket-send-buffer", bytes.to_string());
    }
    options
}

/// Measures all rows. `progress` is notified of each before it is measured.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let mut table = ResultTable {
        clients: settings.clients,
        attackers: settings.attackers,
        attack_s: settings.attack.as_secs_f64(),
        left_out,
        ..ResultTable::default()
    };
    for model in models {
        progress(&format!("{model} under attack"));
        match measure(bench, model, settings) {
            Ok(row) => {
                let faults = row.faults();
                if !faults.is_empty() {
                    table.failed.push(LeftOut { model: row.model.clone(), why: faults.join("; ") });
                }
                table.rows.push(row);
            }
            Err(e) => table.failed.push(LeftOut { model: model.to_string(), why: e.to_string() }),
        }
    }
    table
}

/// Measures one model, with a fresh server.
fn measure(bench: &Bench, model: Model, settings: &Settings) -> Result<Row, LabError> {
    let mut policy = hardened();
    let options = options(&policy);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = ServerProcess::start(bench, "http", model, &options)?;
    // `serve` has one I/O thread for each processor it may use; this process may use more.
    if !bench.server_cpus.is_empty() && !matches!(model, Model::Blocking | Model::Pool) {
        policy.threads = std::num::NonZeroUsize::new(bench.server_cpus.len());
    }
    let before = clients(bench, &server, settings.clients, settings.undisturbed)?;
    let attack = Assault::begin(bench, &server, settings)?;
    let under = clients(bench, &server, settings.clients, settings.attack)?;
    let attack = attack.end()?;
    let after = clients(bench, &server, settings.clients, settings.undisturbed)?;
    let bound_bytes = model.memory_bound(&policy).total();
    Ok(Row { model: model.to_string(), before, under, after, bound_bytes, attack })
}

/// What well-behaved clients get for so long.
fn clients(
    bench: &Bench,
    server: &ServerProcess,
    clients: usize,
    window: Duration,
) -> Result<ServiceQuality, LabError> {
    let file = LoadResultFile::new()?;
    let mut args: Vec<String> = vec!["load".into(), "http".into(), server.url.clone()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("-c", clients.to_string());
    option("-d", window.as_secs_f64().to_string());
    option("--json", file.path());
    args.push("--tolerate-failures".into());
    args.extend(cpus(&bench.load_cpus));
    let name = shown(&args);
    let sampler = Sampler::start(server.process.id(), server.port)?;
    let mut load = Process::start(bench, &args)?;
    load.wait(window + TIMEOUT)?; // what went wrong is in the report
    let usage = sampler.stop();
    let report = file.read(&name)?;
    Ok(ServiceQuality {
        requests_per_s: report.requests_per_s,
        p99_us: report.latency_us.p99,
        errors: report.failed + report.wrong + report.timed_out + report.connect_failed,
        user_bytes: usage.user_memory_kib * 1024,
        kernel_bytes: usage.kernel_memory_kib.map(|kib| kib * 1024),
        cpu_percent: usage.cpu_percent,
    })
}

/// A running attack.
struct Assault {
    process: Process,
    file: LoadResultFile,
    name: String,
    limit: Duration,
}

impl Assault {
    /// Begins it; returns when every attacker has come.
    fn begin(bench: &Bench, server: &ServerProcess, settings: &Settings) -> Result<Self, LabError> {
        let file = LoadResultFile::new()?;
        let Attackers { silent, trickle, flood, half_open, resets_per_s } = settings.attackers;
        // It takes a second to come, and must not be over before the clients have been measured.
        let duration = settings.attack + Duration::from_secs(3);
        let mut args: Vec<String> = vec!["load".into(), "attack".into(), server.url.clone()];
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("-d", duration.as_secs_f64().to_string());
        option("--silent", silent.to_string());
        option("--trickle", trickle.to_string());
        option("--flood", flood.to_string());
        option("--half-open", half_open.to_string());
        option("--reset-rate", resets_per_s.to_string());
        option("--json", file.path());
        args.push("--phases".into());
        args.extend(cpus(&bench.load_cpus));
        let name = shown(&args);
        let mut process = Process::start(bench, &args)?;
        process.wait_for_line("phase attacking", TIMEOUT)?;
        Ok(Self { process, file, name, limit: duration + TIMEOUT })
    }

    fn end(mut self) -> Result<AttackReport, LabError> {
        let name = self.name;
        if !self.process.wait(self.limit)? {
            return Err(LabError::Process { what: name, why: "the attack failed".into() });
        }
        self.file.read_as(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let good = ServiceQuality { requests_per_s: 100.0, user_bytes: 10, ..ServiceQuality::default() };
        Row {
            model: "poll".into(),
            before: good.clone(),
            under: ServiceQuality { requests_per_s: 50.0, ..good.clone() },
            after: good,
            bound_bytes: 10,
            attack: AttackReport::default(),
        }
    }

    #[test]
    fn half_the_rate_within_the_bound_and_without_errors_is_survival() {
        assert_eq!(row().faults(), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named() {
        let fault = |change: fn(&mut Row)| {
            let mut row = row();
            change(&mut row);
            row.faults().join("; ")
        };
        assert_eq!(fault(|row| row.under.requests_per_s = 49.0), "0.49 of the undisturbed rate");
        assert_eq!(fault(|row| row.under.errors = 3), "3 errors under the attack");
        assert_eq!(fault(|row| row.under.user_bytes = 11), "more memory than the bound under the attack");
        assert_eq!(fault(|row| row.after.requests_per_s = 0.0), "no service after the attack");
    }

    #[test]
    fn the_hardened_policy_holds() {
        assert_eq!(hardened().check(), Ok(()));
    }
}
