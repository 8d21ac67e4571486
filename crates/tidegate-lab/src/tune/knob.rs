//! What can be set, and which values are tried.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate::policy::{Effect, Limited, Policy};
use tidegate_os::process::page_bytes;

use super::Extent;

/// A model whose threads hold so few connections starts as many as they need: a number of them would only be a cap.
const CONNECTIONS_OF_FEW: usize = 64;

/// One setting of a server beside its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// I/O threads.
    Threads,
    /// Receive buffers in the pool of each thread of a completion model.
    Buffers,
    /// Bytes of a receive buffer.
    BufferBytes,
    /// Events or completions taken from the kernel at once.
    EventsPerWait,
    /// Sends of the whole server that the kernel has not finished with.
    OutstandingSends,
    /// Sends of one connection that are in flight at once.
    PostedSends,
    /// Microseconds that a request may wait for others.
    Coalesce,
    /// How a thread waits: microseconds that it spins before it blocks.
    Wait,
    /// Connections that may receive at once.
    MaxReceiving,
    /// Zero-byte receives in place of posted buffers.
    Receive,
    /// Receives of one connection that are posted at once.
    PostedReceives,
    /// The high watermark of posted accepts; the low one is half of it.
    PostedAccepts,
    /// Receive buffers locked in memory.
    LockMemory,
    /// Connections at once. It is looked for last, and in its own way.
    MaxConnections,
}

impl Knob {
    /// Those that are tried one after the other, in this order.
    pub const ALL: [Self; 13] = [
        Self::Coalesce,
        Self::Threads,
        Self::Buffers,
        Self::BufferBytes,
        Self::EventsPerWait,
        Self::OutstandingSends,
        Self::PostedSends,
        Self::Wait,
        Self::MaxReceiving,
        Self::Receive,
        Self::PostedReceives,
        Self::PostedAccepts,
        Self::LockMemory,
    ];

    /// Its name as an option of `serve` and as a key of its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Buffers => "buffers",
            Self::BufferBytes => "buffer-bytes",
            Self::EventsPerWait => "events-per-wait",
            Self::OutstandingSends => "outstanding-sends",
            Self::PostedSends => "posted-sends",
            Self::Coalesce => "coalesce",
            Self::Wait => "wait",
            Self::MaxReceiving => "max-receiving",
            Self::Receive => "receive",
            Self::PostedReceives => "posted-receives",
            Self::PostedAccepts => "posted-accepts",
            Self::LockMemory => "lock-memory",
            Self::MaxConnections => "max-connections",
        }
    }

    /// A value as an option of `serve` has it.
    #[must_use]
    pub fn text(self, value: u64) -> String {
        match self {
            Self::Coalesce => format!("{value}us"),
            Self::Wait => format!("spin:{value}us"),
            Self::Receive => "zero-byte".into(),
            Self::PostedAccepts => format!("{}:{value}", value.div_ceil(2)),
            Self::LockMemory => "true".into(),
            Self::Threads
            | Self::Buffers
            | Self::BufferBytes
            | Self::EventsPerWait
            | Self::OutstandingSends
            | Self::PostedSends
            | Self::MaxReceiving
            | Self::PostedReceives
            | Self::MaxConnections => value.to_string(),
        }
    }

    /// Whether the library's table of limits says that a model keeps it.
    #[must_use]
    pub fn has_effect(self, model: Model) -> bool {
        Policy::limit(self.name()).is_some_and(|limit| model.effect(limit) == Effect::Kept)
    }

    /// The values to try on a model whose server has so many processors; `None` is the default and comes first. Nothing
    /// where the model has no use for the setting. Those of [`Coalesce`](Self::Coalesce) are [asked
    /// for](super::Settings::max_delay).
    #[must_use]
    pub fn values(self, model: Model, processors: usize, extent: Extent) -> Vec<Option<u64>> {
        if !self.has_effect(model) {
            return Vec::new();
        }
        let (quick, more): (&[u64], &[u64]) = match self {
            Self::Threads => return threads(model, processors, extent),
            Self::Buffers => (&[64, 1024], &[16, 4096]),
            Self::BufferBytes => return buffer_sizes(extent, page_bytes() as u64),
            Self::EventsPerWait => (&[16, 1024], &[64, 4096]),
            Self::OutstandingSends => (&[200], &[50, 1000]), // 200 is the book's
            Self::PostedSends | Self::PostedReceives => (&[4], &[16]),
            Self::Wait => (&[50], &[1000]),
            Self::MaxReceiving => (&[100], &[1000]), // 100 is the book's
            Self::Receive | Self::LockMemory => (&[1], &[]),
            Self::PostedAccepts => (&[64], &[256]),
            Self::Coalesce | Self::MaxConnections => return Vec::new(),
        };
        let more = if extent == Extent::Full { more } else { &[] };
        std::iter::once(None).chain(quick.iter().chain(more).copied().map(Some)).collect()
    }
}

