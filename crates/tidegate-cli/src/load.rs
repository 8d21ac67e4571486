//! `tidegate load`.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::{Availability, Model, StartError, system};
use tidegate_load::{Amount, LoadError, Phase, Plan, Protocol, Report, Target};

use crate::{Failure, Outcome};

/// Options of `load`.
#[derive(clap::Args)]
pub struct Args {
    /// What to speak.
    protocol: Spoken,
    /// Where to: http://HOST:PORT/PATH, tcp://HOST:PORT or HOST:PORT.
    target: String,
    /// Connections at once, opened in blocks of 1,000.
    #[arg(short, long, value_name = "CONNS", default_value_t = 100)]
    connections: usize,
    /// Stop after this many requests.
    #[arg(short = 'n', long, value_name = "REQUESTS", conflicts_with = "duration")]
    requests: Option<u64>,
    /// Stop after this many seconds [default: 10].
    #[arg(short, long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Echo: bytes a second that each block of 1,000 connections sends [default: as fast as it goes].
    #[arg(short, long, value_name = "BYTES_PER_S")]
    rate: Option<u64>,
    /// HTTP: a new connection for each request.
    #[arg(long)]
    no_keepalive: bool,
    /// Echo: bytes of a message.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    size: usize,
    /// Echo: messages of each connection, which then rests; the run ends when all of them came back.
    #[arg(long, value_name = "MESSAGES", conflicts_with_all = ["requests", "duration"], value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Echo: messages in flight on each connection.
    #[arg(long, value_name = "MESSAGES", default_value_t = 1)]
    window: usize,
    /// The I/O model of the generator, or auto.
    #[arg(long, default_value = "auto")]
    model: String,
    /// I/O threads [default: one for each processor it may use].
    #[arg(long)]
    threads: Option<usize>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Source addresses in 127.0.0.0/8 to spread over [default: as many as the ports need].
    #[arg(long, value_name = "N")]
    sources: Option<usize>,
    /// Seconds to wait for connections to stand, and for the last answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    timeout: f64,
    /// Write the result as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Say on standard output when connections stand and when measuring begins and ends, and keep the connections open until
    /// a line comes in on standard input.
    #[arg(long)]
    phases: bool,
    /// Connections and requests that fail are a result and no error.
    #[arg(long)]
    tolerate_failures: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Spoken {
    /// Every byte must come back.
    Echo,
    /// GET requests.
    Http,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let plan = plan(&args)?;
    if !args.cpus.is_empty() {
        system::pin_to_cpus(&args.cpus)
            .with_context(|| {
                format!(
                    "--cpus {:?} can not be used; this process may use {:?}",
                    args.cpus,
                    system::allowed_cpus()
                )
            })
            .map_err(Failure::Usage)?;
    }
    let mut json = match &args.json {
        Some(path) if path.as_os_str() != "-" => Some(
            File::create(path)
                .with_context(|| format!("can not write {}", path.display()))
                .map_err(Failure::Usage)?,
        ),
        _ => None,
    };
    let to_stdout = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let mut teller =
        Teller { phases: args.phases, terminal: std::io::stderr().is_terminal() && !args.phases };
    let mut written = Ok(());
    let report = tidegate_load::run(&plan, |phase| {
        if let Phase::Done { report } = phase {
            // Before the connections are closed: that takes a while if they are many.
            teller.clear();
            written = give_out(report, json.as_mut(), to_stdout, args.phases);
        }
        teller.tell(phase);
    })
    .map_err(|e| match e {
        LoadError::Start(StartError::Engine { .. }) => Failure::Run(e.into()),
        e => Failure::Usage(e.into()),
    })?;
    written?;
    let good = report.is_clean() || (args.tolerate_failures && report.wrong == 0);
    if !good && let Some(why) = &report.first_error {
        eprintln!("error: {why}");
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Gives the result out where it was asked for.
fn give_out(report: &Report, json: Option<&mut File>, to_stdout: bool, phases: bool) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report).context("the result can not be written as JSON")?;
    if let Some(file) = json {
        writeln!(file, "{text}").context("the result can not be written")?;
    }
    if to_stdout {
        println!("{text}");
    } else if !phases {
        print!("{}", summary(report));
    }
    Ok(())
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let usage = |e: LoadError| Failure::Usage(e.into());
    let target = Target::parse(&args.target).map_err(usage)?;
    let seconds = |name: &str, s: f64| {
        Duration::try_from_secs_f64(s)
            .map_err(|_| Failure::Usage(anyhow!("{name} {s} is not a number of seconds")))
    };
    let all = args.messages.map(|each| each.saturating_mul(args.connections as u64));
    let amount = match (args.requests.or(all), args.duration) {
        (Some(n), _) => Amount::Requests(n),
        (None, Some(s)) => Amount::Time(seconds("-d", s)?),
        (None, None) => Amount::Time(Duration::from_secs(10)),
    };
    let protocol = match args.protocol {
        Spoken::Echo if args.no_keepalive => {
            return Err(Failure::Usage(anyhow!("--no-keepalive means nothing for echo: leave it out")));
        }
        Spoken::Echo => Protocol::Echo { size: args.size, window: args.window },
        Spoken::Http => {
            Protocol::Http { path: target.path, host: target.host, keep_alive: !args.no_keepalive }
        }
    };
    let plan = Plan {
        target: target.addr,
        protocol,
        connections: args.connections,
        amount,
        rate_bytes_per_s_per_block: args.rate,
        messages_each: args.messages,
        timeout: seconds("--timeout", args.timeout)?,
        sources: args.sources,
        model: model(&args.model)?,
        threads: args.threads,
    };
    if args.threads == Some(0) {
        return Err(Failure::Usage(anyhow!("--threads must be at least 1")));
    }
    plan.check().map_err(usage)?;
    Ok(plan)
}

fn model(name: &str) -> Result<Option<Model>, Failure> {
    if name == "auto" {
        return Ok(None);
    }
    let model: Model = name.parse().map_err(|e: String| Failure::Usage(anyhow!(e)))?;
    match model.availability() {
        Availability::Available(_) => Ok(Some(model)),
        Availability::Unavailable(why) => Err(Failure::Usage(anyhow!(
            "the model {model} is unavailable: {why}; tidegate doctor lists what works here"
        ))),
    }
}

/// Says how the run goes: to the lab in lines, to a person on the terminal.
struct Teller {
    phases: bool,
    terminal: bool,
}

impl Teller {
    fn tell(&mut self, phase: Phase<'_>) {
        match phase {
            Phase::Connected { attempted, connected } => {
                self.line(&format!("phase connected {attempted} {connected}"));
                self.show(&format!("{connected} of {attempted} connections stand"));
            }
            Phase::Measuring => self.line("phase measuring"),
            Phase::Progress { requests, part } => {
                self.show(&format!("{:3.0}%  {requests} requests", part * 100.0));
            }
            Phase::Done { .. } => {
                self.line("phase done");
                if self.phases {
                    // The end of the input counts as a line: whoever waited for us has gone.
                    let _ = std::io::stdin().read_line(&mut String::new());
                }
            }
        }
    }

