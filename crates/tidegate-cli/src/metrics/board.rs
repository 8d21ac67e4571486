//! Servers published on one page. Shared by the main thread and the one that serves the page.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate::Model;

use super::exposition::{self, ServerRow};
use super::source::{Phase, Source};
use crate::label::Label;

/// A server on a page.
#[derive(Clone)]
pub struct Entry(Arc<EntryState>);

struct EntryState {
    server: String,
    service: &'static str,
    phase: AtomicU8,
    source: OnceLock<(Model, Source)>,
}

impl Entry {
    /// Registered, not running yet.
    pub(super) fn of(label: &Label) -> Self {
        Self(Arc::new(EntryState {
            server: label.name.clone(),
            service: label.service,
            phase: AtomicU8::new(Phase::Starting as u8),
            source: OnceLock::new(),
        }))
    }

    /// The server accepts: publishes its counters from now on.
    pub fn accepting(&self, model: Model, source: Source) {
        let _ = self.0.source.set((model, source)); // a server starts once
        self.0.phase.store(Phase::Accepting as u8, Ordering::Release);
    }

    /// The server does not accept any more.
    pub fn draining(&self) {
        self.0.phase.store(Phase::Draining as u8, Ordering::Release);
    }

    fn phase(&self) -> Phase {
        match self.0.phase.load(Ordering::Acquire) {
            n if n == Phase::Starting as u8 => Phase::Starting,
            n if n == Phase::Accepting as u8 => Phase::Accepting,
            _ => Phase::Draining,
        }
    }

    fn row(&self) -> ServerRow<'_> {
        let source = self.0.source.get().map(|(model, source)| (*model, source));
        ServerRow { server: &self.0.server, service: self.0.service, phase: self.phase(), source }
    }
}

/// The servers of a page.
pub(super) struct Board(pub(super) Vec<Entry>);

impl Board {
    /// The phase of the least ready server.
    pub(super) fn phase(&self) -> Phase {
        let has = |phase| self.0.iter().any(|entry| entry.phase() == phase);
        match () {
            () if has(Phase::Draining) => Phase::Draining,
            () if has(Phase::Starting) => Phase::Starting,
            () => Phase::Accepting,
        }
    }

    pub(super) fn exposition(&self) -> Result<String, prometheus::Error> {
        let rows: Vec<ServerRow<'_>> = self.0.iter().map(Entry::row).collect();
        exposition::text(&rows)
    }
}
