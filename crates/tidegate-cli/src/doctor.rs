//! `tidegate doctor`: what works here, and what to do about the rest.

use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Value, json};
use tidegate::{Availability, Model, Policy, system};

use crate::{Outcome, fastpath, out};

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON in place of tables.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let limits = limits();
    let text = if args.json { format!("{:#}\n", as_json(&limits)) } else { as_tables(&limits) };
    out::put(format_args!("{text}"))?;
    Ok(ExitCode::SUCCESS)
}

/// A limit of this machine.
struct Limit {
    name: &'static str,
    /// `None`: the system does not say.
    value: Option<Value>,
    /// What to do about it, where it is small.
    remedy: Option<&'static str>,
}

impl Limit {
    /// A number that is small below `enough`. `u64::MAX` is no limit.
    fn number(name: &'static str, value: Option<u64>, enough: u64, remedy: &'static str) -> Self {
        let remedy = value.filter(|&value| value < enough).map(|_| remedy);
        let value = value.map(|value| if value == u64::MAX { "unlimited".into() } else { value.into() });
        Self { name, value, remedy }
    }
}

/// Everything that bounds a server or a load generator here.
fn limits() -> Vec<Limit> {
    let (soft, hard) = system::descriptor_limit();
    let processors = system::allowed_cpus();
    let memory = system::locked_memory_limit().unwrap_or(u64::MAX);
    let mut limits = vec![
        Limit { name: "system", value: Some(system::system_name().into()), remedy: None },
        Limit {
            name: "processors allowed",
            value: Some(processors.len().into()),
            remedy: (processors.len() < 2).then_some(
                "with one processor, server and load share it: compare CPU per request, not requests/s",
            ),
        },
        Limit::number("descriptors (soft)", Some(soft), 0, "it is raised to the hard one at start"),
        Limit::number(
            "descriptors (hard)",
            Some(hard),
            100_000,
            "one for each connection: LimitNOFILE= in the unit, nofile in /etc/security/limits.conf, or --ulimit nofile",
        ),
        Limit::number(
            "locked memory, bytes",
            Some(memory),
            64 << 10,
            "io_uring may fail to make its rings: raise it with ulimit -l",
        ),
    ];
    limits.extend(of_memory());
    if cfg!(target_os = "linux") {
        limits.extend(of_linux());
    }
    limits
}

/// Memory, and the connections that fit into it whatever their peers do.
fn of_memory() -> [Limit; 2] {
    let policy = Policy::default();
    let bound = Model::best().model.memory_bound(&policy);
    let fit = memory_bytes().map(|bytes| bound.connections_within(bytes));
    [
        Limit { name: "memory, bytes", value: memory_bytes().map(Into::into), remedy: None },
        Limit::number(
            "connections that always fit into it",
            fit,
            policy.max_connections as u64,
            "with default limits on the model of auto, in the worst case: bound them with --max-connections, or each with --outbox-high, --input-bytes and --buffer-bytes",
        ),
    ]
}

/// What the machine has, or what the control group of this process may use of it.
fn memory_bytes() -> Option<u64> {
    let (total, _) = system::memory_bytes()?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse::<u64>().ok()); // "max" is no limit
    Some(group.unwrap_or(u64::MAX).min(total))
}

/// What the files under `/proc` say.
fn of_linux() -> Vec<Limit> {
    let number = |path| sysctl(path).and_then(|text| text.trim().parse().ok());
    let ports = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let (low, high) = range(&ports).unzip();
    let count = low.zip(high).map(|(low, high): (u64, u64)| high.saturating_sub(low) + 1);
    vec![
        Limit::number(
            "accept backlog (somaxconn)",
            number("net/core/somaxconn"),
            4096,
            "bursts of connections are dropped: sysctl -w net.core.somaxconn=4096",
        ),
        Limit {
            value: low.zip(high).map(|(low, high)| format!("{low}-{high}").into()),
            ..Limit::number(
                "local ports",
                count,
                20_000,
                "bounds dialled connections for each source address: sysctl -w net.ipv4.ip_local_port_range='10000 65535'",
            )
        },
        Limit::number(
            "threads (threads-max)",
            number("kernel/threads-max"),
            30_000,
            "blocking takes two for each connection: sysctl -w kernel.threads-max=200000",
        ),
        Limit::number(
            "process ids (pid_max)",
            number("kernel/pid_max"),
            65_536,
            "blocking takes two for each connection: sysctl -w kernel.pid_max=4194304",
        ),
        Limit::number(
            "memory maps (max_map_count)",
            number("vm/max_map_count"),
            100_000,
            "blocking takes four for each connection: sysctl -w vm.max_map_count=1000000",
        ),
    ]
}

