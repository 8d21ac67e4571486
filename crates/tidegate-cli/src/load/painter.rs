//! Paints lines on the terminal, over those of the last time. The terminal is left in no other mode, so that nothing
//! has to be restored however the process ends.

use std::time::{Duration, Instant};

use console::Term;
use tidegate_load::RunEvent;

use super::live::LiveView;

/// How often it is painted: once a second, and at once when a stage begins.
const EACH: Duration = Duration::from_secs(1);

/// The live view on standard error.
pub struct Painter {
    view: LiveView,
    term: Term,
    painted: usize,
    last: Option<Instant>,
}

impl Painter {
    /// Paints `view` on standard error.
    pub fn new(view: LiveView) -> Self {
        Self { view, term: Term::stderr(), painted: 0, last: None }
    }

    /// Takes in what the run says of itself, and shows it.
    pub fn hear(&mut self, phase: &RunEvent<'_>) {
        self.view.hear(phase);
        let begins =
            matches!(phase, RunEvent::Connected { .. } | RunEvent::Second { .. } | RunEvent::Measuring);
        let is_old = self.last.is_none_or(|last| last.elapsed() >= EACH);
        match phase {
            RunEvent::Done { .. } => self.clear(),
            _ if begins || is_old => self.paint(),
            _ => {}
        }
    }

    fn paint(&mut self) {
        let (rows, columns) = self.term.size();
        let mut lines = self.view.lines(columns.into());
        lines.truncate(usize::from(rows).saturating_sub(1).max(1));
        // One write for all, so that nothing flickers: up, then each line and what is left of the old one.
        let mut text = self.home();
        for line in &lines {
            text.push_str(&format!("{line}\x1b[K\r\n"));
        }
        text.push_str("\x1b[J");
        self.painted = lines.len();
        self.last = Some(Instant::now());
        self.write(&text);
    }

    /// Takes it away: the run is over.
    pub fn clear(&mut self) {
        let text = format!("{}\x1b[J", self.home());
        self.painted = 0;
        self.write(&text);
    }

    /// To the first line painted (ECMA-48, CUU).
    fn home(&self) -> String {
        if self.painted > 0 { format!("\r\x1b[{}A", self.painted) } else { "\r".into() }
    }

    fn write(&self, text: &str) {
        // A terminal that has gone is no reason to end a run.
        let _ = self.term.write_str(text);
    }
}
