//! What came of a load. Serialised as JSON this is the stable output of `tidegate load --json`.

use serde::{Deserialize, Serialize};

use crate::certificate::{Certificate, Share, Verdict};
use crate::together::Together;
use crate::udp::UdpReport;

/// Where a run has got to; told to the observer of [`run`](crate::run).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase<'a> {
    /// Connections are being opened; told now and then.
    Opening {
        /// Those that stand.
        connected: u64,
    },
    /// Every connection attempt has ended.
    Connected {
        /// Attempts.
        attempted: u64,
        /// Those that stand.
        connected: u64,
    },
    /// The measuring window begins.
    Measuring,
    /// Some progress inside the window.
    Progress {
        /// Requests answered in the window so far.
        requests: u64,
        /// Part of the run that is over, 0 to 1.
        part: f64,
    },
    /// One more second of the window is over.
    Second {
        /// What happened in it.
        second: &'a Second,
        /// All its latencies, in microseconds.
        latency_us: &'a hdrhistogram::Histogram<u64>,
        /// What can be said so far.
        status: Status,
    },
    /// The measuring window has ended and what was in flight has come back. Connections are still open; they are closed
    /// when the observer returns, which may take a while if they are many.
    Done {
        /// The outcome, as [`run`](crate::run) will return it.
        report: &'a Report,
    },
}

/// What can be said in the middle of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// Connections that are open.
    pub open: u64,
    /// Connections that could not be made so far.
    pub connect_failed: u64,
    /// The busiest thread of the generator in the last second; none if the system does not tell.
    pub generator: Option<Share>,
    /// The busiest thread of the server in the last second; none without `server_pid`.
    pub server: Option<Share>,
    /// Which side is the limit, judged from the whole window so far; none before a second is over.
    pub verdict: Option<Verdict>,
}

/// TLS handshakes of the whole run, from the first dial on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsReport {
    /// Handshakes that were completed.
    pub handshakes: u64,
    /// Of those, the ones that took up an earlier session.
    pub resumed: u64,
}

/// The outcome of a run. Times are seconds or microseconds, as their names say; rates are means over the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format: 1.
    pub format: u32,
    /// `echo`, `http`, `udp echo` or `udp one way`.
    pub protocol: String,
    /// Where the load went.
    pub target: String,
    /// The I/O model of the generator.
    pub model: String,
    /// I/O threads of the generator.
    pub threads: usize,
    /// Connections asked for.
    pub connections: usize,
    /// Bytes of an echo message; 0 for http.
    pub message_bytes: usize,
    /// Whether http connections were kept.
    pub keep_alive: bool,
    /// Bytes a second for each block of 1,000 connections; none is unlimited.
    pub rate_bytes_per_s_per_block: Option<u64>,
    /// Connections that were tried, those made anew after a close included.
    pub attempted: u64,
    /// Connections that stood.
    pub connected: u64,
    /// Connections on which at least one whole answer came back right.
    pub verified_connections: u64,
    /// Connections made again because the server had closed one that was to be kept.
    pub reconnects: u64,
    /// Connections that could not be made.
    pub connect_failed: u64,
    /// Connections open at the end.
    pub open_at_end: u64,
    /// Seconds from the first dial until every attempt had ended.
    pub connect_s: f64,
    /// Length of the measuring window in seconds.
    pub elapsed_s: f64,
    /// Requests (echo: messages) answered right in the window.
    pub requests: u64,
    /// Requests that failed: refused, cut off, wrong, or with a status that is not right (2xx, if nothing else was
    /// asked for).
    pub failed: u64,
    /// Of those, answers that were not what was sent, or not understood.
    pub wrong: u64,
    /// Of those, answers by status class: 1xx, 2xx, 3xx, 4xx, 5xx.
    pub failed_by_status: [u64; 5],
    /// Requests still unanswered when the time to wait for them was over.
    pub timed_out: u64,
    /// Paced sends that went out late because the answer before them was late.
    pub late_sends: u64,
    /// Right answers a second.
    pub requests_per_s: f64,
    /// Bytes sent in the window.
    pub bytes_sent: u64,
    /// Bytes received in the window.
    pub bytes_received: u64,
    /// Bytes sent a second.
    pub sent_bytes_per_s: f64,
    /// Bytes received a second.
    pub received_bytes_per_s: f64,
    /// From a request's first byte leaving (connection per request: from the dial) to its answer's last byte. In an
    /// open loop from when the request was *due*, whenever it left.
    pub latency_us: Latency,
    /// All of `latency_us`: a histogram in microseconds, V2 encoding, compressed, base64. Any HdrHistogram tool reads
    /// it.
    #[serde(default)]
    pub latency_v2: String,
    /// Processor time of the generator in user mode during the window, in seconds.
    pub cpu_user_s: f64,
    /// Processor time of the generator in the kernel during the window, in seconds.
    pub cpu_system_s: f64,
    /// The first thing that went wrong, in words.
    pub first_error: Option<String>,
    /// The run was ended from outside before its time; everything is about the part that was measured.
    #[serde(default)]
    pub interrupted: bool,
    /// Handshakes of a load that is encrypted; none if it is not.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// The schedule and how it was kept; none in a closed loop.
    #[serde(default)]
    pub open_loop: Option<OpenLoop>,
    /// Seconds of load before the window.
    #[serde(default)]
    pub warm_up_s: f64,
    /// What happened in each second of the window; in an open loop also while the last answers came.
    #[serde(default)]
    pub seconds: Vec<Second>,
    /// Which side was the limit, and what makes the result doubtful; none in a merged result.
    #[serde(default)]
    pub certificate: Option<Certificate>,
    /// What only datagrams have; none for other loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpReport>,
    /// What each of several agents did, and what went wrong between them; none for a generator on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
}

