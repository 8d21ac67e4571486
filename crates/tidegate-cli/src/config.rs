//! `serve --config FILE`: the file is translated into command-line arguments. So every option has one definition, with
//! the same units, errors and defaults in both places.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Table, Value};

use crate::Failure;

/// The command that takes a file, and its option for that.
const COMMAND: &str = "serve";
const OPTION: &str = "config";

/// The command line `given`, combined with the arguments of a file of `serve --config`: one set for each server of the
/// file. Options on the command line override the file.
pub fn expand(cli: &Command, given: Vec<OsString>) -> Result<Vec<Vec<OsString>>, Failure> {
    // Errors on the command line are reported when all arguments are parsed.
    let Ok(seen) = cli.clone().ignore_errors(true).try_get_matches_from(&given) else {
        return Ok(vec![given]);
    };
    let Some((COMMAND, seen)) = seen.subcommand() else { return Ok(vec![given]) };
    let Some(path) = seen.get_one::<PathBuf>(OPTION) else { return Ok(vec![given]) };
    let mut cli = cli.clone();
    cli.build(); // options of all commands are known to each of them from here on
    let beside = Beside { cli: &cli, seen, given: &given };
    lines(path, &beside).with_context(|| path.display().to_string()).map_err(Failure::Usage)
}

fn lines(path: &Path, beside: &Beside<'_>) -> anyhow::Result<Vec<Vec<OsString>>> {
    let text = std::fs::read(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => anyhow!("cannot be read: {e}; give a file that exists"),
        _ => anyhow!("cannot be read: {e}"),
    })?;
    let text = String::from_utf8(text).map_err(|e| {
        anyhow!("is not UTF-8 from byte {} on; save it as UTF-8", e.utf8_error().valid_up_to())
    })?;
    let mut process: Table = text.parse().map_err(|e: toml::de::Error| anyhow!("{e}"))?;
    let servers = servers(process.remove("server"))?;
    if let ([_, _, ..], Some((service, _))) = (servers.as_slice(), beside.seen.subcommand()) {
        return Err(anyhow!(
            "has {} [[server]] tables, so {service} and its options are ambiguous; \
             write them into the file",
            servers.len()
        ));
    }
    let count = servers.len();
    let mut lines = Vec::new();
    for (at, server) in servers.into_iter().enumerate() {
        let name = if count > 1 { format!("[[server]] {}", at + 1) } else { "[[server]]".into() };
        lines.push(beside.arguments(&name, &process, server)?);
    }
    Ok(lines)
}

/// What is on the command line beside the file.
struct Beside<'a> {
    cli: &'a Command,
    seen: &'a ArgMatches,
    given: &'a [OsString],
}

impl Beside<'_> {
    /// The arguments for one server.
    fn arguments(&self, table: &str, process: &Table, mut server: Table) -> anyhow::Result<Vec<OsString>> {
        let Self { cli, seen, given } = self;
        let serve = cli.find_subcommand(COMMAND).context("no matching command")?;
        let (service, name) = service(serve, table, server.remove("service"))?;
        let seen_service = seen.subcommand();
        if let Some((other, _)) = seen_service.filter(|(other, _)| *other != name) {
            return Err(anyhow!(
                "is for the service {name}; write `serve --config FILE {name}`, not {other}"
            ));
        }
        let process = ConfigSection { command: serve, name: "the top of the file", given: Some(seen) }
            .words(process)?;
        let given_here = seen_service.map(|(_, seen)| seen);
        let server = ConfigSection { command: service, name: table, given: given_here }.words(&server)?;

        let stem = || given.iter().take(1).cloned().chain([COMMAND.into(), name.into()]).collect();
        let alone = parsed(cli, with(stem(), [&process.all, &server.all]));
        let service_word = seen_service.is_none().then(|| name.into());
        let together =
            with(given.iter().cloned().chain(service_word).collect(), [&process.wanted, &server.wanted]);
        match alone {
            // Missing options may be given on the command line.
            Err(e)
                if e.kind() != ErrorKind::MissingRequiredArgument
                    || parsed(cli, together.clone()).is_err() =>
            {
                Err(anyhow!("{}", first_lines(&e)).context(table.to_owned()))
            }
            _ => Ok(together),
        }
    }
}

fn parsed(cli: &Command, arguments: Vec<OsString>) -> clap::error::Result<ArgMatches> {
    cli.clone().try_get_matches_from(arguments)
}

/// clap's message, without its advice about command lines.
fn first_lines(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

/// The tables of `[[server]]`, in their order.
fn servers(servers: Option<Value>) -> anyhow::Result<Vec<Table>> {
    let none = || anyhow!("has no [[server]] table; add one with that line and service = \"http\"");
    let servers = match servers {
        None => return Err(none()),
        Some(Value::Array(servers)) if servers.is_empty() => return Err(none()),
        Some(Value::Array(servers)) => servers,
        Some(other) => {
            return Err(anyhow!("server is {}; write [[server]] above its keys", kind(&other)));
        }
    };
    let table = |server| match server {
        Value::Table(table) => Ok(table),
        _ => Err(anyhow!("server is an array of values; write [[server]] above its keys")),
    };
    servers.into_iter().map(table).collect()
}

/// The service that the file names.
fn service<'a>(
    serve: &'a Command,
    table: &str,
    named: Option<Value>,
) -> anyhow::Result<(&'a Command, &'a str)> {
    let all = || {
        let names = serve.get_subcommands().map(Command::get_name).filter(|name| *name != "help");
        names.collect::<Vec<_>>().join(", ")
    };
    match named {
        None => {
            Err(anyhow!("{table} has no key `service`; write service = \"http\", or another of {}", all()))
        }
        Some(Value::String(name)) => {
            let found = serve.get_subcommands().find(|c| c.get_name() == name && name != "help");
            let found = found
                .with_context(|| format!("{table}: unknown service {name:?}; the services are {}", all()))?;
            Ok((found, found.get_name()))
        }
        Some(other) => Err(anyhow!("{table}: service is {}; write one of {} in quotes", kind(&other), all())),
    }
}

