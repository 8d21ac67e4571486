//! Shell completions and manual pages, generated from the definition of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Command;
use clap_complete::Shell;

use crate::{Failure, Outcome, out};

/// Options of `completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Options of `man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Directory for the pages of all commands; without it, the page of tidegate itself is written to stdout.
    dir: Option<PathBuf>,
}

/// Writes the completion script to stdout.
pub fn completions(mut cli: Command, args: &CompletionsArgs) -> Outcome {
    let name = cli.get_name().to_owned();
    let mut script = Vec::new(); // what writes to stdout itself would panic at a pipe that has ended
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    print(&script)
}

/// Writes pages for `man`.
pub fn man(cli: Command, args: &ManArgs) -> Outcome {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(cli).render(&mut page).context("cannot write the page")?;
        return print(&page);
    };
    if !dir.is_dir() {
        return Err(Failure::Usage(anyhow!("{} is not a directory; give an existing one", dir.display())));
    }
    let written = clap_mangen::generate_to(cli, dir);
    written.with_context(|| format!("cannot write to {}; choose another directory", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &[u8]) -> Outcome {
    out::put(format_args!("{}", String::from_utf8_lossy(text)))?;
    Ok(ExitCode::SUCCESS)
}