/// Around the default, in whole pages of the system: where these are large, no smaller one exists.
fn buffer_sizes(extent: Extent, page_bytes: u64) -> Vec<Option<u64>> {
    let whole_pages = |bytes: u64| bytes.next_multiple_of(page_bytes);
    let default = whole_pages(16 * 1024);
    let sizes = [default / 4, default * 4, default / 2, default * 2].map(whole_pages);
    let count = if extent == Extent::Quick { 2 } else { sizes.len() };
    let differ = sizes[..count].iter().copied().filter(|&size| size != default);
    std::iter::once(None).chain(differ.map(Some)).collect()
}

/// Whether a thread of this model has places for few connections only.
fn holds_few_connections(model: Model) -> bool {
    model.most_connections(1) <= CONNECTIONS_OF_FEW
}

/// Around the number of processors, which is the default of most models: powers of two up to twice as many. Threads of
/// `pool` serve one connection each, so it is tried with more.
fn threads(model: Model, processors: usize, extent: Extent) -> Vec<Option<u64>> {
    if holds_few_connections(model) {
        return Vec::new();
    }
    let is_quick = extent == Extent::Quick;
    let (default, values): (usize, Vec<usize>) = match model {
        Model::Pool => {
            let multiples = if is_quick { vec![2] } else { vec![1, 2, 4] };
            let multiples = multiples.into_iter().map(|n| processors.saturating_mul(n));
            let others = if is_quick { vec![16, 1024] } else { vec![16, 64, 1024] };
            (model.default_threads(), multiples.chain(others).collect())
        }
        _ => {
            let most = processors.saturating_mul(2);
            let powers = std::iter::successors(Some(1_usize), |n| n.checked_mul(2));
            let least = if is_quick { processors.div_ceil(2) } else { 1 };
            let powers = powers.take_while(|&n| n <= most).filter(|&n| n >= least).collect();
            (if model == Model::AsyncSelect { model.default_threads() } else { processors }, powers)
        }
    };
    let mut found = vec![None];
    for value in values.into_iter().filter(|&n| n != default).map(|n| Some(n as u64)) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// A model and what differs from its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The I/O model.
    pub model: Model,
    /// What is not the default.
    pub values: BTreeMap<Knob, u64>,
}