/// A part of the file, and the command whose options its keys are.
struct ConfigSection<'a> {
    command: &'a Command,
    name: &'a str,
    /// What the command line says about the same options.
    given: Option<&'a ArgMatches>,
}

/// Arguments of a part of the file.
#[derive(Default)]
struct SectionArgs {
    /// Of every key.
    all: Placed,
    /// Of the keys that are not on the command line.
    wanted: Placed,
}

/// Options, and the text after all of them.
#[derive(Clone, Default)]
struct Placed {
    options: Vec<OsString>,
    values: Vec<OsString>,
}

impl Placed {
    fn extend(&mut self, other: &Self) {
        self.options.extend_from_slice(&other.options);
        self.values.extend_from_slice(&other.values);
    }
}

/// Options go before an existing `--`; positional arguments after it.
fn with(mut arguments: Vec<OsString>, parts: [&Placed; 2]) -> Vec<OsString> {
    let end = arguments.iter().position(|word| word == "--");
    let options = parts.iter().flat_map(|part| part.options.iter().cloned());
    let at = end.unwrap_or(arguments.len());
    arguments.splice(at..at, options);
    let values: Vec<OsString> = parts.iter().flat_map(|part| part.values.iter().cloned()).collect();
    if end.is_none() && !values.is_empty() {
        arguments.push("--".into());
    }
    arguments.extend(values);
    arguments
}

impl ConfigSection<'_> {
    fn words(&self, table: &Table) -> anyhow::Result<SectionArgs> {
        let mut words = SectionArgs::default();
        for (key, value) in table {
            let arg = self.arg(key)?;
            let placed = placed(key, arg, value).with_context(|| self.name.to_owned())?;
            words.all.extend(&placed);
            if !self.is_given(arg) {
                words.wanted.extend(&placed);
            }
        }
        Ok(words)
    }

    fn is_given(&self, arg: &Arg) -> bool {
        let source = self.given.and_then(|given| given.value_source(arg.get_id().as_str()));
        source == Some(ValueSource::CommandLine)
    }

    /// The option of a key. Global options are at the top of the file, the others in the server table.
    fn arg(&self, key: &str) -> anyhow::Result<&Arg> {
        let is_top = self.command.get_name() == COMMAND;
        let mut keys = self.command.get_arguments().filter(|arg| {
            let acts = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
            acts && arg.is_global_set() == is_top && arg.get_id() != OPTION
        });
        keys.find(|arg| name(arg) == key).with_context(|| {
            let similar = self.similar(key).map_or_else(
                || format!("the keys are the options of `{COMMAND} --help`, without the dashes before them"),
                |similar| format!("did you mean `{similar}`?"),
            );
            format!("{}: unknown key `{key}`; {similar}", self.name)
        })
    }

    /// The key that clap would suggest.
    fn similar(&self, key: &str) -> Option<String> {
        let words = [self.command.get_name(), &format!("--{key}")].map(OsString::from);
        let e = self.command.clone().try_get_matches_from(words).err()?;
        match e.get(ContextKind::SuggestedArg)? {
            ContextValue::String(suggested) => Some(suggested.trim_start_matches('-').to_owned()),
            _ => None,
        }
        .filter(|suggested| suggested != OPTION && suggested != key)
    }
}

/// What an option is called in a file.
fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

/// The words that a key and its value mean.
fn placed(key: &str, arg: &Arg, value: &Value) -> anyhow::Result<Placed> {
    let mut placed = Placed::default();
    let items = match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(wanted)) => {
            placed.options.extend(wanted.then(|| format!("--{key}").into()));
            return Ok(placed);
        }
        (ArgAction::SetTrue, other) => return Err(anyhow!("{key} is {}; write true or false", kind(other))),
        (ArgAction::Append, Value::Array(items)) if items.is_empty() => {
            return Err(anyhow!("{key} is an empty list; write {}, or leave it out", wanted(arg)));
        }
        (ArgAction::Append, Value::Array(items)) => items.as_slice(),
        (_, one) => std::slice::from_ref(one),
    };
    for item in items {
        let text = match item {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            other => return Err(anyhow!("{key} is {}; write {}", kind(other), wanted(arg))),
        };
        match arg.get_long() {
            Some(long) => placed.options.push(format!("--{long}={text}").into()),
            None => placed.values.push(text.into()),
        }
    }
    Ok(placed)
}

fn wanted(arg: &Arg) -> &'static str {
    match arg.get_action() {
        ArgAction::Append => "one value, or a list of them in brackets, such as [0, 1]",
        _ => "one value, a number or text in quotes",
    }
}

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
