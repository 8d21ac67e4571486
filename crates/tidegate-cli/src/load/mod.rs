//! `tidegate load`.

mod args;
mod summary;

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use tidegate::{StartError, system};
use tidegate_load::{LoadError, Phase, Plan, Report};

pub use args::Args;
use args::{Common, Kind};
use summary::summary;

use crate::{Failure, Outcome};

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.kind {
        Kind::Echo(args) => generate(&args.plan()?, &args.common),
        Kind::Http(args) => generate(&args.plan()?, &args.common),
    }
}

fn generate(plan: &Plan, args: &Common) -> Outcome {
    let output = &args.output;
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
    let mut json = match &output.json {
        Some(path) if path.as_os_str() != "-" => Some(
            File::create(path)
                .with_context(|| format!("can not write {}", path.display()))
                .map_err(Failure::Usage)?,
        ),
        _ => None,
    };
    let to_stdout = output.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let mut teller =
        Teller { phases: output.phases, terminal: std::io::stderr().is_terminal() && !output.phases };
    let mut written = Ok(());
    let report = tidegate_load::run(plan, |phase| {
        if let Phase::Done { report } = phase {
            // Before the connections are closed: that takes a while if they are many.
            teller.clear();
            written = give_out(report, json.as_mut(), to_stdout, output.phases);
        }
        teller.tell(phase);
    })
    .map_err(|e| match e {
        LoadError::Start(StartError::Engine { .. }) => Failure::Run(e.into()),
        e => Failure::Usage(e.into()),
    })?;
    written?;
    let good = report.is_clean() || (output.tolerate_failures && report.wrong == 0);
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
            Phase::Second { .. } => {}
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
