//! The live view of a load. Pure: formats the state of a run into lines of a given width.

use std::collections::VecDeque;
use std::time::Duration;

use console::{Style, measure_text_width, truncate_str};
use tidegate_load::text::grouped;
use tidegate_load::verdict::{LimitedBy, Share};
use tidegate_load::{Amount, RunEvent, RunStatus, Second};

use super::summary::micros;

/// Seconds that the sparkline shows at most.
const SPARKS: usize = 60;
/// Width of the name column.
const LABEL: usize = 13;
/// Maximum line width, however wide the terminal is.
const WIDEST: usize = 100;

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LivePhase {
    /// Connections are opened, or the load warms up.
    Opening,
    /// The elapsed fraction of the window, 0 to 1.
    Measuring(f64),
}

/// What is known of a run.
pub struct LiveView {
    title: String,
    connections: u64,
    amount: Amount,
    /// The unit counted per second.
    counted: &'static str,
    /// Whether colours are enabled.
    colours: bool,
    stage: LivePhase,
    connected: u64,
    requests: u64,
    failed: u64,
    /// Requests of each second, the last one last.
    rates: VecDeque<f64>,
    last: Option<Second>,
    status: RunStatus,
}

impl LiveView {
    /// The initial state.
    pub fn new(title: String, connections: usize, amount: Amount, colours: bool) -> Self {
        Self {
            title,
            connections: connections as u64,
            amount,
            counted: "requests/s",
            colours,
            stage: LivePhase::Opening,
            connected: 0,
            requests: 0,
            failed: 0,
            rates: VecDeque::new(),
            last: None,
            status: RunStatus::default(),
        }
    }

    /// The same of something else than requests.
    pub fn counting(self, counted: &'static str) -> Self {
        Self { counted, ..self }
    }

    /// Updates it with a report of the run.
    pub fn hear(&mut self, phase: &RunEvent<'_>) {
        match *phase {
            RunEvent::Opening { connected } | RunEvent::Connected { connected, .. } => {
                self.connected = connected
            }
            RunEvent::Measuring => self.stage = LivePhase::Measuring(0.0),
            RunEvent::Progress { requests, part } => {
                self.stage = LivePhase::Measuring(part.clamp(0.0, 1.0));
                self.requests = requests;
            }
            RunEvent::Second { second, status, .. } => {
                self.failed += second.failed;
                if self.rates.len() == SPARKS {
                    self.rates.pop_front();
                }
                self.rates.push_back(second.requests as f64 / second.length_s.max(1e-9));
                self.last = Some(second.clone());
                self.status = status;
            }
            RunEvent::Done { .. } => {}
        }
    }

    /// Formats it for a terminal of this width; no line is longer.
    pub fn lines(&self, columns: usize) -> Vec<String> {
        let width = columns.min(WIDEST);
        let mut lines = vec![self.style().bold().apply_to(&self.title).to_string(), self.progress(width)];
        if let Some(second) = &self.last {
            let l = &second.latency_us;
            let rate = self.rates.back().copied().unwrap_or_default();
            let rate = format!("{:<11}", grouped(rate.round() as u64));
            let sparks = sparkline(&self.rates, width.saturating_sub(LABEL + rate.len() + 1));
            lines.push(named(self.counted, &format!("{rate} {}", self.style().cyan().apply_to(sparks))));
            let latency = format!("p50 {}  p99 {}  p99.9 {}", micros(l.p50), micros(l.p99), micros(l.p99_9));
            lines.push(named("latency", &latency));
        }
        lines.push(self.connections_line());
        if self.last.is_some() {
            lines.extend(self.processors());
        }
        if let Some(limited_by) = self.status.limited_by {
            lines.push(named("so far", &self.limited_by(limited_by)));
        }
        let tail = if columns == 0 { "" } else { "…" };
        lines.iter().map(|line| truncate_str(line, columns, tail).into_owned()).collect()
    }

    fn style(&self) -> Style {
        // Not left to `console`, which asks the environment: lines depend on nothing else than what is known.
        Style::new().force_styling(self.colours)
    }

    fn progress(&self, width: usize) -> String {
        let LivePhase::Measuring(part) = self.stage else {
            let what = if self.connected < self.connections { "opening connections" } else { "warming up" };
            return named("progress", what);
        };
        let of = match self.amount {
            Amount::Time(time) => format!("{} of {}", seconds(time.mul_f64(part)), seconds(time)),
            Amount::Requests(n) => format!("{} of {}", grouped(self.requests), grouped(n)),
        };
        let text = format!("{:3.0}%  {of}", part * 100.0);
        let room = width.saturating_sub(LABEL + measure_text_width(&text) + 2).min(30);
        let full = (part * room as f64).round() as usize;
        let bar = format!("{}{}", "━".repeat(full), "─".repeat(room - full));
        named("progress", &format!("{}  {text}", self.style().green().apply_to(bar)))
    }

    fn connections_line(&self) -> String {
        let open = if self.last.is_some() { self.status.open } else { self.connected };
        let errors = self.failed + self.status.connect_failed;
        let style = if errors > 0 { self.style().red() } else { self.style() };
        let errors = style.apply_to(format!("errors {}", grouped(errors)));
        named("connections", &format!("{} of {}  {errors}", grouped(open), grouped(self.connections)))
    }

    fn processors(&self) -> Option<String> {
        let percent = |share: Share| format!("{:.0}%", share.ran * 100.0);
        let generator = self.status.generator.map(|share| format!("generator {}", percent(share)));
        let server = self.status.server.map(|share| format!("server {}", percent(share)));
        let known: Vec<String> = generator.into_iter().chain(server).collect();
        (!known.is_empty()).then(|| named("processor", &format!("{} (busiest thread)", known.join("  "))))
    }

    fn limited_by(&self, limited_by: LimitedBy) -> String {
        let style = match limited_by {
            LimitedBy::Generator => self.style().yellow(),
            LimitedBy::Server | LimitedBy::Neither => self.style(),
        };
        style.apply_to(limited_by.to_string()).to_string()
    }
}

fn named(name: &str, text: &str) -> String {
    format!("{name:<LABEL$}{text}")
}

/// The last values that fit into `room` columns, as heights against the largest of them.
fn sparkline(values: &VecDeque<f64>, room: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = || values.iter().skip(values.len().saturating_sub(room));
    let most = shown().copied().fold(0.0, f64::max);
    let height = |value: f64| if most > 0.0 { (value / most * 7.0).round() as usize } else { 0 };
    shown().map(|&value| HEIGHTS[height(value).min(7)]).collect()
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 10.0 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests;
