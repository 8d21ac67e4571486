//! Very many connections: the cost of each idle one, and their effect on a busy connection.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate::policy::whole_pages;
use tidegate_load::Report;

use super::generator::{Agents, Generator};
use super::sizing::{self, MachineLimits, Sizing};
use super::{LeftOut, LoadResultFile, ServerProcess, TIMEOUT, contestants, position};
use crate::kernel_memory;
use crate::process::{Process, shown};
use crate::run::Facts;
use crate::sample::ServerUsage;
use crate::{Bench, LabError};

/// Bytes of every message, the probe's included.
pub const MESSAGE_BYTES: usize = 64;

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Connections of the rows of each.
    pub sizes: Vec<usize>,
    /// Duration of each probe.
    pub probe: Duration,
    /// Agents that hold the connections; none is this machine.
    pub agents: Option<Agents>,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let probe = ("connections: probe".to_owned(), format!("{} s", self.probe.as_secs_f64()));
        let agents = self.agents.as_ref();
        let agents = agents.map(|agents| ("connections: agents".to_owned(), agents.count.to_string()));
        [probe].into_iter().chain(agents).collect()
    }
}

/// Round trips of a busy connection, one message at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// How many.
    pub round_trips: u64,
    /// Mean time in microseconds.
    pub mean_us: f64,
    /// Median in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
}

/// One model with one number of connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// Connections requested; the machine may have had room for fewer.
    pub asked: u64,
    /// Connections attempted.
    pub attempted: u64,
    /// Established connections.
    pub connected: u64,
    /// Connections whose message came back correctly.
    pub verified: u64,
    /// Connections still open at the end, according to the kernel; `None` if it cannot be asked.
    pub held: Option<u64>,
    /// Seconds they were held after the last message.
    pub held_s: f64,
    /// Connections made a second, their messages included.
    pub connects_per_s: f64,
    /// Threads of the server.
    pub threads: u64,
    /// User memory of the server before the first connection and with all of them, in bytes.
    pub user_bytes: [u64; 2],
    /// Kernel memory of the server's sockets before and with them, in bytes.
    pub kernel_bytes: Option<[u64; 2]>,
    /// Growth of user memory for each connection, in bytes.
    pub user_bytes_each: Option<f64>,
    /// Growth of kernel memory for each connection, in bytes.
    pub kernel_bytes_each: Option<f64>,
    /// Growth of the kernel's objects for each connection, in bytes: of both ends if the load is on this machine, and
    /// of all else there. `None` where it cannot be asked.
    #[serde(default)]
    pub object_bytes_each: Option<f64>,
    /// The probe before the first of the connections was opened.
    pub probe_alone: Probe,
    /// The probe while they rested; `None` if it was not served.
    pub probe_among: Option<Probe>,
    /// What the load saw.
    pub load: Report,
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// In the order of models, then sizes.
    pub rows: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

fn about_the_probe(remark: String) -> String {
    format!("{remark}; the probe beside them ran on the server's host")
}

/// Measures all rows; the models alternate at each size. `progress` is called before each row.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let generator = Generator::new(bench, settings.agents.as_ref());
    let mut table = ResultTable {
        left_out,
        notes: generator.remark().map(about_the_probe).into_iter().collect(),
        ..ResultTable::default()
    };
    for &asked in &settings.sizes {
        for &model in &models {
            let plan = sizing::size(MachineLimits::here(), model, generator.source(), asked);
            table.notes.extend(plan.note.clone());
            progress(&format!("{model}, {} connections", plan.connections));
            let measured = start_server(generator, model, &plan)
                .and_then(|server| measure(generator, model, server, &plan, settings.probe));
            match measured {
                Ok(row) => {
                    table.notes.extend(shortfall(&row));
                    table.rows.push(row);
                }
                Err(e) => {
                    let model = format!("{model} with {asked}");
                    table.failed.push(LeftOut { model, why: e.to_string() });
                }
            }
        }
    }
    table.rows.sort_by_key(|row| (position(&row.model), row.asked));
    table
}

/// One line about what a row did not reach.
pub(crate) fn shortfall(row: &Row) -> Option<String> {
    let Row { model, verified, .. } = row;
    let wanted = row.load.connections as u64;
    if *verified < wanted {
        let why = row.load.first_error.as_deref().unwrap_or("the others were not answered in time");
        return Some(format!("{model}: {verified} of {wanted} connections verified: {why}"));
    }
    if let Some(held) = row.held.filter(|&held| held < wanted) {
        return Some(format!(
            "{model}: {held} of {wanted} connections were still open after {:.1} s",
            row.held_s
        ));
    }
    row.probe_among
        .is_none()
        .then(|| format!("{model}: the probe was not served beside {wanted} connections"))
}

