//! `serve --config FILE`: the file is turned into the arguments it stands for. So every option has one definition, and its units, errors
//! and defaults are the same in both places.

use std::ffi::OsString;
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

/// The arguments `given` on the command line, with those that a file of `serve --config` stands for. What is given on the command line
/// wins over the file.
pub fn expand(cli: &Command, given: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    // What is wrong on the command line is reported when all arguments are parsed.
    let Ok(seen) = cli.clone().ignore_errors(true).try_get_matches_from(&given) else { return Ok(given) };
    let Some((COMMAND, seen)) = seen.subcommand() else { return Ok(given) };
    let Some(path) = seen.get_one::<PathBuf>(OPTION) else { return Ok(given) };
    let mut cli = cli.clone();
    cli.build(); // options of all commands are known to each of them from here on
    arguments(&cli, path, seen, given).with_context(|| path.display().to_string()).map_err(Failure::Usage)
}

fn arguments(
    cli: &Command,
    path: &Path,
    seen: &ArgMatches,
    given: Vec<OsString>,
) -> anyhow::Result<Vec<OsString>> {
    let text = std::fs::read_to_string(path).context("can not be read; name a file that exists")?;
    let mut process: Table = text.parse().map_err(|e: toml::de::Error| anyhow!("{e}"))?;
    let mut server = only_server(process.remove("server"))?;
    let serve = cli.find_subcommand(COMMAND).context("has no command to go with")?;
    let (service, name) = service(serve, server.remove("service"))?;
    let seen_service = seen.subcommand();
    if let Some((other, _)) = seen_service.filter(|(other, _)| *other != name) {
        return Err(anyhow!("is for the service {name}; write `serve --config FILE {name}`, not {other}"));
    }
    let process = Part { command: serve, name: "the top of the file", given: Some(seen) }.words(&process)?;
    let given_here = seen_service.map(|(_, seen)| seen);
    let server = Part { command: service, name: "[[server]]", given: given_here }.words(&server)?;

    let stem = || given.iter().take(1).cloned().chain([COMMAND.into(), name.into()]).collect();
    let alone = parsed(cli, with(stem(), [&process.all, &server.all]));
    let service_word = seen_service.is_none().then(|| name.into());
    let together =
        with(given.iter().cloned().chain(service_word).collect(), [&process.wanted, &server.wanted]);
    match alone {
        // What the file leaves out may be given on the command line.
        Err(e)
            if e.kind() != ErrorKind::MissingRequiredArgument || parsed(cli, together.clone()).is_err() =>
        {
            Err(anyhow!("{}", first_lines(&e)))
        }
        _ => Ok(together),
    }
}

fn parsed(cli: &Command, arguments: Vec<OsString>) -> clap::error::Result<ArgMatches> {
    cli.clone().try_get_matches_from(arguments)
}

/// What clap says, without its advice about command lines.
fn first_lines(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

/// The one table of `[[server]]`.
fn only_server(servers: Option<Value>) -> anyhow::Result<Table> {
    let servers = match servers {
        None => return Err(anyhow!("has no [[server]]; begin one with that line and service = \"http\"")),
        Some(Value::Array(servers)) => servers,
        Some(other) => {
            return Err(anyhow!("server is {}; write [[server]] above its keys", kind(&other)));
        }
    };
    let count = servers.len();
    let mut servers = servers.into_iter();
    match (servers.next(), servers.next()) {
        (Some(Value::Table(server)), None) => Ok(server),
        (Some(_), None) => Err(anyhow!("server is an array of values; write [[server]] above its keys")),
        (None, _) => Err(anyhow!("has no [[server]]; begin one with that line and service = \"http\"")),
        (Some(_), Some(_)) => Err(anyhow!(
            "has {count} [[server]] parts, and one process serves one; put each in a file of its own and start `serve --config` for each"
        )),
    }
}

/// The service that the file names.
fn service(serve: &Command, named: Option<Value>) -> anyhow::Result<(&Command, &str)> {
    let all = || {
        let names = serve.get_subcommands().map(Command::get_name).filter(|name| *name != "help");
        names.collect::<Vec<_>>().join(", ")
    };
    match named {
        None => Err(anyhow!("[[server]] says no service; write service = \"http\", or another of {}", all())),
        Some(Value::String(name)) => {
            let found = serve.get_subcommands().find(|c| c.get_name() == name && name != "help");
            let found =
                found.with_context(|| format!("there is no service {name:?}; there are {}", all()))?;
            Ok((found, found.get_name()))
        }
        Some(other) => Err(anyhow!("service is {}; write one of {} in quotes", kind(&other), all())),
    }
}

/// A part of the file, and the command whose options its keys are.
struct Part<'a> {
    command: &'a Command,
    name: &'static str,
    /// What the command line says about the same options.
    given: Option<&'a ArgMatches>,
}

