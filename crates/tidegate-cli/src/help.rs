//! Additions to `--help`: groups of options, and examples for each command.

use clap::Command;

/// Options without a heading that a command shows first, for a command and those below it.
const FIRST: &[(&str, &[&str])] = &[
    ("serve", &["listen", "model"]),
    ("load", &["connections", "duration", "requests", "flows", "messages"]),
    ("bench", &["models", "quick", "out"]),
    ("tune", &["goal", "out", "models", "quick", "budget"]),
];

/// Heading and options of a group, the most important first, for a command and those below it. A trailing `*` matches
/// the rest of a name. All other options are under "Options", and the limits of a server under "Limits".
const GROUPS: &[(&str, &str, &[&str])] = &[
    ("serve", "TLS", &["tls-cert", "tls-key", "tls-*"]),
    (
        "serve",
        "Operation",
        &["config", "metrics", "stats", "handover", "drain-delay", "cpus", "name", "metrics-host"],
    ),
    ("load", "Schedule", &["rate", "warm-up", "ramp-rate", "ramp-connections"]),
    (
        "load http",
        "Requests",
        &[
            "no-keepalive",
            "reset-on-close",
            "method",
            "header",
            "body",
            "body-file",
            "path",
            "path-file",
            "check-*",
            "pipeline",
            "requests-each",
        ],
    ),
    (
        "load",
        "Results",
        &["json", "fail-if", "tolerate-failures", "hgrm", "csv", "ndjson", "phases", "quiet"],
    ),
    ("load", "TLS", &["tls-ca", "tls-*"]),
    (
        "load",
        "Generator",
        &["model", "threads", "cpus", "server-pid", "timeout", "source", "sources", "mptcp"],
    ),
    (
        "load",
        "Agents",
        &["nats", "agents", "agents-wait", "agent-timeout", "on-lost", "clock-bound", "nats-*"],
    ),
    (
        "bench",
        "Size of an experiment",
        &["connections", "rates", "requests", "seconds", "repeats", "keepalive", "path", "peers", "only"],
    ),
    ("bench", "Agents", &["nats", "agents", "server-address", "nats-*"]),
    ("", "Logging", &["log", "log-level"]),
];

/// Examples for a command: they work as they are, apart from file names and addresses.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "",
        "