fn sysctl(path: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok()
}

/// Two numbers, as in `32768 60999`.
fn range(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What connections may go by besides plain TCP, and whether it works here: tried, not guessed.
fn ways() -> Vec<(&'static str, Availability)> {
    let is = |outcome: Result<(), String>, how: &str| match outcome {
        Ok(()) => Availability::Available(how.into()),
        Err(why) => Availability::Unavailable(why),
    };
    let extensions = system::extensions().into_iter().map(|extension| {
        let refused = extension.refused.map(|why| format!("{why}: {}", extension.without));
        (extension.name, is(refused.map_or(Ok(()), Err), "found at run time"))
    });
    let mut ways = vec![
        ("fast path", is(fastpath::shared_memory(), "shared memory between two tidegates: --fast-path")),
        ("sockmap", is(fastpath::sockmap(), "for unchanged programs: tidegate fastpath")),
        ("busy polling", cards()),
    ];
    ways.extend(extensions);
    ways
}

/// Network cards, which `busy_poll` is about.
fn cards() -> Availability {
    if sysctl("net/core/busy_poll").is_none() {
        return Availability::Unavailable(
            "this kernel polls no network cards (CONFIG_NET_RX_BUSY_POLL)".into(),
        );
    }
    let found = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten().filter_map(|interface| {
        // What the kernel makes up itself (loopback, bridges, veth) has no device, and its driver no queue to poll.
        let driver = std::fs::read_link(interface.path().join("device/driver")).ok()?;
        Some(format!("{} ({})", interface.file_name().display(), driver.file_name()?.display()))
    });
    let mut found: Vec<_> = found.collect();
    found.sort();
    match found.as_slice() {
        [] => Availability::Unavailable("there is no network card: --busy-poll would poll nothing".into()),
        cards => Availability::Available(format!("{}: --busy-poll 50us", cards.join(", "))),
    }
}

fn table(columns: [&str; 3]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns);
    table
}

fn as_tables(limits: &[Limit]) -> String {
    let mut models = table(["model", "here", "remark"]);
    for model in Model::ALL {
        match model.availability() {
            Availability::Available(how) => models.add_row([model.name(), "available", &how]),
            Availability::Unavailable(why) => models.add_row([model.name(), "unavailable", &why]),
        };
    }
    let mut machine = table(["limit", "value", "what to do"]);
    for Limit { name, value, remedy } in limits {
        let value = match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "unknown".into(),
        };
        machine.add_row([*name, &value, remedy.unwrap_or("")]);
    }
    let mut others = table(["way", "here", "remark"]);
    for (name, here) in ways() {
        match here {
            Availability::Available(how) => others.add_row([name, "available", &how]),
            Availability::Unavailable(why) => others.add_row([name, "unavailable", &why]),
        };
    }
    let best = Model::best();
    format!("{models}\n\nauto is {}: {}\n\n{others}\n\n{machine}\n", best.model, best.why)
}

fn as_json(limits: &[Limit]) -> Value {
    let models = Model::ALL.map(|model| match model.availability() {
        Availability::Available(how) => json!({"name": model.name(), "available": true, "remark": how}),
        Availability::Unavailable(why) => json!({"name": model.name(), "available": false, "remark": why}),
    });
    let limits =
        limits.iter().map(|limit| json!({"name": limit.name, "value": limit.value, "remedy": limit.remedy}));
    let ways = ways().into_iter().map(|(name, here)| match here {
        Availability::Available(how) => json!({"name": name, "available": true, "remark": how}),
        Availability::Unavailable(why) => json!({"name": name, "available": false, "remark": why}),
    });
    let best = Model::best();
    json!({
        "auto": {"model": best.model.name(), "why": best.why},
        "models": models,
        "ways": ways.collect::<Vec<_>>(),
        "limits": limits.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_given_only_where_the_limit_is_small() {
        assert_eq!(Limit::number("x", Some(99), 100, "more").remedy, Some("more"));
        assert_eq!(Limit::number("x", Some(100), 100, "more").remedy, None);
        assert_eq!(Limit::number("x", None, 100, "more").remedy, None);
        assert_eq!(Limit::number("x", Some(u64::MAX), 100, "more").value, Some("unlimited".into()));
    }

    #[test]
    fn a_port_range_is_two_numbers() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(range("32768"), None);
        assert_eq!(range("a b"), None);
    }
}
