//! Buffers: what their number and size, locking them, and `SO_SNDBUF` and `SO_RCVBUF` cost and save, in processor time
//! and in memory. An echo server with one of them changed at a time, between rounds with all at their defaults.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::policy::whole_pages;
use tidegate::{Model, Policy};
use tidegate_os::process::locked_memory_limit;

use super::generator::Generator;
use super::round::{Figures, Round};
use super::share::CpuShare;
use super::window::{WindowLength, Windowed};
use super::{LeftOut, ServerProcess, affordable, contestants, position};
use crate::kernel_memory;
use crate::run::Facts;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// Bytes of a message: one receive with the default buffers, four with the smallest.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// What is changed; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferSettings {
    /// Receive buffers of each thread, where it has a pool of them.
    pub number: Option<usize>,
    /// Bytes of each.
    pub bytes: Option<usize>,
    /// Whether they are locked (`mlock(2)`).
    pub locked: bool,
    /// `SO_SNDBUF`.
    pub send: Option<usize>,
    /// `SO_RCVBUF`.
    pub receive: Option<usize>,
}

impl fmt::Display for BufferSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        // As short as labels of a chart have to be.
        parts.extend(match (self.number, self.bytes) {
            (Some(number), Some(bytes)) => Some(format!("{number} × {}", size(bytes))),
            (Some(number), None) => Some(format!("{number} buffers")),
            (None, Some(bytes)) => Some(format!("{} each", size(bytes))),
            (None, None) => None,
        });
        parts.extend(self.locked.then(|| "locked".to_owned()));
        match (self.send, self.receive) {
            (Some(send), Some(receive)) if send == receive => parts.push(format!("both {}", size(send))),
            (send, receive) => {
                parts.extend(send.map(|n| format!("SO_SNDBUF {}", size(n))));
                parts.extend(receive.map(|n| format!("SO_RCVBUF {}", size(n))));
            }
        }
        f.write_str(&if parts.is_empty() { "defaults".to_owned() } else { parts.join(", ") })
    }
}

/// In KiB or MiB where that is exact.
fn size(bytes: usize) -> String {
    const MIB: usize = 1 << 20;
    match bytes {
        n if n >= MIB && n.is_multiple_of(MIB) => format!("{} MiB", n / MIB),
        n if n >= 1024 && n.is_multiple_of(1024) => format!("{} KiB", n / 1024),
        n => n.to_string(),
    }
}

impl BufferSettings {
    fn options(&self) -> Vec<String> {
        let values = [
            ("--buffers", self.number),
            ("--buffer-bytes", self.bytes),
            ("--socket-send-buffer", self.send),
            ("--socket-receive-buffer", self.receive),
        ];
        let values =
            values.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?.to_string()]));
        let locked: &[&str] = if self.locked { &["--lock-memory"] } else { &[] };
        values.flatten().chain(locked.iter().map(ToString::to_string)).collect()
    }

    /// Bytes that `threads` of such a server lock.
    fn locked_bytes(&self, model: Model, threads: usize) -> u64 {
        let policy = Policy::default();
        let number =
            if has_pool(model) { self.number.unwrap_or(policy.buffers).next_power_of_two() } else { 1 };
        (threads * number * self.bytes.unwrap_or(policy.buffer_bytes)) as u64
    }
}

/// Whether its threads have pools of buffers, and not one each.
fn has_pool(model: Model) -> bool {
    matches!(model, Model::Uring | Model::Overlapped | Model::Iocp | Model::Rio)
}

/// Whether its buffers can be locked.
fn can_lock(model: Model) -> bool {
    !matches!(model, Model::Blocking | Model::Pool | Model::Tokio)
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Connections, each with one message on its way.
    pub connections: usize,
    /// Fewer sizes of each kind.
    pub quick: bool,
    /// Length of each round.
    pub window: Duration,
    /// Rounds of each row.
    pub repeats: usize,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let window = format!("{} s", self.window.as_secs_f64());
        let facts = [("length of a round", window), ("connections", self.connections.to_string())];
        facts.into_iter().map(|(name, value)| (format!("memory: {name}"), value)).collect()
    }

    /// Rounds in all, the calibration included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let (models, _) = contestants(&self.models);
        models.iter().map(|&model| self.rows(model).len() * self.repeats + 1).sum()
    }

    /// What is tried on this model.
    fn rows(&self, model: Model) -> Vec<BufferSettings> {
        const KIB: usize = 1024;
        let default = BufferSettings::default();
        let mut rows = vec![default];
        if can_lock(model) {
            rows.push(BufferSettings { locked: true, ..default });
        }
        let sizes: &[usize] = if self.quick { &[4 * KIB, 64 * KIB] } else { &[4 * KIB, 32 * KIB, 64 * KIB] };
        // So few of them that the largest may still be locked under the usual 8 MiB.
        let number = has_pool(model).then_some(64);
        let mut sizes: Vec<_> = sizes.iter().map(|&bytes| whole_pages(bytes)).collect();
        sizes.dedup(); // with large pages some are the same
        for bytes in sizes {
            let sized = BufferSettings { number, bytes: Some(bytes), ..default };
            rows.push(sized);
            if can_lock(model) && !self.quick {
                rows.push(BufferSettings { locked: true, ..sized });
            }
        }
        if has_pool(model) {
            let numbers: &[usize] = if self.quick { &[16, 1024] } else { &[16, 64, 1024] };
            rows.extend(numbers.iter().map(|&n| BufferSettings { number: Some(n), ..default }));
        }
        let sizes: &[usize] = if self.quick { &[0, 128 * KIB] } else { &[0, 16 * KIB, 128 * KIB, KIB * KIB] };
        rows.extend(sizes.iter().map(|&n| BufferSettings { send: Some(n), ..default }));
        rows.extend(sizes.iter().map(|&n| BufferSettings { receive: Some(n), ..default }));
        rows.extend(sizes.iter().map(|&n| BufferSettings { send: Some(n), receive: Some(n), ..default }));
        rows
    }
}