tidegate bench                                     which I/O model to take on this machine, in a minute
tidegate serve http --listen 127.0.0.1:8080        a page of 4 KiB
tidegate load http http://127.0.0.1:8080/ -d 10s   requests per second, and which side was the limit",
    ),
    (
        "serve",
        "
tidegate serve http --listen 127.0.0.1:8080 --model epoll
tidegate serve files ./public --metrics 127.0.0.1:9090
tidegate serve --config /etc/tidegate/tidegate.toml",
    ),
    (
        "serve echo",
        "
tidegate serve echo --listen 127.0.0.1:7000 --model uring --threads 2
tidegate serve echo --listen unix:/run/tidegate/echo",
    ),
    (
        "serve http",
        "
tidegate serve http --listen 127.0.0.1:8080 --page index.html
tidegate serve http --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
tidegate serve http --model epoll --threads 1 --cpus 0 --stats",
    ),
    (
        "serve chat",
        "
tidegate serve chat --listen 127.0.0.1:8080
tidegate serve chat --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --allow-host chat.example.org",
    ),
    (
        "serve files",
        "
tidegate serve files ./public --listen 127.0.0.1:8080
tidegate serve files ./public --listen 0.0.0.0:8080 --max-connections 10000 --metrics 127.0.0.1:9090",
    ),
    (
        "serve proxy",
        "
tidegate serve proxy --listen 0.0.0.0:80 --to 10.0.0.1:8080,10.0.0.2:8080",
    ),
    (
        "serve udp",
        "
tidegate serve udp echo --listen 127.0.0.1:7000
tidegate serve udp sink --listen 127.0.0.1:7000 --path gso --socket-receive-buffer 4MiB
tidegate serve udp echo --model epoll --threads 2 --stats",
    ),
    (
        "load",
        "
tidegate load http http://127.0.0.1:8080/ -c 100 -d 10s
tidegate load http http://127.0.0.1:8080/ --rate 10k -d 1m --fail-if 'p99>5ms'
tidegate load echo 127.0.0.1:7000 -c 1k -n 1M",
    ),
    (
        "load echo",
        "
tidegate load echo 127.0.0.1:7000 -c 1k -d 10s --size 64
tidegate load echo 127.0.0.1:7000 -c 10k --messages 1",
    ),
    (
        "load http",
        "
tidegate load http http://127.0.0.1:8080/ -c 100 -n 60k
tidegate load http http://127.0.0.1:8080/ -c 100 --rate 10k -d 30s --warm-up 5s --json result.json
tidegate load http https://127.0.0.1:8443/ --tls-ca cert.pem --no-keepalive -d 10s",
    ),
    (
        "load udp",
        "
tidegate load udp 127.0.0.1:7000 --rate 10k -d 10s --size 64",
    ),
    (
        "load chat",
        "
tidegate load chat http://127.0.0.1:8080 -c 1k --rooms 10 --speakers 20 --rate 100 -d 10s",
    ),
    (
        "load ping",
        "
tidegate load ping 127.0.0.1:7000 -d 5s
tidegate load ping 127.0.0.1:7000 --fast-path --wait spin --cpus 1",
    ),
    (
        "load merge",
        "
tidegate load merge one.json two.json --json both.json",
    ),
    (
        "load attack",
        "
tidegate load attack http://127.0.0.1:8080/ -d 30s",
    ),
    (
        "agent",
        "
tidegate agent --nats nats://broker:4222 --allow 10.0.0.0/8",
    ),
    (
        "bench",
        "
tidegate bench
tidegate bench concurrency --models epoll,uring,tokio --out report
tidegate bench files --models epoll,uring --connections 2000
tidegate bench app -- ./my-server --model {model} --listen {listen}",
    ),
    (
        "ab",
        "
tidegate ab ./tidegate-old ./tidegate-new
tidegate ab './server --port {listen}' './server --port {listen} --threads 2' --least 1
tidegate ab ./tidegate-old ./tidegate-new --json ab.json && echo no worse",
    ),
    (
        "compare",
        "
tidegate compare report/runs/old.json report/runs/new.json",
    ),
    (
        "tune",
        "
tidegate tune --goal throughput --out tidegate.toml
tidegate serve --config tidegate.toml",
    ),
    (
        "fastpath",
        "
tidegate fastpath -- ./my-server",
    ),
    (
        "doctor",
        "
tidegate doctor
tidegate doctor --json",
    ),
    (
        "cert",
        "
tidegate cert ./tls
tidegate cert ./tls --name server.example --name 10.0.0.1 --days 7 --force
tidegate serve http --listen 127.0.0.1:8443 --tls-cert tls/cert.pem --tls-key tls/key.pem
tidegate load http https://127.0.0.1:8443/ --tls-ca tls/ca.pem",
    ),
    (
        "lesson",
        "
tidegate lesson                     the list
tidegate lesson 6                   a server with a fault, and the question about it
tidegate lesson 6 --answer NUMBER   check the answer",
    ),
    (
        "completions",
        "
tidegate completions bash > /usr/share/bash-completion/completions/tidegate",
    ),
    (
        "man",
        "
tidegate man ./man1",
    ),
];

/// The command line with groups and examples.
pub fn complete(cli: Command) -> Command {
    below(cli, "")
}

fn below(command: Command, path: &str) -> Command {
    let first = first(path);
    let mut defined = 0..;
    let command = command.mut_args(|arg| {
        let others = first.len() + defined.next().unwrap_or_default();
        let Some(name) = arg.get_long() else { return arg };
        match (group(path, name), first.iter().position(|option| *option == name)) {
            (Some((heading, place)), _) => arg.help_heading(heading).display_order(1_000 + place),
            (None, Some(place)) => arg.display_order(place),
            (None, None) => arg.display_order(others),
        }
    });
    let command = match EXAMPLES.iter().find(|(of, _)| *of == path) {
        Some((_, lines)) => command.after_help(format!("Examples:{}", lines.replace('\n', "\n  "))),
        None => command,
    };
    command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        below(inner, path.trim_start())
    })
}

/// Whether the command at `path` is the one at `of`, or below it.
fn is_under(path: &str, of: &str) -> bool {
    of.is_empty() || path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with(' '))
}

/// Options without a heading that the command at `path` shows first.
fn first(path: &str) -> &'static [&'static str] {
    FIRST.iter().find(|(of, _)| is_under(path, of)).map_or(&[], |(_, names)| names)
}

/// The place of an option among those of its heading, if it has one.
#[cfg(all(test, target_os = "linux"))]
pub fn place(path: &str, option: &str) -> Option<usize> {
    let first = || first(path).iter().position(|name| *name == option);
    group(path, option).map(|(_, place)| place).or_else(first)
}

