//! `tidegate doctor`: checks models, kernel features and limits of this machine, with remedies.

use std::process::ExitCode;

use comfy_table::{ColumnConstraint, Width};
use serde_json::{Value, json};
use tidegate::{Availability, Choice, Model, Policy, system};
use tidegate_os::{extension, process};

use crate::{CommandResult, fastpath, out};

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let limits = limits();
    let text = if args.json { format!("{:#}\n", as_json(&limits)) } else { as_tables(&limits) };
    out::put(format_args!("{text}"))?;
    Ok(ExitCode::SUCCESS)
}

/// A limit of this machine.
struct SystemLimit {
    /// Its name for programs: that of the system where it has one.
    key: &'static str,
    name: &'static str,
    /// `None`: not reported by the system.
    value: Option<Value>,
    /// The remedy, if it is small: a command or setting with its numbers.
    remedy: Option<String>,
}

impl SystemLimit {
    /// A number that is small below `enough`. `u64::MAX` is unlimited.
    fn number(
        (key, name): (&'static str, &'static str),
        value: Option<u64>,
        enough: u64,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = value.filter(|&value| value < enough).map(|_| remedy.into());
        let value = value.map(|value| if value == u64::MAX { "unlimited".into() } else { value.into() });
        Self { key, name, value, remedy }
    }
}

/// Descriptors that are enough: one for each connection of the default policy.
const DESCRIPTORS: u64 = 100_000;

/// The limits of servers and load generators on this machine.
fn limits() -> Vec<SystemLimit> {
    let (soft, hard) = system::descriptor_limit();
    let processors = system::allowed_cpus();
    let memory = process::locked_memory_limit().unwrap_or(u64::MAX);
    let mut limits = vec![
        SystemLimit {
            key: "system",
            name: "system",
            value: Some(process::system_name().into()),
            remedy: None,
        },
        SystemLimit::number(
            ("processors", "processors allowed"),
            Some(processors.len() as u64),
            2,
            "with one processor, server and load share it: compare CPU per request, not requests/s",
        ),
        SystemLimit::number(
            ("nofile_soft", "descriptors (soft)"),
            Some(soft),
            0,
            "raised to the hard limit at start",
        ),
        SystemLimit::number(
            ("nofile_hard", "descriptors (hard)"),
            Some(hard),
            DESCRIPTORS,
            format!(
                "one for each connection: ulimit -n {DESCRIPTORS} as root, LimitNOFILE={DESCRIPTORS} in the systemd unit, \
                 or docker run --ulimit nofile={DESCRIPTORS}"
            ),
        ),
        SystemLimit::number(
            ("memlock_bytes", "locked memory, bytes"),
            Some(memory),
            64 << 10,
            "io_uring may fail to create its rings: ulimit -l unlimited as root, or LimitMEMLOCK=infinity in the systemd \
             unit",
        ),
    ];
    limits.extend(of_memory());
    if cfg!(target_os = "linux") {
        limits.extend(of_linux());
    }
    limits
}

/// Memory, and the number of connections that fit into it in the worst case.
fn of_memory() -> [SystemLimit; 3] {
    let policy = Policy::default();
    let Choice { model, .. } = Model::best();
    let bound = model.memory_bound(&policy);
    let memory = memory_bytes();
    let fit = memory.map(|bytes| bound.connections_within(bytes));
    let quarter = memory.map(|bytes| bytes / 4);
    [
        SystemLimit {
            key: "memory_bytes",
            name: "memory, bytes",
            value: memory.map(Into::into),
            remedy: None,
        },
        SystemLimit::number(
            ("connections_in_memory", "connections that always fit into it"),
            fit,
            policy.max_connections as u64,
            format!(
                "with default limits on {model}, in the worst case: --max-connections {}, or a smaller --outbox-high, \
                 --input-bytes or --buffer-bytes",
                fit.unwrap_or_default()
            ),
        ),
        SystemLimit::number(
            (
                "idle_connections_in_kernel_memory",
                "idle connections that fit into a quarter of it in the kernel",
            ),
            quarter.map(|bytes| bound.connections_within_kernel(bytes)),
            policy.max_connections as u64,
            format!(
                "socket memory is never swapped out; limit it: --kernel-memory {}MiB",
                quarter.unwrap_or_default() >> 20
            ),
        ),
    ]
}

/// Memory of the machine, or the limit of this process's control group.
fn memory_bytes() -> Option<u64> {
    let (total, _) = process::memory_bytes()?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse::<u64>().ok()); // "max" is no limit
    Some(group.unwrap_or(u64::MAX).min(total))
}