/// Measures one row, and ends its server.
pub(crate) fn measure(
    generator: Generator<'_>,
    model: Model,
    server: ServerProcess,
    plan: &Sizing,
    window: Duration,
) -> Result<Row, LabError> {
    let (bench, pid, port) = (generator.bench, server.process.id(), server.port);
    let before = ServerUsage::by(pid, port);
    let probe_alone = probe(bench, &server.url, window)?;
    let objects = kernel_memory::settled_objects();
    let connections = OpenConnections::open(generator, &server.url, plan)?;
    let object_bytes = kernel_memory::growth(objects, kernel_memory::objects());
    let after = ServerUsage::by(pid, port);
    let rested = Instant::now();
    let probe_among = probe(bench, &server.url, window).ok();
    let held = ServerUsage::by(pid, port).sockets.map(|sockets| sockets.established);
    let held_s = rested.elapsed().as_secs_f64();
    // The server first: the side that closes first keeps the address pairs for a while (TIME_WAIT, RFC 9293, section
    // 3.4.1), and the load's ports are wanted again for the next row.
    drop(server);
    let report = connections.disband()?;
    let each = |[before, after]: [u64; 2]| {
        (report.connected > 0).then(|| after.saturating_sub(before) as f64 / report.connected as f64)
    };
    let user_bytes = [before.user_bytes, after.user_bytes];
    let kernel_bytes = before.kernel_bytes.zip(after.kernel_bytes).map(|(before, after)| [before, after]);
    Ok(Row {
        model: model.to_string(),
        asked: plan.asked as u64,
        attempted: report.attempted,
        connected: report.connected,
        verified: report.verified_connections,
        // The probe's own connection may still be on its way out.
        held: held.map(|held| held.min(report.connected)),
        held_s,
        connects_per_s: report.connected as f64 / report.connect_s.max(1e-9),
        threads: after.threads,
        user_bytes,
        kernel_bytes,
        user_bytes_each: each(user_bytes),
        kernel_bytes_each: kernel_bytes.and_then(each),
        object_bytes_each: object_bytes
            .filter(|_| report.connected > 0)
            .map(|bytes| bytes / report.connected as f64),
        probe_alone,
        probe_among,
        load: report,
    })
}

fn start_server(generator: Generator<'_>, model: Model, plan: &Sizing) -> Result<ServerProcess, LabError> {
    let sized = plan.server_options();
    let bytes = whole_pages(4 * 1024).to_string(); // small, as the messages are
    let small = ["--buffers", "64", "--buffer-bytes", &bytes];
    let options: Vec<&str> = sized.iter().map(String::as_str).chain(small).collect();
    generator.server("echo", model, &options)
}

/// A probe that was not answered is tried once more for at least so long: a short one may get no processor at all on a
/// machine that does other things.
const SECOND_PROBE: Duration = Duration::from_secs(2);

/// One busy connection in a separate process.
fn probe(bench: &Bench, url: &str, window: Duration) -> Result<Probe, LabError> {
    probe_once(bench, url, window).or_else(|_| probe_once(bench, url, window.max(SECOND_PROBE)))
}

fn probe_once(bench: &Bench, url: &str, window: Duration) -> Result<Probe, LabError> {
    let file = LoadResultFile::new()?;
    let (seconds, size) = (window.as_secs_f64().to_string(), MESSAGE_BYTES.to_string());
    let args = ["load", "echo", url, "-c", "1", "-d", &seconds, "--size", &size, "--threads", "1"];
    let args = with_result(Generator::here(bench).options(&args), &file);
    let name = shown(&args);
    let good = Process::start(bench, &args)?.wait(TIMEOUT + window)?;
    let report = file.read(&name)?;
    if !good {
        let why = report.first_error.unwrap_or_else(|| "the probe was not answered".into());
        return Err(LabError::Process { what: name, why });
    }
    let l = &report.latency_us;
    Ok(Probe { round_trips: report.requests, mean_us: l.mean, p50_us: l.p50, p99_us: l.p99 })
}

fn with_result(mut args: Vec<String>, file: &LoadResultFile) -> Vec<String> {
    args.extend(["--json".into(), file.path()]);
    args
}

/// The resting connections, in separate processes.
struct OpenConnections<'a> {
    generator: Generator<'a>,
    process: Process,
    report: Report,
}

impl<'a> OpenConnections<'a> {
    /// Opens them and waits until each has had its message back, or will not.
    fn open(generator: Generator<'a>, url: &str, plan: &Sizing) -> Result<Self, LabError> {
        let file = LoadResultFile::new()?;
        let (n, size) = (plan.connections.to_string(), MESSAGE_BYTES.to_string());
        let args = ["load", "echo", url, "-c", &n, "--messages", "1", "--size", &size];
        let args = args.into_iter().chain(["--phases", "--tolerate-failures"]).map(str::to_owned);
        let (model, threads) = (Model::best().model, plan.load_threads.to_string());
        let own = generator.options(&["--model", model.name(), "--threads", &threads]);
        let args = with_result(args.chain(own).collect(), &file);
        let name = shown(&args);
        let mut process = Process::start(generator.bench, &args)?;
        // They take their time if they are very many.
        let timeout = TIMEOUT + Duration::from_millis(plan.connections as u64);
        process.wait_for_line("phase connected", timeout)?;
        process.wait_for_line("phase done", timeout)?;
        let report = file.read(&name)?; // written before it said so
        match report.wrong {
            0 => Ok(Self { generator, process, report }),
            _ => {
                let why = report.first_error.unwrap_or_else(|| "bytes came back wrong".into());
                Err(LabError::Process { what: name, why })
            }
        }
    }

    /// Ends them, and says what became of them.
    fn disband(self) -> Result<Report, LabError> {
        self.generator.end(self.process)?;
        Ok(self.report)
    }
}