/// The heading of an option of the command at `path`, and the option's place below it.
fn group(path: &str, option: &str) -> Option<(&'static str, usize)> {
    let mut groups = GROUPS.iter().filter(|(of, ..)| is_under(path, of));
    let place = |names: &[&str]| names.iter().position(|name| is(name, option));
    groups.find_map(|(_, heading, names)| Some((*heading, place(names)?)))
}

fn is(name: &str, option: &str) -> bool {
    name.strip_suffix('*').map_or(name == option, |start| option.starts_with(start))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn all(command: &Command, path: &str, visit: &mut impl FnMut(&Command, &str)) {
        visit(command, path);
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            all(inner, format!("{path} {}", inner.get_name()).trim_start(), visit);
        }
    }

    fn cli() -> Command {
        complete(crate::Cli::command())
    }

    #[test]
    fn every_command_has_examples_and_each_is_understood() {
        let mut built = cli();
        built.build();
        all(&built, "", &mut |command, path| {
            assert!(EXAMPLES.iter().any(|(of, _)| *of == path), "{path}: no example");
            assert!(command.get_after_help().is_some(), "{path}: not shown");
        });
        for (path, lines) in EXAMPLES {
            for line in lines.trim().lines() {
                let line = line.split("   ").next().unwrap_or_default();
                let words = shlex::split(line).expect("quotes in pairs");
                let parsed = cli().try_get_matches_from(
                    words.iter().take_while(|word| ![">", "&&"].contains(&word.as_str())),
                );
                // The service is in the file, which is not read here.
                let is_in_file =
                    |e: &clap::Error| line.contains(" --config ") && e.kind() == ErrorKind::MissingSubcommand;
                assert!(
                    parsed.as_ref().err().is_none_or(is_in_file),
                    "{path}: {line}: {}",
                    parsed.unwrap_err()
                );
            }
        }
    }

    #[test]
    fn the_name_of_a_value_says_its_unit() {
        // A number is a COUNT, a SIZE or a TIME, or says what else it is.
        let vague = ["N", "S", "BYTES", "SECONDS", "THREADS", "SIZES", "NUMBER"];
        all(&cli(), "", &mut |command, path| {
            let options = command.get_arguments().filter(|arg| arg.get_long().is_some());
            for arg in options.filter(|arg| arg.get_action().takes_values()) {
                let option = arg.get_long().unwrap_or_default();
                let names: Vec<String> = match arg.get_value_names() {
                    Some(names) => names.iter().map(ToString::to_string).collect(),
                    None => vec![option.to_uppercase()], // as clap shows it
                };
                for name in names {
                    assert!(!vague.contains(&name.as_str()), "{path} --{option} {name}");
                }
            }
        });
    }

    #[test]
    fn the_most_important_options_are_shown_first() {
        for (words, order) in [
            ("serve http", "--listen --model --page --metrics --stats --tls-cert --max-connections --log"),
            ("serve udp", "--listen --model --metrics --threads --log"),
            (
                "load http",
                "--connections --duration --requests --no-keepalive --rate --json --model --tls-ca --nats",
            ),
            ("load echo", "--connections --duration --requests --size --rate --json --nats"),
            ("bench", "--models --quick --out --connections --repeats --nats --log"),
            ("tune", "--goal --out --models --force --log"),
        ] {
            let line = format!("tidegate {words} --help");
            let shown = cli().try_get_matches_from(line.split(' ')).expect_err("the help").to_string();
            let at = |name: &&str| {
                let lines = shown.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
                let mut lines = lines.enumerate();
                lines.find(|(_, line)| line.split([' ', ',']).any(|word| word == *name)).map(|(at, _)| at)
            };
            let places: Vec<_> = order.split(' ').map(|name| (at(&name), name)).collect();
            assert!(places.iter().all(|(at, _)| at.is_some()) && places.is_sorted(), "{words}: {places:?}");
        }
    }

    #[test]
    fn every_option_of_a_group_exists() {
        let cli = cli();
        for (of, heading, names) in GROUPS {
            for name in *names {
                let mut found = false;
                all(&cli, "", &mut |command, path| {
                    found |= is_under(path, of)
                        && command.get_arguments().any(|arg| arg.get_long().is_some_and(|l| is(name, l)));
                });
                assert!(found, "{of}: {heading}: there is no --{name}");
            }
        }
    }
}
