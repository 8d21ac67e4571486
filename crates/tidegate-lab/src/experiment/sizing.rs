//! How many connections this machine can give, and the threads they need.

use serde::{Deserialize, Serialize};
use tidegate::{Model, Policy, system};
use tidegate_os::process::memory_bytes;

use crate::Bench;

/// Places of a server's table beside those of the connections asked for: the probe, and what is on its way.
const SPARE: usize = 64;

/// I/O threads of a server with very many connections, if it can do with so few.
const LEAST_THREADS: usize = 2;

/// I/O threads that are tried before it is said that descriptors do not suffice. Each `uring` thread has a table of its
/// own.
const MOST_THREADS: usize = 256;

/// Descriptors that a load which keeps one for each connection needs besides.
const LOAD_RESERVE: usize = 64;

/// Memory of an idle connection, both ends, kernel and user: an upper estimate, so that the machine does not run out in
/// mid-run.
const PAIR_BYTES: u64 = 8 * 1024;

/// The same for `blocking`, with the stacks of two threads.
const PAIR_BYTES_BLOCKING: u64 = 72 * 1024;

/// Source addresses that the load spreads over at most.
const SOURCES: u64 = 250;

/// What a machine sets limits with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineLimits {
    /// Open descriptors a process may have.
    pub(super) descriptors: u64,
    /// Memory to be had, in bytes.
    pub(super) memory_bytes: u64,
    /// Ports that one source address has for its connections.
    pub(super) ports: u64,
    /// Threads that one process may have while the rest of the system can still start some.
    pub(super) threads: u64,
}

/// What there is too little of for the connections asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scarce {
    /// Descriptors of the server.
    ServerDescriptors,
    /// Descriptors of the load.
    LoadDescriptors,
    /// Threads, of which `blocking` needs two for each connection.
    Threads,
    /// Memory.
    Memory,
    /// Source ports.
    Ports,
}

impl Scarce {
    /// In a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ServerDescriptors => "descriptors of the server",
            Self::LoadDescriptors => "descriptors of the load",
            Self::Threads => "threads",
            Self::Memory => "memory",
            Self::Ports => "ports",
        }
    }
}

/// What bounds the number of connections, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bottleneck {
    pub(crate) scarce: Scarce,
    pub(super) why: String,
}

impl MachineLimits {
    /// Of this machine, now. What cannot be read is taken as no limit.
    pub(crate) fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let range = read("/proc/sys/net/ipv4/ip_local_port_range");
        let mut range = range.split_whitespace().map_while(|n| n.parse::<u64>().ok());
        let ports = range.next().zip(range.next()).map(|(low, high)| (high + 1).saturating_sub(low));
        let most = |path| read(path).trim().parse::<u64>().unwrap_or(u64::MAX);
        let threads = most("/proc/sys/kernel/threads-max").min(most("/proc/sys/kernel/pid_max"));
        // A thread has a stack and a guard page (mmap(2)), which are two maps.
        let threads = (threads / 5 * 4).min(most("/proc/sys/vm/max_map_count") / 20 * 9);
        Self {
            descriptors: system::descriptor_limit().0,
            memory_bytes: memory_bytes().map_or(u64::MAX, |(_, available)| available),
            ports: ports.unwrap_or(u64::MAX),
            threads,
        }
    }

    fn descriptors(self) -> usize {
        usize::try_from(self.descriptors).unwrap_or(usize::MAX)
    }
}

/// Where the load comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadSource {
    /// A process of this machine, on this model.
    Here(Model),
    /// Agents on this machine, that see to descriptors and ports themselves.
    Beside,
    /// Agents on other hosts.
    Elsewhere,
}

/// How server and load are to be started for some number of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizing {
    /// Connections asked for.
    pub(super) asked: usize,
    /// Connections that can be had.
    pub(crate) connections: usize,
    /// I/O threads of the server; `None` where the model has its own idea of them.
    pub(super) server_threads: Option<usize>,
    /// `max_connections` of the server.
    pub(crate) server_connections: usize,
    /// I/O threads of the load, if it is a process of this machine.
    pub(super) load_threads: usize,
    /// What is missing, if fewer can be had than were asked for.
    pub(crate) bound: Option<Bottleneck>,
    /// The same in a line.
    pub(crate) note: Option<String>,
}

impl Sizing {
    /// Options of a server that establishes as many connections, whether they have spoken or not.
    pub(crate) fn server_options(&self) -> Vec<String> {
        let mut options = vec!["--max-connections".to_owned(), self.server_connections.to_string()];
        options.extend(["--defer-accept", "none", "--first-byte-timeout", "none"].map(str::to_owned));
        options.extend(self.server_threads.iter().flat_map(|n| ["--threads".to_owned(), n.to_string()]));
        options
    }
}

/// Plans for `wanted` connections to a server on each model, with as many I/O threads as the server has processors.
pub(super) fn plan(
    bench: &Bench,
    source: LoadSource,
    models: &[Model],
    wanted: usize,
) -> Vec<(Model, Sizing)> {
    let limits = MachineLimits::here();
    let threads = bench.server_cpus.len().max(1);
    models.iter().map(|&model| (model, size_with(limits, model, source, wanted, threads))).collect()
}

