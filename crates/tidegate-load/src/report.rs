//! The result of a load. Serialised as JSON this is the stable output of `tidegate load --json`.

mod udp;

use serde::{Deserialize, Serialize};

pub use crate::latency::Latency;
use crate::thread_stats::add_answers;
use crate::together::Together;
use crate::verdict::{LimitedBy, Share, Verdict};
pub use udp::UdpReport;

/// The progress of a run; passed to the observer of [`run`](crate::run).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunEvent<'a> {
    /// Connections are being opened; reported regularly.
    Opening {
        /// Established ones.
        connected: u64,
    },
    /// Every connection attempt has ended.
    Connected {
        /// Attempts.
        attempted: u64,
        /// Established ones.
        connected: u64,
    },
    /// The measuring window begins.
    Measuring,
    /// Progress inside the window.
    Progress {
        /// Requests answered in the window so far.
        requests: u64,
        /// Elapsed part of the run, 0 to 1.
        part: f64,
    },
    /// One more second of the window is over.
    Second {
        /// Its counters.
        second: &'a Second,
        /// All its latencies, in microseconds.
        latency_us: &'a hdrhistogram::Histogram<u64>,
        /// The state so far.
        status: RunStatus,
    },
    /// The measuring window has ended and outstanding responses have arrived. Connections are still open; they are
    /// closed when the observer returns, which may take a while if they are many.
    Done {
        /// The result that [`run`](crate::run) will return.
        report: &'a Report,
    },
}

/// The state in the middle of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunStatus {
    /// Connections that are open.
    pub open: u64,
    /// Failed connects so far.
    pub connect_failed: u64,
    /// The busiest thread of the generator in the last second; none if unknown.
    pub generator: Option<Share>,
    /// The busiest thread of the server in the last second; none without `server_pid`.
    pub server: Option<Share>,
    /// Which side was the limit, judged from the whole window so far; none before a second is over.
    pub limited_by: Option<LimitedBy>,
}

/// TLS handshakes of the whole run, from the first dial on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsReport {
    /// Completed handshakes.
    pub handshakes: u64,
    /// Of those, resumed sessions.
    pub resumed: u64,
}

/// The result of a run. Times are seconds or microseconds, as their names say; rates are means over the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format: 1.
    pub format: u32,
    /// `echo`, `http`, `udp echo` or `udp one way`.
    pub protocol: String,
    /// The target.
    pub target: String,
    /// The I/O model of the generator.
    pub model: String,
    /// I/O threads of the generator.
    pub threads: usize,
    /// Connections requested.
    pub connections: usize,
    /// Bytes of an echo message; 0 for http.
    pub message_bytes: usize,
    /// Whether http connections were keep-alive.
    pub keep_alive: bool,
    /// Whether http connections were reset after their response.
    #[serde(default)]
    pub reset_on_close: bool,
    /// Bytes per second for each block of 1,000 connections; none is unlimited.
    pub rate_bytes_per_s_per_block: Option<u64>,
    /// Connections attempted, including reconnects.
    pub attempted: u64,
    /// Established connections.
    pub connected: u64,
    /// Connections with at least one complete, correct response.
    pub verified_connections: u64,
    /// Connections with at least one complete, correct response that counted in the window.
    #[serde(default)]
    pub verified_in_window: u64,
    /// Reconnects after the server had closed a keep-alive connection.
    pub reconnects: u64,
    /// Failed connects.
    pub connect_failed: u64,
    /// Connections open at the end.
    pub open_at_end: u64,
    /// Seconds from the first dial until every attempt had ended.
    pub connect_s: f64,
    /// Length of the measuring window in seconds.
    pub elapsed_s: f64,
    /// Correct responses (echo: messages) in the window.
    pub requests: u64,
    /// Failed requests: refused, disconnected, wrong, or with an unexpected status (expected is 2xx by default). Of
    /// echo also connections that the server closed between two messages, in the warm-up, too.
    pub failed: u64,
    /// Of those, responses that were wrong, invalid, or to no request.
    pub wrong: u64,
    /// Of those, responses by status class: 1xx, 2xx, 3xx, 4xx, 5xx.
    pub failed_by_status: [u64; 5],
    /// Responses by HTTP status, the most frequent first, expected or not.
    #[serde(default)]
    pub answers_by_status: Vec<(u16, u64)>,
    /// Requests unanswered when the timeout expired.
    pub timed_out: u64,
    /// Paced sends that were late because the previous response was late.
    pub late_sends: u64,
    /// Paced sends that were late although the previous response was there: the generator woke up late.
    #[serde(default)]
    pub late_wake_ups: u64,
    /// Correct responses per second of the window; those that came after it
    /// ([`answered_late`](OpenLoop::answered_late)) do not count here.
    pub requests_per_s: f64,
    /// Bytes sent in the window.
    pub bytes_sent: u64,
    /// Bytes received in the window.
    pub bytes_received: u64,
    /// Bytes sent per second.
    pub sent_bytes_per_s: f64,
    /// Bytes received per second.
    pub received_bytes_per_s: f64,
    /// From a request's first byte sent (connection per request: from the dial) to its response's last byte. In an open
    /// loop from when the request was *due*, whenever it was sent.
    pub latency_us: Latency,
    /// The complete histogram of `latency_us`, in microseconds, V2 encoding, compressed, base64. Any HdrHistogram tool
    /// reads it.
    #[serde(default)]
    pub latency_v2: String,
    /// CPU time of the generator in user mode during the window, in seconds.
    pub cpu_user_s: f64,
    /// CPU time of the generator in the kernel during the window, in seconds.
    pub cpu_system_s: f64,
    /// CPU time, user and kernel, of the server's process and of those it started, in seconds: during the window, and
    /// in an open loop and of datagrams until the last answer. None without `server_pid`.
    #[serde(default)]
    pub server_cpu_s: Option<f64>,
    /// The first error.
    pub first_error: Option<String>,
    /// The run was interrupted; everything covers the part that was measured.
    #[serde(default)]
    pub interrupted: bool,
    /// The run ended before its time, after so many seconds of the window, because the server had closed or refused
    /// every connection.
    #[serde(default)]
    pub server_gone_after_s: Option<f64>,
    /// Handshakes of a load with TLS; none without.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// The schedule and how well it was kept; none in a closed loop.
    #[serde(default)]
    pub open_loop: Option<OpenLoop>,
    /// Seconds of warm-up before the window.
    #[serde(default)]
    pub warm_up_s: f64,
    /// The seconds of the window; in an open loop also those in which the last responses arrived.
    #[serde(default)]
    pub seconds: Vec<Second>,
    /// Which side was the limit, and warnings; none in a merged result.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// Values of datagram loads; none for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpReport>,
    /// The results of each of several agents, and problems between them; none for a single generator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
}