/// The limits in files under `/proc`.
fn of_linux() -> Vec<SystemLimit> {
    let number = |path| sysctl(path).and_then(|text| text.trim().parse().ok());
    let ports = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let (low, high) = range(&ports).unzip();
    let connections = Policy::default().max_connections as u64;
    let page_bytes = process::page_bytes() as u64;
    let count = low.zip(high).map(|(low, high): (u64, u64)| high.saturating_sub(low) + 1);
    vec![
        SystemLimit::number(
            ("net.core.somaxconn", "accept backlog (somaxconn)"),
            number("net/core/somaxconn"),
            4096,
            "bursts of connections are dropped: sysctl -w net.core.somaxconn=4096",
        ),
        SystemLimit::number(
            ("net.ipv4.tcp_mem_bytes", "socket buffers (tcp_mem), bytes"),
            tcp_memory(),
            in_flight_bytes(connections, page_bytes),
            tcp_memory_remedy(connections, page_bytes),
        ),
        SystemLimit {
            value: low.zip(high).map(|(low, high)| format!("{low}-{high}").into()),
            ..SystemLimit::number(
                ("net.ipv4.ip_local_port_range", "local ports"),
                count,
                20_000,
                "bounds dialled connections for each source address: \
                 sysctl -w net.ipv4.ip_local_port_range='10000 65535'",
            )
        },
        SystemLimit::number(
            ("kernel.threads-max", "threads (threads-max)"),
            number("kernel/threads-max"),
            30_000,
            "blocking takes two for each connection: sysctl -w kernel.threads-max=200000",
        ),
        SystemLimit::number(
            ("kernel.pid_max", "process ids (pid_max)"),
            number("kernel/pid_max"),
            65_536,
            "blocking takes two for each connection: sysctl -w kernel.pid_max=4194304",
        ),
        SystemLimit::number(
            ("vm.max_map_count", "memory maps (max_map_count)"),
            number("vm/max_map_count"),
            100_000,
            "blocking takes four for each connection: sysctl -w vm.max_map_count=1000000",
        ),
    ]
}

/// The setting of `tcp_mem` that lets so many connections have data in flight: three thresholds, in pages (`tcp(7)`).
fn tcp_memory_remedy(connections: u64, page_bytes: u64) -> String {
    let most = in_flight_bytes(connections, page_bytes) / page_bytes;
    format!(
        "less than two pages for each of {connections} connections; beyond it sends and receives fail or wait: \
         sysctl -w net.ipv4.tcp_mem='{} {} {most}'",
        most / 2,
        most / 4 * 3
    )
}

/// Minimum memory of data in flight of connections being served: for each a page in each direction.
fn in_flight_bytes(connections: u64, page_bytes: u64) -> u64 {
    2 * page_bytes * connections
}

/// The limit of the buffers of all TCP sockets (`tcp(7)`).
fn tcp_memory() -> Option<u64> {
    let most: u64 = sysctl("net/ipv4/tcp_mem")?.split_whitespace().nth(2)?.parse().ok()?;
    Some(most.saturating_mul(process::page_bytes() as u64))
}

fn sysctl(path: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok()
}