/// One model with some buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// What was changed.
    pub buffers: BufferSettings,
    /// Most resident memory of the server that is not backed by files, in KiB.
    pub user_kib: Spread,
    /// Most memory that the kernel charged to the server's sockets, and their structures, in KiB; `None` where it
    /// cannot be asked.
    pub socket_kib: Option<Spread>,
    /// Growth of the kernel's objects from before the first connection to the middle of the window, in KiB: both ends,
    /// and all else on the machine. `None` where it cannot be asked.
    pub object_kib: Option<Spread>,
    /// The least that the server had of its processors in a round, 0 to 1.
    #[serde(default = "super::whole")]
    pub share: f64,
    /// The results of its rounds.
    pub figures: Figures,
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Connections of each load.
    pub connections: usize,
    /// Length of each round in seconds.
    pub window_s: f64,
    /// Rounds of each row.
    pub repeats: usize,
    /// How servers were limited to their share.
    #[serde(default)]
    pub throttle: String,
    /// How the kernel's objects were counted.
    pub objects: String,
    /// In the order of models.
    pub rows: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// One round of one row.
struct Take {
    share: f64,
    user_kib: u64,
    socket_kib: Option<u64>,
    object_kib: Option<f64>,
    round: Round,
}

impl AsRef<Round> for Take {
    fn as_ref(&self) -> &Round {
        &self.round
    }
}

/// Measures all rows; within each repeat they take turns.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let (connections, note) = affordable(settings.connections);
    let mut share = CpuShare::new(bench, None);
    let mut table = ResultTable {
        connections,
        window_s: settings.window.as_secs_f64(),
        repeats: settings.repeats,
        objects: kernel_memory::objects_method().into(),
        left_out,
        notes: note.into_iter().chain(cut_sizes()).collect(),
        ..ResultTable::default()
    };
    let all = models.iter().flat_map(|&model| settings.rows(model).into_iter().map(move |row| (model, row)));
    let threads = bench.server_cpus.len().max(1);
    let (subjects, unlockable): (Vec<_>, Vec<_>) =
        all.partition(|(model, buffers)| is_lockable(*model, buffers, threads));
    table.notes.extend(beyond_the_limit(&unlockable));
    // Of one server with defaults for each model: the others have time for what makes them cheaper.
    let defaults: Vec<_> =
        subjects.iter().copied().filter(|(_, buffers)| *buffers == BufferSettings::default()).collect();
    share.calibrate(&defaults, |share, (model, buffers)| {
        progress(&format!("{model}, {buffers}: calibration"));
        measure(bench, *model, buffers, connections, settings.window / 2, share)
    });
    let name = |(model, buffers): &(Model, BufferSettings)| format!("{model}, {buffers}");
    let (turns, failed) = (0..settings.repeats, &mut table.failed);
    let takes = share.in_turns(&subjects, turns, failed, name, |share, (model, buffers)| {
        progress(&format!("{model}, {buffers}"));
        measure(bench, *model, buffers, connections, settings.window, share)
    });
    table.throttle = share.method();
    let rows = subjects.into_iter().zip(takes);
    let row = |((model, buffers), takes): (_, Vec<Option<Take>>)| {
        row(model, buffers, &takes.into_iter().flatten().collect::<Vec<_>>())
    };
    table.rows = rows.filter_map(row).collect();
    table.rows.sort_by_key(|row| position(&row.model)); // stable
    table
}

fn is_lockable(model: Model, buffers: &BufferSettings, threads: usize) -> bool {
    !buffers.locked || locked_memory_limit().is_none_or(|most| buffers.locked_bytes(model, threads) <= most)
}