/// Plans for `wanted` connections to a server on `model`, with [`LEAST_THREADS`] or more.
pub(crate) fn size(limits: MachineLimits, model: Model, load: LoadSource, wanted: usize) -> Sizing {
    size_with(limits, model, load, wanted, LEAST_THREADS)
}

/// The same with so few I/O threads on both sides if they suffice.
fn size_with(
    limits: MachineLimits,
    model: Model,
    load: LoadSource,
    wanted: usize,
    least_threads: usize,
) -> Sizing {
    let (room, bound) = room(limits, model, load, wanted);
    let bound = bound.filter(|_| room < wanted);
    let connections = wanted.min(room);
    let spare = SPARE + connections / 64;
    let server_threads = server_threads(model, connections + spare, least_threads);
    let most = most_connections(model, server_threads, connections + spare);
    Sizing {
        asked: wanted,
        connections,
        server_threads,
        server_connections: (connections + spare).min(most),
        load_threads: load_threads(limits, load, connections, least_threads),
        note: bound
            .as_ref()
            .map(|bound| format!("{model}: {room} instead of {wanted} connections: {}", bound.why)),
        bound,
    }
}

/// I/O threads of a server, if it is to be given a number. Only on `uring` do more of them hold more connections.
fn server_threads(model: Model, connections: usize, least: usize) -> Option<usize> {
    match model {
        Model::Blocking | Model::Pool => None,
        // Always three; or started as connections come, as in the book's table.
        Model::AsyncSelect | Model::EventSelect | Model::Overlapped => None,
        Model::Uring => Some(rings(connections, least)),
        _ => Some(least),
    }
}

/// Connections that a server with so many I/O threads can have, if `wanted` are its `max_connections`.
fn most_connections(model: Model, threads: Option<usize>, wanted: usize) -> usize {
    let policy = Policy::default().max_connections(wanted);
    model.most_connections(threads.unwrap_or(model.threads(&policy)))
}

/// The fewest rings whose tables, and the descriptors of the process, hold so many connections.
fn rings(connections: usize, least: usize) -> usize {
    let suffice = |&rings: &usize| Model::Uring.most_connections(rings) >= connections;
    (least..MOST_THREADS).find(suffice).unwrap_or(MOST_THREADS)
}

/// The load dials each socket as an ordinary descriptor and then moves it into a ring's table, so its tables alone have
/// to hold all.
fn load_threads(limits: MachineLimits, load: LoadSource, connections: usize, least: usize) -> usize {
    match load {
        LoadSource::Here(Model::Uring) => rings(connections.saturating_add(limits.descriptors()), least),
        _ => 1,
    }
}

/// Connections there is room for, and what prevents more.
fn room(limits: MachineLimits, model: Model, load: LoadSource, wanted: usize) -> (usize, Option<Bottleneck>) {
    let threads = server_threads(model, usize::MAX, LEAST_THREADS);
    let server = most_connections(model, threads, wanted.saturating_add(2 * SPARE));
    let client = match load {
        LoadSource::Here(load @ Model::Uring) => {
            load.most_connections(MOST_THREADS).saturating_sub(limits.descriptors())
        }
        LoadSource::Here(_) => limits.descriptors().saturating_sub(LOAD_RESERVE),
        LoadSource::Beside | LoadSource::Elsewhere => usize::MAX,
    };
    let pair = if model == Model::Blocking { PAIR_BYTES_BLOCKING } else { PAIR_BYTES };
    let pair = if load == LoadSource::Elsewhere { pair - PAIR_BYTES / 2 } else { pair };
    let ports = if matches!(load, LoadSource::Here(_)) { limits.ports } else { u64::MAX };
    let threads = if model == Model::Blocking { limits.threads / 2 } else { u64::MAX };
    let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let limit = limits.descriptors;
    let bounds = [
        (
            server.saturating_sub(SPARE),
            Scarce::ServerDescriptors,
            format!(
                "the server may have {limit} descriptors; raise that with ulimit -n, or take the model uring, \
                 whose tables need none"
            ),
        ),
        (
            client,
            Scarce::LoadDescriptors,
            format!("the load may have {limit} descriptors; raise that with ulimit -n"),
        ),
        (
            whole(threads),
            Scarce::Threads,
            format!(
                "two threads for each, and the system leaves {} to one process; raise kernel.pid_max, \
                 kernel.threads-max and vm.max_map_count, or take another model",
                limits.threads
            ),
        ),
        (
            whole(limits.memory_bytes / 10 * 9 / pair),
            Scarce::Memory,
            format!(
                "{} MiB of memory are free and a connection may take {} KiB; free some",
                limits.memory_bytes >> 20,
                pair >> 10
            ),
        ),
        (
            whole(ports.saturating_mul(SOURCES)),
            Scarce::Ports,
            format!(
                "{SOURCES} source addresses have {} ports each; widen net.ipv4.ip_local_port_range",
                limits.ports
            ),
        ),
    ];
    let Some((room, scarce, why)) = bounds.into_iter().min_by_key(|bound| bound.0) else {
        return (usize::MAX, None);
    };
    (room, Some(Bottleneck { scarce, why }))
}