/// Two numbers, as in `32768 60999`.
fn range(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Transports besides plain TCP, and whether they work here; tested, not derived from version numbers.
fn transports() -> Vec<(&'static str, Availability)> {
    let is = |outcome: Result<(), String>, how: &str| match outcome {
        Ok(()) => Availability::Available(how.into()),
        Err(why) => Availability::Unavailable(why),
    };
    let extensions = extension::found().into_iter().map(|extension| {
        let refused = extension.refused.map(|why| format!("{why}: {}", extension.without));
        (extension.name, is(refused.map_or(Ok(()), Err), "found at run time"))
    });
    let mut transports = vec![
        ("fast path", is(fastpath::shared_memory(), "shared memory between two tidegates: --fast-path")),
        ("sockmap", is(fastpath::sockmap(), "for unmodified programs: tidegate fastpath")),
        ("busy polling", cards()),
        ("datagrams", datagrams()),
    ];
    transports.extend(extensions);
    transports
}

/// The models on which `serve udp` runs here.
fn datagrams() -> Availability {
    let models = Model::ALL.iter().copied().filter(|model| model.serves_datagrams().is_available());
    let names: Vec<_> = models.map(Model::name).collect();
    Availability::Available(format!("on {}: serve udp --model", names.join(", ")))
}

/// Network cards, which `busy_poll` is about.
fn cards() -> Availability {
    if sysctl("net/core/busy_poll").is_none() {
        return Availability::Unavailable(
            "this kernel does not support busy polling (CONFIG_NET_RX_BUSY_POLL)".into(),
        );
    }
    let found = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten().filter_map(|interface| {
        // Virtual devices (loopback, bridges, veth) have no `device` entry, and their drivers no queue to poll.
        let driver = std::fs::read_link(interface.path().join("device/driver")).ok()?;
        Some(format!("{} ({})", interface.file_name().display(), driver.file_name()?.display()))
    });
    let mut found: Vec<_> = found.collect();
    found.sort();
    match found.as_slice() {
        [] => Availability::Unavailable("no network card: --busy-poll would have no effect".into()),
        cards => Availability::Available(format!("{}: --busy-poll 50us", cards.join(", "))),
    }
}

fn as_tables(limits: &[SystemLimit]) -> String {
    let mut models = out::table_of_texts(["model", "remark"]);
    let mut unavailable: Vec<(String, Vec<&str>)> = Vec::new();
    for &model in Model::ALL {
        match (model.availability(), unavailable.last_mut()) {
            (Availability::Available(how), _) => {
                models.add_row([model.name(), &how]);
            }
            (Availability::Unavailable(why), Some((same, names))) if *same == why => names.push(model.name()),
            (Availability::Unavailable(why), _) => unavailable.push((why, vec![model.name()])),
        }
    }
    let unavailable = unavailable
        .iter()
        .map(|(why, names)| out::prose(&format!("unavailable: {}: {why}", names.join(", "))) + "\n");
    let unavailable: String = unavailable.collect();
    let mut machine = out::table_of_texts(["limit", "value", "what to do"]);
    // Paths and options of remedies are not broken on 80 columns.
    if let Some(names) = machine.column_mut(0) {
        names.set_constraint(ColumnConstraint::UpperBoundary(Width::Percentage(28)));
    }
    for SystemLimit { name, value, remedy, .. } in limits {
        let value = match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "unknown".into(),
        };
        machine.add_row([*name, &value, remedy.as_deref().unwrap_or_default()]);
    }
    let mut others = out::table_of_texts(["transport", "status", "remark"]);
    for (name, here) in transports() {
        match here {
            Availability::Available(how) => others.add_row([name, "available", &how]),
            Availability::Unavailable(why) => others.add_row([name, "unavailable", &why]),
        };
    }
    let best = Model::best();
    let auto = out::prose(&format!("auto is {}: {}", best.model, best.why));
    let is_sysctl =
        |limit: &SystemLimit| limit.remedy.as_ref().is_some_and(|remedy| remedy.contains("sysctl -w "));
    let lasting = match limits.iter().any(is_sysctl) {
        true => {
            let text = "sysctl -w, as root, lasts until the next boot; to keep a setting, write it without `sysctl -w` \
                        into /etc/sysctl.d/tidegate.conf";
            format!("{}\n", out::prose(text))
        }
        false => String::new(),
    };
    format!("{models}\n{unavailable}\n{auto}\n\n{others}\n\n{machine}\n{lasting}")
}

fn as_json(limits: &[SystemLimit]) -> Value {
    let models = Model::ALL.iter().map(|model| match model.availability() {
        Availability::Available(how) => json!({"name": model.name(), "available": true, "remark": how}),
        Availability::Unavailable(why) => json!({"name": model.name(), "available": false, "remark": why}),
    });
    let limits = limits.iter().map(
        |limit| json!({"key": limit.key, "name": limit.name, "value": limit.value, "remedy": limit.remedy}),
    );
    let transports = transports().into_iter().map(|(name, here)| match here {
        Availability::Available(how) => json!({"name": name, "available": true, "remark": how}),
        Availability::Unavailable(why) => json!({"name": name, "available": false, "remark": why}),
    });
    let best = Model::best();
    json!({
        "auto": {"model": best.model.name(), "why": best.why},
        "models": models.collect::<Vec<_>>(),
        "transports": transports.collect::<Vec<_>>(),
        "limits": limits.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_given_only_where_the_limit_is_small() {
        let of = |value| SystemLimit::number(("x", "x"), Some(value), 100, "more");
        assert_eq!(of(99).remedy.as_deref(), Some("more"));
        assert_eq!(of(100).remedy, None);
        assert_eq!(SystemLimit::number(("x", "x"), None, 100, "more").remedy, None);
        assert_eq!(of(u64::MAX).value, Some("unlimited".into()));
    }

    #[test]
    fn a_remedy_has_its_numbers() {
        let remedy = tcp_memory_remedy(100_000, 4096);
        assert!(remedy.ends_with("sysctl -w net.ipv4.tcp_mem='100000 150000 200000'"), "{remedy}");
        // The setting is in pages, of which a connection has two whatever their size.
        assert_eq!(tcp_memory_remedy(100_000, 65_536), remedy);
        assert_eq!(in_flight_bytes(100_000, 65_536), 2 * 65_536 * 100_000);
    }

    #[test]
    fn every_limit_has_a_key_of_its_kind() {
        let limits = limits();
        for (at, limit) in limits.iter().enumerate() {
            let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
            assert!(limit.key.chars().all(is_key), "{}", limit.key);
            assert!(limits[..at].iter().all(|other| other.key != limit.key), "{} twice", limit.key);
        }
    }

    #[test]
    fn a_port_range_is_two_numbers() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(range("32768"), None);
        assert_eq!(range("a b"), None);
    }
}