/// Arguments of a part of the file.
#[derive(Default)]
struct Words {
    /// Of every key.
    all: Placed,
    /// Of the keys that are not on the command line.
    wanted: Placed,
}

/// Options, and what stands behind all of them.
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

/// Options go before a `--` that is there already; what is no option goes behind one.
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

impl Part<'_> {
    fn words(&self, table: &Table) -> anyhow::Result<Words> {
        let mut words = Words::default();
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

    /// The option a key stands for. Those of every command belong to the top of the file, the others to the server.
    fn arg(&self, key: &str) -> anyhow::Result<&Arg> {
        let is_top = self.command.get_name() == COMMAND;
        let mut keys = self.command.get_arguments().filter(|arg| {
            let acts = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
            acts && arg.is_global_set() == is_top && arg.get_id() != OPTION
        });
        keys.find(|arg| name(arg) == key).with_context(|| {
            let similar = self.similar(key).map_or_else(
                || format!("the keys are the options of `{COMMAND} --help`, without the dashes before them"),
                |similar| format!("a similar one is `{similar}`"),
            );
            format!("{}: there is no key `{key}`; {similar}", self.name)
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

/// The words that a key and its value stand for.
fn placed(key: &str, arg: &Arg, value: &Value) -> anyhow::Result<Placed> {
    let mut placed = Placed::default();
    let items = match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(wanted)) => {
            placed.options.extend(wanted.then(|| format!("--{key}").into()));
            return Ok(placed);
        }
        (ArgAction::SetTrue, other) => return Err(anyhow!("{key} is {}; write true or false", kind(other))),
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
        ArgAction::Append => "a list of values in brackets, such as [0, 1]",
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn words(file: &str, given: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, file).unwrap();
        let config = path.display().to_string();
        let given = given.iter().map(|word| if *word == "FILE" { &config } else { *word });
        let given = ["tidegate"].into_iter().chain(given).map(Into::into).collect();
        let text = |word: &OsString| word.to_string_lossy().replace(&config, "FILE");
        match expand(&crate::Cli::command(), given) {
            Ok(words) => Ok(words.iter().skip(1).map(text).collect::<Vec<_>>().join(" ")),
            Err(Failure::Usage(e)) => Err(format!("{e:#}").replace(&config, "FILE")),
            Err(Failure::Run(e)) => panic!("{e:#}"),
        }
    }

    fn served(keys: &str) -> Result<String, String> {
        words(&format!("[[server]]\nservice = \"http\"\n{keys}"), &["serve", "--config", "FILE"])
    }

    #[track_caller]
    fn refused(outcome: Result<String, String>, says: &[&str]) {
        let text = outcome.unwrap_err();
        assert!(text.starts_with("FILE: "), "{text}");
        for part in says {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn a_file_stands_for_the_words_of_a_command_line() {
        let keys =
            "listen = \"127.0.0.1:0\"\nmax-connections = 10\nmptcp = true\nstats = false\ncpus = [0, 1]";
        let words = served(keys).unwrap();
        assert!(words.starts_with("serve --config FILE http "), "{words}");
        for word in ["--listen=127.0.0.1:0", "--max-connections=10", "--mptcp", "--cpus=0", "--cpus=1"] {
            assert!(words.split(' ').any(|w| w == word), "{word} in {words}");
        }
        assert!(!words.contains("--stats"), "{words}");
    }

    #[test]
    fn keys_of_the_process_stand_above_those_of_the_server() {
        let file = "log = \"json\"\n[[server]]\nservice = \"echo\"\n";
        let all = words(file, &["serve", "--config", "FILE"]).unwrap();
        assert!(all.contains("--log=json"), "{all}");
        assert!(!words(file, &["--log", "text", "serve", "--config", "FILE"]).unwrap().contains("json"));
        refused(served("log = \"json\""), &["[[server]]", "no key `log`"]);
    }

    #[test]
    fn the_command_line_wins() {
        let file = "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:1\"\nmodel = \"poll\"\n";
        for given in [
            &["serve", "--config", "FILE", "http", "--listen", "127.0.0.1:2"][..],
            &["serve", "http", "--listen", "127.0.0.1:2", "--config", "FILE"],
        ] {
            let words = words(file, given).unwrap();
            assert!(!words.contains("127.0.0.1:1") && words.contains("--model=poll"), "{words}");
        }
        refused(words(file, &["serve", "--config", "FILE", "echo"]), &["for the service http", "not echo"]);
    }

    #[test]
    fn what_the_file_lacks_may_come_from_the_command_line() {
        let file = "[[server]]\nservice = \"http\"\ntls-key = \"key.pem\"\n";
        let given = ["serve", "--config", "FILE", "http", "--tls-cert", "cert.pem"];
        assert!(words(file, &given).unwrap().ends_with("--tls-key=key.pem"));
        refused(words(file, &given[..4]), &["required", "--tls-cert"]);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_a_suggestion() {
        refused(served("max-conections = 5"), &["no key `max-conections`", "`max-connections`"]);
        refused(served("max_connections = 5"), &["`max-connections`"]);
        refused(served("zzz = 5"), &["no key `zzz`", "serve --help"]);
        for key in ["help", "version", "config", "service-name", "\"\"", "\"a b\"", "\"-\"", "\"listen=x\""] {
            refused(served(&format!("{key} = true")), &["there is no key"]);
        }
        let top = words("lag = 1\n[[server]]\nservice = \"http\"", &["serve", "--config", "FILE"]);
        refused(top, &["top of the file", "`lag`"]);
    }

    #[test]
    fn a_wrong_type_is_an_error_with_the_name_of_the_key() {
        for (keys, says) in [
            ("mptcp = \"yes\"", ["mptcp is text", "true or false"]),
            ("listen = true", ["listen is true or false", "one value"]),
            ("model = [\"epoll\"]", ["model is a list", "one value"]),
            ("cpus = [[0]]", ["cpus is a list", "[0, 1]"]),
            ("threads = \"four\"", ["--threads", "four"]),
            ("threads = -1", ["--threads", "-1"]),
            ("idle-timeout = 5", ["--idle-timeout", "write 50us, 500ms, 30s"]),
            ("when-full = \"panic\"", ["--when-full", "wait, refuse"]),
            ("page = 2026-01-01", ["page is a date", "one value"]),
            ("[server.page]\na = 1", ["page is a table", "one value"]),
        ] {
            refused(served(keys), &says);
        }
    }

    #[test]
    fn a_file_that_is_none_says_what_to_do() {
        refused(words("x = ", &["serve", "--config", "FILE"]), &["line 1"]);
        refused(words("", &["serve", "--config", "FILE"]), &["no [[server]]"]);
        refused(words("server = []", &["serve", "--config", "FILE"]), &["no [[server]]"]);
        refused(words("[server]\nservice = \"http\"", &["serve", "--config", "FILE"]), &["write [[server]]"]);
        refused(words("[[server]]\n[[server]]", &["serve", "--config", "FILE"]), &["2 [[server]]", "file"]);
        refused(words("[[server]]", &["serve", "--config", "FILE"]), &["service = \"http\"", "echo"]);
        refused(words("[[server]]\nservice = \"htp\"", &["serve", "--config", "FILE"]), &["\"htp\"", "http"]);
        refused(words("[[server]]\nservice = 1", &["serve", "--config", "FILE"]), &["a number", "http"]);
        let missing =
            expand(&crate::Cli::command(), ["x", "serve", "--config", "/none"].map(Into::into).into());
        let Err(Failure::Usage(e)) = missing else { panic!("no error") };
        assert!(format!("{e:#}").contains("name a file that exists"), "{e:#}");
    }

    #[test]
    fn words_that_are_no_options_stand_behind_all_options() {
        let values = |text: &str| Placed { values: vec![text.into()], ..Placed::default() };
        let options = Placed { options: vec!["--a".into()], ..Placed::default() };
        let all = |given: &[&str]| with(given.iter().map(Into::into).collect(), [&options, &values("-x")]);
        assert_eq!(all(&["serve"]), ["serve", "--a", "--", "-x"]);
        assert_eq!(all(&["serve", "--", "y"]), ["serve", "--a", "--", "y", "-x"]);
    }

    #[test]
    fn every_option_of_a_server_has_a_key() {
        let mut cli = crate::Cli::command();
        cli.build();
        let serve = cli.find_subcommand(COMMAND).unwrap();
        for service in serve.get_subcommands().filter(|c| c.get_name() != "help") {
            for arg in service.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str()))
            {
                let command = if arg.is_global_set() { serve } else { service };
                let part = Part { command, name: "", given: None };
                assert!(arg.get_id() == OPTION || part.arg(name(arg)).is_ok(), "{}", arg.get_id());
            }
        }
    }
}