/// What is missing for as many connections as were asked for: a line for each cause, with the models that have it.
pub(super) fn missing(subjects: &[(Model, Sizing)]) -> Vec<String> {
    let mut causes: Vec<(String, Vec<String>)> = Vec::new();
    for (model, sizing) in subjects {
        let Some(bound) = &sizing.bound else { continue };
        let cause = format!("{} instead of {} connections: {}", sizing.connections, sizing.asked, bound.why);
        match causes.iter_mut().find(|(other, _)| *other == cause) {
            Some((_, models)) => models.push(model.to_string()),
            None => causes.push((cause, vec![model.to_string()])),
        }
    }
    causes.into_iter().map(|(cause, models)| format!("{}: {cause}", models.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: MachineLimits =
        MachineLimits { descriptors: u64::MAX, memory_bytes: u64::MAX, ports: 28_232, threads: u64::MAX };

    #[test]
    fn what_fits_is_given_in_full_with_places_to_spare() {
        let size = size(AMPLE, Model::Epoll, LoadSource::Here(Model::Epoll), 10);
        assert_eq!((size.connections, size.server_threads, size.note), (10, Some(2), None));
        assert!(size.server_connections > 10);
        let fewest = size_with(AMPLE, Model::Epoll, LoadSource::Here(Model::Epoll), 10, 1);
        assert_eq!((fewest.server_threads, fewest.load_threads), (Some(1), 1));
    }

    #[test]
    fn each_scarce_thing_is_named_with_its_remedy() {
        let scarce = [
            (MachineLimits { memory_bytes: 1 << 20, ..AMPLE }, "free some"),
            (MachineLimits { ports: 1, ..AMPLE }, "ip_local_port_range"),
            (MachineLimits { descriptors: 100, ..AMPLE }, "the load may have 100 descriptors"),
        ];
        for (limits, remedy) in scarce {
            let size = size(limits, Model::Epoll, LoadSource::Here(Model::Epoll), 1_000);
            assert!(size.connections < 1_000, "{size:?}");
            assert!(size.note.is_some_and(|note| note.contains(remedy)), "{remedy}");
        }
        let everything = size(AMPLE, Model::Epoll, LoadSource::Here(Model::Uring), usize::MAX >> 8);
        assert!(everything.connections < usize::MAX >> 8 && everything.note.is_some(), "{everything:?}");
    }

    #[test]
    fn rings_are_added_until_all_connections_fit_and_no_further() {
        let most = |rings| Model::Uring.most_connections(rings);
        for n in [10, 100_000, 400_000] {
            let limits = MachineLimits { memory_bytes: u64::MAX, ..MachineLimits::here() };
            let size = size(limits, Model::Uring, LoadSource::Here(Model::Uring), n);
            let threads = size.server_threads.unwrap();
            assert!(most(threads) >= size.server_connections && size.server_connections >= size.connections);
            assert!(threads == LEAST_THREADS || most(threads - 1) < size.server_connections, "{size:?}");
            let tables = most(size.load_threads).saturating_sub(limits.descriptors());
            assert!(tables >= size.connections || most(size.load_threads) == usize::MAX, "{size:?}");
        }
    }

    #[test]
    fn models_with_threads_of_their_own_are_left_alone() {
        for model in [Model::Blocking, Model::Pool, Model::AsyncSelect, Model::EventSelect, Model::Overlapped]
        {
            assert_eq!(size(AMPLE, model, LoadSource::Here(Model::Epoll), 10).server_threads, None);
        }
    }

    #[test]
    fn models_with_few_connections_for_each_thread_have_as_many_threads_as_they_need() {
        for model in [Model::EventSelect, Model::Overlapped] {
            let size = size(AMPLE, model, LoadSource::Here(Model::Epoll), 500);
            assert_eq!((size.connections, size.note), (500, None), "{model}");
            assert!(size.server_connections > 500);
        }
    }

    #[test]
    fn a_thread_for_each_side_is_counted_and_only_where_there_is_one() {
        let limits = MachineLimits { threads: 1_000, ..AMPLE };
        let blocking = size(limits, Model::Blocking, LoadSource::Here(Model::Epoll), 5_000);
        assert_eq!((blocking.connections, blocking.bound.unwrap().scarce), (500, Scarce::Threads));
        assert!(blocking.note.unwrap().starts_with("blocking: 500 instead of 5000 connections"));
        assert_eq!(size(limits, Model::Pool, LoadSource::Here(Model::Epoll), 5_000).bound, None);
    }

    #[test]
    fn agents_have_ports_and_descriptors_of_their_own_and_on_other_hosts_memory_too() {
        let limits = MachineLimits { memory_bytes: 80 << 20, ports: 1, ..AMPLE };
        let room = |source| size(limits, Model::Epoll, source, usize::MAX >> 8).connections;
        assert_eq!(room(LoadSource::Here(Model::Epoll)), 250);
        assert_eq!(room(LoadSource::Elsewhere), 2 * room(LoadSource::Beside));
        assert_eq!(room(LoadSource::Beside), 9 * 1024);
    }
}
