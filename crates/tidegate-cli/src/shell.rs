//! Shell completions and manual pages, generated from the definition of the command line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{CommandResult, Failure, out};

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
pub fn completions(mut cli: Command, args: &CompletionsArgs) -> CommandResult {
    let name = cli.get_name().to_owned();
    let mut script = Vec::new(); // what writes to stdout itself would panic at a pipe that has ended
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    print(&script)
}

/// Writes pages for `man`.
pub fn man(cli: Command, args: &ManArgs) -> CommandResult {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        write_page(&cli, &mut page).context("cannot write the page")?;
        return print(&page);
    };
    if !dir.is_dir() {
        return Err(Failure::Usage(anyhow!("{} is not a directory; give an existing one", dir.display())));
    }
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    let written = write_pages(&cli, dir);
    written.with_context(|| format!("cannot write to {}; choose another directory", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner, dir)?;
    }
    let mut page = Vec::new();
    write_page(command, &mut page)?;
    std::fs::write(dir.join(Man::new(command.clone()).get_filename()), page)
}

/// Writes one page. `Man::render` would put the examples under the title EXTRA, and fill their lines.
fn write_page(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    let title = page.len();
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    if let Some(help) = command.get_after_help() {
        write_examples(&help.to_string(), page)?;
    }
    man.render_version_section(page)?;
    // Each section begins with the definition of the apostrophe, which the title has.
    let sections = String::from_utf8_lossy(&page[title..]).replace(APOSTROPHE, "");
    page.truncate(title);
    page.extend_from_slice(sections.as_bytes());
    Ok(())
}

/// The lines that `roff` puts in front of each document.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Writes the section of examples, each on its line as it is typed.
fn write_examples(help: &str, page: &mut dyn Write) -> io::Result<()> {
    let lines = help.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "Examples:");
    writeln!(page, ".SH EXAMPLES\n.nf")?;
    for line in lines {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        writeln!(page, "{line}")?;
    }
    writeln!(page, ".fi")
}

fn print(text: &[u8]) -> CommandResult {
    out::put(format_args!("{}", String::from_utf8_lossy(text)))?;
    Ok(ExitCode::SUCCESS)
}
