//! What can be set, and which values are tried.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::Extent;

/// One setting of a server beside its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// I/O threads.
    Threads,
    /// Receive buffers in the pool of each thread of `uring`.
    Buffers,
    /// Bytes of a receive buffer.
    BufferBytes,
    /// Events or completions taken from the kernel at once.
    EventsPerWait,
    /// Sends of the whole server that the kernel has not finished with.
    OutstandingSends,
    /// Microseconds that a request may wait for others.
    Coalesce,
    /// Connections at once. It is looked for last, and in its own way.
    MaxConnections,
}

impl Knob {
    /// Those that are tried one after the other, in this order.
    pub const ALL: [Self; 6] = [
        Self::Coalesce,
        Self::Threads,
        Self::Buffers,
        Self::BufferBytes,
        Self::EventsPerWait,
        Self::OutstandingSends,
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
            Self::Coalesce => "coalesce",
            Self::MaxConnections => "max-connections",
        }
    }

    /// A value as an option of `serve` has it.
    #[must_use]
    pub fn text(self, value: u64) -> String {
        match self {
            Self::Coalesce => format!("{value}us"),
            _ => value.to_string(),
        }
    }

    /// The values to try on a model whose server has so many processors; `None` is the default and comes first. Nothing
    /// where the model has no use for the setting. Those of [`Coalesce`](Self::Coalesce) are [asked
    /// for](super::Settings::max_delay).
    #[must_use]
    pub fn values(self, model: Model, processors: usize, extent: Extent) -> Vec<Option<u64>> {
        let has_loop = matches!(model, Model::Select | Model::Poll | Model::Epoll | Model::Uring);
        let (quick, more): (&[u64], &[u64]) = match self {
            Self::Threads if model == Model::Blocking => return Vec::new(),
            Self::Threads if model == Model::Pool => (&[16, 1024], &[64]),
            Self::Threads => return threads(processors, extent),
            Self::Buffers if model == Model::Uring => (&[64, 1024], &[16, 4096]),
            Self::BufferBytes => (&[4096, 65_536], &[8192, 32_768]),
            Self::EventsPerWait if has_loop => (&[16, 1024], &[64, 4096]),
            Self::OutstandingSends if has_loop => (&[200], &[50, 1000]), // 200 is the source's
            _ => return Vec::new(),
        };
        let more = if extent == Extent::Full { more } else { &[] };
        std::iter::once(None).chain(quick.iter().chain(more).copied().map(Some)).collect()
    }
}

/// Powers of two up to twice the processors; the default is one for each of them.
fn threads(processors: usize, extent: Extent) -> Vec<Option<u64>> {
    let most = processors.saturating_mul(2);
    let powers = std::iter::successors(Some(1_usize), |n| n.checked_mul(2)).take_while(|&n| n <= most);
    let least = if extent == Extent::Quick { processors.div_ceil(2) } else { 1 };
    let others = powers.filter(|&n| n != processors && n >= least).map(|n| Some(n as u64));
    std::iter::once(None).chain(others).collect()
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

    /// The options of `serve` that differ from the defaults of the model.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.values
            .iter()
            .flat_map(|(&knob, &value)| [format!("--{}", knob.name()), knob.text(value)])
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
        for model in Model::ALL {
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
    fn threads_are_tried_around_the_number_of_processors() {
        assert_eq!(threads(1, Extent::Quick), [None, Some(2)]);
        assert_eq!(threads(4, Extent::Quick), [None, Some(2), Some(8)]);
        assert_eq!(threads(4, Extent::Full), [None, Some(1), Some(2), Some(8)]);
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
    }
}