/// A line about rows that would lock too much.
fn beyond_the_limit(rows: &[(Model, BufferSettings)]) -> Option<String> {
    let limit = locked_memory_limit()?;
    let names: Vec<String> = rows.iter().map(|(model, buffers)| format!("{model} with {buffers}")).collect();
    (!names.is_empty()).then(|| {
        format!(
            "not measured: {}: RLIMIT_MEMLOCK is {limit} bytes; raise it with ulimit -l",
            names.join("; ")
        )
    })
}

/// A line about sizes that the system does not give.
fn cut_sizes() -> Option<String> {
    let most = |name| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let (send, receive) = (most("wmem_max")?, most("rmem_max")?);
    (send.min(receive) < 1 << 20).then(|| {
        format!(
            "the system cuts SO_SNDBUF to {send} bytes (net.core.wmem_max) and SO_RCVBUF to {receive} \
             (net.core.rmem_max); raise both to measure larger ones"
        )
    })
}

fn row(model: Model, buffers: BufferSettings, takes: &[Take]) -> Option<Row> {
    let rounds: Vec<Round> = takes.iter().map(|take| take.round.clone()).collect();
    let of = |value: fn(&Take) -> Option<f64>| {
        takes.iter().map(value).collect::<Option<Vec<f64>>>().and_then(Spread::of)
    };
    Some(Row {
        model: model.to_string(),
        buffers,
        user_kib: of(|take| Some(take.user_kib as f64))?,
        socket_kib: of(|take| take.socket_kib.map(|kib| kib as f64)),
        object_kib: of(|take| take.object_kib),
        share: takes.iter().map(|take| take.share).fold(1.0, f64::min),
        figures: Figures::of(&rounds)?,
    })
}

/// A round against a fresh server, so that it inherits nothing from another.
fn measure(
    bench: &Bench,
    model: Model,
    buffers: &BufferSettings,
    connections: usize,
    window: Duration,
    share: &mut CpuShare,
) -> Result<Take, LabError> {
    let options = buffers.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = ServerProcess::start(bench, "echo", model, &options)?;
    share.hold(server.process.id());
    let args = [
        ["-c", &connections.to_string()],
        ["-d", &window.as_secs_f64().to_string()],
        ["--size", &MESSAGE_BYTES.to_string()],
    ];
    let own = ["echo".to_owned(), server.url.clone()];
    let args = own.into_iter().chain(args.as_flattened().iter().map(ToString::to_string)).collect();
    let before = kernel_memory::settled_objects();
    let mut during = None;
    let generator = Generator::here(bench);
    let length = WindowLength::Fixed(window);
    let load = Windowed { generator, server, args, connections, threads: None, length };
    let (usage, report) = load.run(|| during = kernel_memory::objects())?;
    let object_kib = kernel_memory::growth(before, during).map(|bytes| bytes / 1024.0);
    Ok(Take {
        share: share.value(),
        user_kib: usage.user_memory_kib,
        socket_kib: usage.kernel_memory_kib,
        object_kib,
        round: Round::with_share(bench, &report, usage.cpu_s, share.value())
            .without_latencies_of_pauses(share.value())
            .without_short_window(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_changes_something_else_and_no_model_is_asked_for_what_it_has_not() {
        let settings = Settings {
            models: Model::ALL.to_vec(),
            connections: 1,
            quick: false,
            window: Duration::from_secs(1),
            repeats: 1,
        };
        for &model in Model::ALL {
            let names: Vec<String> = settings.rows(model).iter().map(ToString::to_string).collect();
            let mut once = names.clone();
            once.sort();
            once.dedup();
            assert_eq!((once.len(), names[0].as_str()), (names.len(), "defaults"), "{names:?}");
            assert_eq!(names.iter().any(|name| name.contains("locked")), can_lock(model), "{model}");
            assert_eq!(names.contains(&"16 buffers".to_owned()), has_pool(model), "{model}");
            assert!(names.iter().all(|name| name.chars().count() <= 19), "{names:?}");
            for name in ["SO_SNDBUF 0", "SO_RCVBUF 0", "both 0", "both 1 MiB"] {
                assert!(names.contains(&name.to_owned()), "{name} is not in {names:?}");
            }
        }
        let locked = BufferSettings {
            number: Some(64),
            bytes: Some(64 << 10),
            locked: true,
            ..BufferSettings::default()
        };
        assert_eq!(locked.locked_bytes(Model::Uring, 2), 8 << 20);
        assert_eq!(locked.locked_bytes(Model::Epoll, 2), 128 << 10);
        assert_eq!(locked.options().join(" "), "--buffers 64 --buffer-bytes 65536 --lock-memory");
    }
}