/// How well the schedule of an open loop was kept. It counts requests that were due in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenLoop {
    /// Target rate, after the ramp if there was one.
    pub rate_per_s: f64,
    /// Requests of the schedule.
    pub scheduled: u64,
    /// Requests started.
    pub started: u64,
    /// Requests that were due but found no connection free until the end.
    pub not_started: u64,
    /// Requests started per second.
    pub started_per_s: f64,
    /// Correct responses that came after the window. Few if the server keeps up: as many as its latency explains.
    #[serde(default)]
    pub answered_late: u64,
    /// Requests started more than 2 ms late, for any reason.
    pub late_starts: u64,
    /// Of those, requests that were late although a connection was free: the generator woke up late.
    pub late_wake_ups: u64,
    /// The latest start, in microseconds after it was due.
    pub worst_late_us: u64,
    /// Latency from when a request was sent: what a closed loop would have reported.
    pub service_us: Latency,
    /// All of `service_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    pub service_v2: String,
    /// Delay of the start of each request; at least 1 µs.
    #[serde(default)]
    pub delay_us: Latency,
    /// All of `delay_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    #[serde(default)]
    pub delay_v2: String,
}

/// The counters of one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Its end, in seconds from the beginning of the window.
    pub at_s: f64,
    /// Its length in seconds; the last one may be short.
    pub length_s: f64,
    /// Correct responses.
    pub requests: u64,
    /// Failed requests.
    pub failed: u64,
    /// Requests of a schedule started more than 2 ms late.
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

impl Report {
    /// Adds answers by status; the most frequent stays the first.
    pub(crate) fn add_answers(&mut self, answers: &[(u16, u64)]) {
        for &(status, count) in answers {
            add_answers(&mut self.answers_by_status, status, count);
        }
        self.answers_by_status.sort_by_key(|&(status, count)| (std::cmp::Reverse(count), status));
    }

    /// Whether everything that was asked for was done and was right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        if self.together.as_ref().is_some_and(|together| !together.troubles.is_empty()) {
            return false;
        }
        if let Some(udp) = &self.udp {
            // Datagrams may be lost; use a threshold to fail on loss.
            return !self.interrupted && udp.corrupt == 0 && udp.send_errors == 0 && self.requests > 0;
        }
        let all_begun = self.open_loop.as_ref().is_none_or(|open| open.not_started == 0);
        all_begun
            && !self.interrupted
            && self.server_gone_after_s.is_none()
            && self.failed == 0
            && self.timed_out == 0
            && self.connect_failed == 0
            && self.requests > 0
    }
}
