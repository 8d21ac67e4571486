//! `tidegate load chat`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::policy::Wait;
use tidegate_load::{Amount, ChatPlan, ChatReport, Speech, Target, run_chat};

use super::args::{TlsArgs, model};
use super::cluster::NoAgents;
use super::live::LiveView;
use super::silence::SilenceWatch;
use super::{failure, on_terminal, pin};
use crate::limits::{count, count_in, models, rate, size, time, wait};
use crate::out::complain;
use crate::out::json::Json;
use crate::system::signals;
use crate::{CommandResult, Failure, usage};

/// Options of `load chat`.
#[derive(clap::Args)]
pub struct ChatArgs {
    /// The messenger: http://HOST:PORT, ws://HOST:PORT, HOST:PORT or unix:SOCKET; https://, wss:// and tls:// for TLS.
    /// With several nodes that share rooms, the members of a room are distributed over them in turn.
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    #[command(flatten)]
    agents: NoAgents,
    /// Use WebSocket instead of the line protocol; implied by ws:// and wss://.
    #[arg(long)]
    websocket: bool,
    /// Members, in total.
    #[arg(short, long, value_name = "COUNT", default_value = "100", value_parser = count::<usize>)]
    connections: usize,
    /// Rooms; members are distributed over them in turn.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count::<usize>)]
    rooms: usize,
    /// Members who send messages.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count::<usize>)]
    speakers: usize,
    /// Total messages per second, on an exact schedule; latency counts from when a message was due.
    #[arg(long, value_name = "COUNT_PER_S", default_value = "10", value_parser = rate)]
    rate: f64,
    /// Bytes of a message; the first of them contain its numbers and its time.
    #[arg(long, value_name = "SIZE", default_value_t = 100, value_parser = size)]
    size: usize,
    /// Stop after this many messages.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = count::<u64>)]
    requests: Option<u64>,
    /// Stop after this time: 10s, 1m, or plain seconds [default: 10s].
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Share of the members, as a fraction (0.01) or in percent (1%), that stop reading when all have joined.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    stop_reading: f64,
    /// The I/O model of the generator, or auto.
    #[arg(long, default_value = "auto", value_parser = models())]
    model: String,
    /// I/O threads of the generator.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count_in::<u16>(1..=1024))]
    threads: u16,
    /// How these threads wait: block, spin, or spin:TIME (spin that long, then block). A blocked thread is woken within
    /// the server's send, which costs the server CPU.
    #[arg(long, value_name = "HOW", default_value = "block", value_parser = wait)]
    wait: Wait,
    /// Run on these processors only, for example 1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The server's process id, if it runs here: the result then includes its CPU time.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Time limit for joining, and for the last messages.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// Write the result as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no live view on the terminal.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.parse().map_err(|_| "not a share; write 0.01 or 1%".to_owned())?;
    Ok(number / unit)
}

impl ChatArgs {
    fn plan(&self) -> Result<ChatPlan, Failure> {
        let duration = self.duration.unwrap_or(Duration::from_secs(10));
        let timeout = self.timeout;
        let targets = self.targets.iter().map(|target| Target::parse(target)).collect::<Result<Vec<_>, _>>();
        let targets = targets.map_err(usage)?;
        let means_websocket = |target: &String| ["ws://", "wss://"].iter().any(|it| target.starts_with(it));
        let websocket = self.websocket || self.targets.iter().any(means_websocket);
        let protocols: &[&str] = if websocket { &["http/1.1"] } else { &[] };
        let Some(first) = targets.first() else {
            return Err(Failure::Usage(anyhow!("give the address of a messenger")));
        };
        Ok(ChatPlan {
            tls: self.tls.plan(first, protocols, timeout)?,
            targets,
            speech: if websocket { Speech::WebSocket } else { Speech::Lines },
            members: self.connections,
            rooms: self.rooms,
            speakers: self.speakers,
            rate: self.rate,
            size: self.size,
            amount: self.requests.map_or(Amount::Time(duration), Amount::Requests),
            stop_reading: self.stop_reading,
            model: model(&self.model)?,
            threads: self.threads.into(),
            wait: self.wait,
            timeout,
            server_pid: self.server_pid,
        })
    }
}

/// Runs the command.
pub fn run(args: &ChatArgs) -> CommandResult {
    pin(&args.cpus)?;
    let plan = args.plan()?;
    let interrupted = signals::flag_of_the_first().context("signals cannot be watched")?;
    let mut json = Json::open(args.json.as_deref())?;
    let colours = console::colors_enabled_stderr();
    let view = LiveView::new(format!("chat {}", args.targets.join(" ")), plan.members, plan.amount, colours);
    let mut painter = if args.quiet { None } else { on_terminal(view.counting("deliveries/s")) };
    let mut silence = SilenceWatch::of_members(args.targets.join(" "));
    let outcome = run_chat(&interrupted, &plan, |phase| {
        if let Some(line) = silence.hear(&phase) {
            if let Some(painter) = &mut painter {
                painter.clear(); // it is painted again below the line
            }
            complain!("{line}");
        }
        if let Some(painter) = &mut painter {
            painter.hear(&phase);
        }
    });
    if let Some(painter) = &mut painter {
        painter.clear();
    }
    let report = outcome.map_err(failure)?;
    json.put_or_print(&report, &summary(&report))?;
    if report.interrupted {
        complain!("error: interrupted; the result is of the {:.1} s until then", report.elapsed_s);
    }
    if let Some(why) = &report.first_error {
        complain!("error: {why}");
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn summary(r: &ChatReport) -> String {
    let speech = match r.speech {
        Speech::Lines => "lines",
        Speech::WebSocket => "WebSocket",
    };
    let mut text = format!(
        "chat {} over {speech}, model {}, {} threads\n\
         members      {} of {} in {} rooms after {:.2} s; {} lost their connection\n\
         messages     {} of {} bytes by {} speakers, {:.1} a second; {} refused\n\
         deliveries   {} in {:.2} s: {:.0}/s; {} missing, {} wrong\n",
        r.target,
        r.model,
        r.threads,
        r.joined,
        r.members,
        r.rooms,
        r.joining_s,
        r.lost_members,
        r.said,
        r.message_bytes,
        r.speakers,
        r.rate_per_s,
        r.refused,
        r.delivered,
        r.elapsed_s,
        r.delivered_per_s,
        r.undelivered,
        r.wrong,
    );
    for (what, l) in
        [("latency ms", &r.latency_us), ("to all ms", &r.to_all_us), ("said late ms", &r.delay_us)]
    {
        let ms = |us: u64| us as f64 / 1e3;
        text.push_str(&format!(
            "{what:<12} p50 {:.3} p99 {:.3} p99.9 {:.3} max {:.3}\n",
            ms(l.p50),
            ms(l.p99),
            ms(l.p99_9),
            ms(l.max)
        ));
    }
    if let Some(tls) = &r.tls {
        text.push_str(&format!("TLS          {} handshakes, {} resumed\n", tls.handshakes, tls.resumed));
    }
    if r.stopped_reading > 0 {
        text.push_str(&format!(
            "not reading  {} members, {} of them cut off\n",
            r.stopped_reading, r.cut_off
        ));
    }
    for (who, cpu) in [("this side", r.generator_cpu_s), ("server", r.server_cpu_s)] {
        if let Some(cpu) = cpu.filter(|_| r.delivered > 0) {
            let each = cpu * 1e6 / r.delivered as f64;
            text.push_str(&format!("{who:<12} {cpu:.2} s of CPU time, {each:.2} µs a delivery\n"));
        }
    }
    text
}