/// How the schedule of an open loop was kept. It counts requests that were due in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenLoop {
    /// Requests a second that were asked for, after the ramp if there was one.
    pub rate_per_s: f64,
    /// Requests of the schedule.
    pub scheduled: u64,
    /// Requests that were begun.
    pub started: u64,
    /// Requests that were due but found no connection free until the end.
    pub not_started: u64,
    /// Requests begun a second.
    pub started_per_s: f64,
    /// Requests begun more than 2 ms late, for any reason.
    pub late_starts: u64,
    /// Of those, requests that were late although a connection was free: the generator overslept.
    pub late_wake_ups: u64,
    /// The latest start, in microseconds after its time.
    pub worst_late_us: u64,
    /// Latency from when a request really began: what a closed loop would have reported.
    pub service_us: Latency,
    /// All of `service_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    pub service_v2: String,
    /// How long after its time each request began; at least 1 µs.
    #[serde(default)]
    pub delay_us: Latency,
    /// All of `delay_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    #[serde(default)]
    pub delay_v2: String,
}

/// What happened in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Its end, in seconds from the beginning of the window.
    pub at_s: f64,
    /// Its length in seconds; the last one may be short.
    pub length_s: f64,
    /// Requests answered right.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests of a schedule begun more than 2 ms late.
    pub late_starts: u64,
    /// Requests in flight at its end.
    pub in_flight: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Latencies of its answers.
    pub latency_us: Latency,
}

/// A distribution of latencies in microseconds, from a histogram with three significant digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "percentiles are named by their numbers")]
pub struct Latency {
    pub mean: f64,
    pub stdev: f64,
    pub min: u64,
    pub p50: u64,
    pub p75: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Latency {
    /// What a histogram in microseconds says.
    #[must_use]
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            mean: histogram.mean(),
            stdev: histogram.stdev(),
            min: histogram.min(),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max(),
        }
    }
}

impl Report {
    /// Whether everything that was asked for was done and was right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        if self.together.as_ref().is_some_and(|together| !together.troubles.is_empty()) {
            return false;
        }
        if let Some(udp) = &self.udp {
            // Datagrams may be lost; who wants none lost says so with a threshold.
            return !self.interrupted && udp.corrupt == 0 && udp.send_errors == 0 && self.requests > 0;
        }
        let all_begun = self.open_loop.as_ref().is_none_or(|open| open.not_started == 0);
        all_begun
            && !self.interrupted
            && self.failed == 0
            && self.timed_out == 0
            && self.connect_failed == 0
            && self.requests > 0
    }
}