    fn line(&self, text: &str) {
        if self.phases {
            println!("{text}");
            // Nobody reads any more: the run goes on, and its result is in the file.
            let _ = std::io::stdout().flush();
        }
    }

    fn show(&self, text: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{text}");
        }
    }

    fn clear(&self) {
        self.show("");
    }
}

fn summary(r: &Report) -> String {
    let us = |us: u64| match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    };
    let l = &r.latency_us;
    let mut text = format!(
        "{} {} over {} connections, model {}, {} thread(s)\n\
         connections  {} attempted, {} stood, {} verified, {:.3} s to open\n\
         requests     {} in {:.3} s: {:.0} requests/s; {} failed, {} timed out\n\
         bytes        {:.0} sent/s, {:.0} received/s\n\
         latency      mean {} stdev {} p50 {} p90 {} p99 {} p99.9 {} max {}\n\
         generator    {:.2} s user + {:.2} s system = {:.3} CPU s per 100,000 requests\n",
        r.protocol,
        r.target,
        r.connections,
        r.model,
        r.threads,
        r.attempted,
        r.connected,
        r.verified_connections,
        r.connect_s,
        r.requests,
        r.elapsed_s,
        r.requests_per_s,
        r.failed,
        r.timed_out,
        r.sent_bytes_per_s,
        r.received_bytes_per_s,
        us(l.mean as u64),
        us(l.stdev as u64),
        us(l.p50),
        us(l.p90),
        us(l.p99),
        us(l.p99_9),
        us(l.max),
        r.cpu_user_s,
        r.cpu_system_s,
        (r.cpu_user_s + r.cpu_system_s) * 1e5 / (r.requests.max(1) as f64),
    );
    if r.late_sends > 0 {
        text.push_str(&format!(
            "pacing       {} sends were late: the answers before them were\n",
            r.late_sends
        ));
    }
    text
}