impl Setting {
    /// A model with its defaults.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self { model, values: BTreeMap::new() }
    }

    /// The same but for one setting; `None` is its default.
    #[must_use]
    pub fn with(&self, knob: Knob, value: Option<u64>) -> Self {
        let mut changed = self.clone();
        match value {
            Some(value) => changed.values.insert(knob, value),
            None => changed.values.remove(&knob),
        };
        changed
    }

    /// Whether a value can make a difference beside the other settings, on a server with so many processors.
    pub(super) fn admits(&self, knob: Knob, value: u64, processors: usize) -> bool {
        let set = |knob| self.values.get(&knob).copied();
        match knob {
            // A thread that spins has no wake-ups to save.
            Knob::Wait => set(Knob::Coalesce).is_none(),
            Knob::Coalesce => set(Knob::Wait).is_none(),
            // A connection has no more sends outstanding than its thread, which has one where each holds few.
            Knob::PostedSends => set(Knob::OutstandingSends).is_none_or(|of_all| {
                let threads = set(Knob::Threads).unwrap_or(processors as u64).max(1);
                !holds_few_connections(self.model) && value <= of_all / threads
            }),
            // A receive that has no buffer is the only one of its connection.
            Knob::PostedReceives => set(Knob::Receive).is_none(),
            _ => true,
        }
    }

    /// The options of `serve` that differ from the defaults of the model.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.values
            .iter()
            .flat_map(|(&knob, &value)| {
                let value = Some(knob.text(value)).filter(|_| knob != Knob::LockMemory); // it is a flag
                std::iter::once(format!("--{}", knob.name())).chain(value)
            })
            .collect()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.model)?;
        self.values.iter().try_for_each(|(&knob, &value)| write!(f, ", {} {}", knob.name(), knob.text(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_comes_first_and_no_value_twice() {
        for &model in Model::ALL {
            for (knob, processors) in Knob::ALL.into_iter().flat_map(|k| [1, 2, 3, 8].map(|n| (k, n))) {
                for extent in [Extent::Quick, Extent::Full] {
                    let values = knob.values(model, processors, extent);
                    assert!(
                        values.is_empty() || (values[0].is_none() && values.len() > 1),
                        "{model} {knob:?}"
                    );
                    assert!((1..values.len()).all(|i| !values[..i].contains(&values[i])), "{model} {knob:?}");
                }
            }
        }
    }

    #[test]
    fn each_model_is_tried_with_what_has_an_effect_on_it() {
        use Knob::{
            BufferBytes, Buffers, EventsPerWait, LockMemory, MaxReceiving, OutstandingSends, PostedAccepts,
            PostedReceives, PostedSends, Receive, Threads, Wait,
        };
        let loops = [OutstandingSends, Wait, MaxReceiving];
        let polled = [&[Threads, BufferBytes][..], &loops, &[LockMemory]].concat();
        let with_events = [&[Threads, BufferBytes, EventsPerWait][..], &loops, &[LockMemory]].concat();
        let completions = [
            Threads,
            Buffers,
            BufferBytes,
            EventsPerWait,
            OutstandingSends,
            PostedSends,
            Wait,
            MaxReceiving,
            Receive,
            PostedReceives,
            PostedAccepts,
            LockMemory,
        ];
        let without = |others: &[Knob]| -> Vec<Knob> {
            completions.into_iter().filter(|knob| !others.contains(knob)).collect()
        };
        let expected = [
            (Model::Blocking, vec![BufferBytes]),
            (Model::Pool, vec![Threads, BufferBytes]),
            (Model::Select, polled.clone()),
            (Model::Poll, polled.clone()),
            (Model::Epoll, with_events.clone()),
            // One receive brings buffer after buffer, and several sends have no order.
            (Model::Uring, without(&[PostedSends, Receive, PostedReceives])),
            (Model::Tokio, vec![Threads, BufferBytes]),
            (Model::AsyncSelect, with_events),
            // Each of their threads waits for 64 events, and holds 62 connections.
            (Model::EventSelect, polled[1..].to_vec()),
            (Model::Overlapped, without(&[Threads, EventsPerWait, PostedReceives])),
            (Model::Iocp, completions.to_vec()),
            // A connection has one request of each direction, which cannot be cancelled.
            (Model::Rio, without(&[PostedSends, MaxReceiving, PostedReceives])),
        ];
        assert_eq!(expected.len(), Model::ALL.len());
        for (model, knobs) in expected {
            for extent in [Extent::Quick, Extent::Full] {
                let tried = |knob: &Knob| !knob.values(model, 2, extent).is_empty();
                let found: Vec<Knob> = Knob::ALL.into_iter().filter(tried).collect();
                assert_eq!(found, knobs, "{model}");
            }
        }
    }

    #[test]
    fn every_value_is_one_that_a_server_takes() {
        for &model in Model::ALL {
            for (knob, value) in Knob::ALL.into_iter().flat_map(|knob| {
                knob.values(model, 2, Extent::Full).into_iter().flatten().map(move |value| (knob, value))
            }) {
                let limit = Policy::limit(knob.name()).unwrap();
                let set = limit.set(&mut Policy::default(), &knob.text(value));
                assert_eq!(set, Ok(()), "{model} {knob:?}");
            }
        }
    }

    #[test]
    fn operations_of_a_connection_stay_within_what_there_is_for_them() {
        let admitted = |setting: &Setting, knob: Knob| -> Vec<u64> {
            let values = knob.values(setting.model, 8, Extent::Full).into_iter().flatten();
            values.filter(|&value| setting.admits(knob, value, 8)).collect()
        };
        let [iocp, overlapped] = [Model::Iocp, Model::Overlapped].map(Setting::new);
        assert_eq!(admitted(&iocp, Knob::PostedSends), [4, 16]);
        assert_eq!(admitted(&overlapped, Knob::PostedSends), [4, 16]);
        let sends = |setting: &Setting, n| setting.with(Knob::OutstandingSends, Some(n));
        assert_eq!(admitted(&sends(&iocp, 200), Knob::PostedSends), [4, 16]);
        assert_eq!(admitted(&sends(&iocp, 50), Knob::PostedSends), [4], "six of each thread");
        let two_threads = iocp.with(Knob::Threads, Some(2));
        assert_eq!(admitted(&sends(&two_threads, 50), Knob::PostedSends), [4, 16]);
        assert!(admitted(&sends(&overlapped, 1000), Knob::PostedSends).is_empty(), "one of each thread");
        for (taken, other) in [(Knob::Wait, Knob::Coalesce), (Knob::Coalesce, Knob::Wait)] {
            assert!(
                iocp.admits(other, 50, 8) && !iocp.with(taken, Some(50)).admits(other, 50, 8),
                "{other:?}"
            );
        }
        assert_eq!(admitted(&iocp, Knob::PostedReceives), [4, 16]);
        let zero_byte = iocp.with(Knob::Receive, Some(1));
        assert!(admitted(&zero_byte, Knob::PostedReceives).is_empty());
    }

    #[test]
    fn buffers_are_whole_pages_whatever_their_size() {
        let sizes = |page_bytes| buffer_sizes(Extent::Full, page_bytes);
        assert_eq!(sizes(4096), [None, Some(4096), Some(65_536), Some(8192), Some(32_768)]);
        assert_eq!(sizes(16_384), [None, Some(65_536), Some(32_768)]);
        assert_eq!(sizes(65_536), [None, Some(262_144), Some(131_072)]);
    }

    #[test]
    fn threads_are_tried_around_the_number_of_processors() {
        let epoll = |processors, extent| threads(Model::Epoll, processors, extent);
        assert_eq!(epoll(1, Extent::Quick), [None, Some(2)]);
        assert_eq!(epoll(4, Extent::Quick), [None, Some(2), Some(8)]);
        assert_eq!(epoll(4, Extent::Full), [None, Some(1), Some(2), Some(8)]);
        let pool = |processors, extent| threads(Model::Pool, processors, extent);
        assert_eq!(pool(2, Extent::Quick), [None, Some(4), Some(16), Some(1024)]);
        assert_eq!(pool(2, Extent::Full)[1..], [2, 4, 8, 16, 64, 1024].map(Some));
        // The default of pool is not tried twice, nor is a number that both lists have.
        assert_eq!(pool(64, Extent::Full), [None, Some(64), Some(128), Some(16), Some(1024)]);
        assert_eq!(threads(Model::Iocp, 2, Extent::Full), [None, Some(1), Some(4)]);
        assert_eq!(threads(Model::AsyncSelect, 2, Extent::Full), [None, Some(1), Some(2), Some(4)]);
    }

    #[test]
    fn a_setting_is_what_differs_from_the_defaults() {
        let setting =
            Setting::new(Model::Epoll).with(Knob::Threads, Some(2)).with(Knob::BufferBytes, Some(4096));
        assert_eq!(setting.to_string(), "epoll, threads 2, buffer-bytes 4096");
        assert_eq!(setting.options(), ["--threads", "2", "--buffer-bytes", "4096"]);
        assert_eq!(setting.with(Knob::Threads, None).options(), ["--buffer-bytes", "4096"]);
        let setting = Setting::new(Model::Uring).with(Knob::Coalesce, Some(200));
        assert_eq!(setting.to_string(), "uring, coalesce 200us");
        assert_eq!(setting.options(), ["--coalesce", "200us"]);
        let setting = Setting::new(Model::Iocp)
            .with(Knob::Wait, Some(50))
            .with(Knob::Receive, Some(1))
            .with(Knob::PostedAccepts, Some(64))
            .with(Knob::LockMemory, Some(1));
        let options = "--wait spin:50us --receive zero-byte --posted-accepts 32:64 --lock-memory";
        assert_eq!(setting.options().join(" "), options);
    }
}
