//! Servers published on one page. Shared by the main thread and the one that serves the page.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate::Model;

use super::exposition::{self, ServerRow};
use super::source::{ServerPhase, StatsSource};
use crate::label::Label;

/// A server on a page.
#[derive(Clone)]
pub struct Entry(Arc<EntryState>);

struct EntryState {
    server: String,
    service: &'static str,
    phase: AtomicU8,
    source: OnceLock<(Model, StatsSource)>,
}

impl Entry {
    /// Registered, not running yet.
    pub(super) fn of(label: &Label) -> Self {
        Self(Arc::new(EntryState {
            server: label.name.clone(),
            service: label.service,
            phase: AtomicU8::new(ServerPhase::Starting as u8),
            source: OnceLock::new(),
        }))
    }

    /// The server accepts: publishes its counters from now on.
    pub fn accepting(&self, model: Model, source: StatsSource) {
        let _ = self.0.source.set((model, source)); // a server starts once
        self.0.phase.store(ServerPhase::Accepting as u8, Ordering::Release);
    }

    /// The server does not accept any more.
    pub fn draining(&self) {
        self.0.phase.store(ServerPhase::Draining as u8, Ordering::Release);
    }

    fn phase(&self) -> ServerPhase {
        match self.0.phase.load(Ordering::Acquire) {
            n if n == ServerPhase::Starting as u8 => ServerPhase::Starting,
            n if n == ServerPhase::Accepting as u8 => ServerPhase::Accepting,
            _ => ServerPhase::Draining,
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
    pub(super) fn phase(&self) -> ServerPhase {
        let has = |phase| self.0.iter().any(|entry| entry.phase() == phase);
        match () {
            () if has(ServerPhase::Draining) => ServerPhase::Draining,
            () if has(ServerPhase::Starting) => ServerPhase::Starting,
            () => ServerPhase::Accepting,
        }
    }

    pub(super) fn exposition(&self) -> Result<String, prometheus::Error> {
        let rows: Vec<ServerRow<'_>> = self.0.iter().map(Entry::row).collect();
        exposition::text(&rows)
    }
}
