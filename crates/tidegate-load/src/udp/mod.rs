//! Datagram load: numbered messages to an echo server, or to any receiver (one way).
//!
//! Each flow is a thread with its own socket, so a server that shares its port among threads sees several peers. A
//! flow sends and receives in turns; nothing is shared while it runs.

mod flow;
mod message;
mod tracker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tidegate::{DatagramClient, DatagramPath, DatagramPolicy};

use crate::assessment::assess;
use crate::histogram::encode;
use crate::measurement::Measurement;
use crate::plan::{Amount, LoadError, can_be_kept};
use crate::procs::Share;
use crate::report::{Latency, OpenLoop, Report, RunEvent, RunStatus, Second, UdpReport};
use crate::target::is_remote;
use crate::thread_stats::histogram;
use crate::verdict::Evidence;
use flow::{DatagramFlow, FlowEvent, FlowResult, Slice};
pub use message::HEAD_BYTES;

/// What the other end does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It sends each back; so many may be on their way at once in each flow, unless there is a rate.
    Echo {
        /// Messages on their way.
        window: usize,
    },
    /// Nothing: it takes them, or not. Only what was sent is known here.
    Nothing,
}

/// The settings of a datagram load.
#[derive(Clone, Debug)]
pub struct UdpPlan {
    /// The target.
    pub target: SocketAddr,
    /// How it goes through the kernel here.
    pub path: DatagramPath,
    /// Bytes of a message; at least [`HEAD_BYTES`].
    pub size: usize,
    /// Flows, each with a thread and a socket.
    pub flows: usize,
    /// What comes back.
    pub expect: Expect,
    /// When to stop.
    pub amount: Amount,
    /// Total messages per second; `None` is unlimited.
    pub rate: Option<f64>,
    /// How long to wait for the last answers, and for any while a window is full.
    pub timeout: Duration,
    /// Calls' worth of messages: see [`DatagramPolicy::batch`].
    pub batch: usize,
    /// Messages that one send joins: see [`DatagramPolicy::segments`].
    pub segments: usize,
    /// Receive buffer of each socket.
    pub socket_receive_buffer: Option<usize>,
    /// The server's process, if it is here.
    pub server_pid: Option<u32>,
}

impl UdpPlan {
    fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: String| Err(LoadError::Plan(why));
        if !(HEAD_BYTES..=65_507).contains(&self.size) {
            let size = self.size;
            return wrong(format!(
                "--size is {size}; a message has {HEAD_BYTES} bytes of number and time and 65507 at most"
            ));
        }
        if self.flows == 0 || self.flows > 1_024 {
            return wrong("--flows must be between 1 and 1024".into());
        }
        if matches!(self.expect, Expect::Echo { window: 0 }) {
            return wrong("--window must be at least 1".into());
        }
        if self.rate.is_some_and(|rate| !can_be_kept(rate)) {
            return wrong("--rate must be from 0.001 to 1000000000 messages per second".into());
        }
        if self.server_pid.is_some_and(|pid| !tidegate_os::process::is_there(pid)) {
            return wrong(
                "--server-pid: no such process; leave it out if the server runs on another machine".into(),
            );
        }
        Ok(())
    }

    fn policy(&self) -> DatagramPolicy {
        DatagramPolicy::default()
            .path(Some(self.path))
            .batch(self.batch)
            .segments(self.segments)
            // A message that does not fit the MTU cannot be joined with others; over loopback nearly every one does.
            .segment_bytes(if self.target.ip().is_loopback() { 65_507 } else { 1_452 })
            .socket_receive_buffer(self.socket_receive_buffer)
    }
}

/// Carries a plan out; ends early once `interrupted` is true, and the report is then about what was measured until
/// there. `observer` is notified of progress, on the calling thread.
///
/// # Errors
/// [`LoadError`] if the plan cannot be carried out at all. What goes wrong on the way is in the report.
pub fn run_udp(
    interrupted: &Arc<AtomicBool>,
    plan: &UdpPlan,
    mut observer: impl FnMut(RunEvent<'_>),
) -> Result<Report, LoadError> {
    plan.check()?;
    let clients = (0..plan.flows)
        .map(|_| DatagramClient::connect(plan.target, &plan.policy()))
        .collect::<Result<Vec<_>, _>>()?;
    observer(RunEvent::Connected { attempted: plan.flows as u64, connected: plan.flows as u64 });
    observer(RunEvent::Measuring);
    let mut window = Measurement::open(plan.server_pid);
    let begun = window.begun;
    let (events, received) = channel();
    let threads: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(index, client)| {
            let flow = DatagramFlow::new(plan, index, client, begun, events.clone(), interrupted.clone());
            thread::Builder::new().name(format!("udp-load-{index}")).spawn(move || flow.run())
        })
        .collect();
    drop(events);
    let mut recorder = FlowRecorder::new(plan, begun);
    recorder.follow(&received, &mut observer, || window.take(Instant::now(), plan.server_pid));
    if recorder.is_echo() {
        window.include_late_answers();
    }
    for thread in threads {
        let thread = thread.map_err(|e| LoadError::Plan(format!("a thread could not be started: {e}")))?;
        // A flow that panicked has said so on standard error; what it did is missing here.
        if let Ok(outcome) = thread.join() {
            recorder.enter(outcome);
        }
    }
    let generator = recorder.busiest;
    let mut report = recorder.report();
    report.interrupted = interrupted.load(Relaxed);
    (report.cpu_user_s, report.cpu_system_s) = window.cpu_s;
    report.server_cpu_s = window.server_cpu_s;
    let udp = report.udp.clone().unwrap_or_default();
    let evidence = Evidence {
        generator,
        server: window.server,
        is_remote: is_remote(&plan.target.into()),
        events_per_wake_up: udp.received as f64 / udp.receives.max(1) as f64,
        ..Evidence::default()
    };
    report.verdict = Some(assess(&report, evidence));
    observer(RunEvent::Done { report: &report });
    Ok(report)
}

/// Brings together what the flows tell.
struct FlowRecorder<'a> {
    plan: &'a UdpPlan,
    begun: Instant,
    /// Seconds that not every flow has reported yet.
    open: BTreeMap<u64, (usize, Slice)>,
    latency_us: Histogram<u64>,
    service_us: Histogram<u64>,
    seconds: Vec<Second>,
    udp: UdpReport,
    /// How long the last flow sent, and received answers to what it sent in time.
    length: Duration,
    late: (u64, Duration),
    answered_late: u64,
    /// Flows that sent something, and those of them that ended because nobody was there.
    flows: (usize, usize),
    scheduled: u64,
    first_error: Option<String>,
    /// The busiest thread of a flow, while it sent. They have ended when the last one is looked at.
    busiest: Option<Share>,
}

impl<'a> FlowRecorder<'a> {
    fn new(plan: &'a UdpPlan, begun: Instant) -> Self {
        Self {
            plan,
            begun,
            open: BTreeMap::new(),
            latency_us: histogram(),
            service_us: histogram(),
            seconds: Vec::new(),
            udp: UdpReport::default(),
            length: Duration::ZERO,
            late: (0, Duration::ZERO),
            answered_late: 0,
            flows: (0, 0),
            scheduled: 0,
            first_error: None,
            busiest: None,
        }
    }

    /// Until every flow has ended. `all_sent` is called once no flow sends any more.
    fn follow(
        &mut self,
        received: &Receiver<FlowEvent>,
        observer: &mut impl FnMut(RunEvent<'_>),
        all_sent: impl FnOnce(),
    ) {
        let (mut sending, mut all_sent) = (self.plan.flows, Some(all_sent));
        while let Ok(event) = received.recv() {
            let FlowEvent::Slice(slice) = event else {
                sending -= 1;
                if let Some(all_sent) = all_sent.take_if(|_| sending == 0) {
                    all_sent();
                }
                continue;
            };
            let number = slice.second;
            let (flows, all) = self.open.entry(number).or_insert_with(|| (0, Slice::new(number)));
            *flows += 1;
            all.add(&slice);
            let whole = *flows == self.plan.flows;
            if whole && let Some((_, slice)) = self.open.remove(&number) {
                self.close(&slice, observer);
            }
        }
        // Not yet called if one panicked.
        if let Some(all_sent) = all_sent {
            all_sent();
        }
        // Flows may end in different seconds.
        for (_, slice) in std::mem::take(&mut self.open).into_values() {
            self.close(&slice, observer);
        }
    }

    fn close(&mut self, slice: &Slice, observer: &mut impl FnMut(RunEvent<'_>)) {
        // All bounds are the same, so nothing can be out of range.
        let _ = self.latency_us.add(&slice.latency_us);
        let _ = self.service_us.add(&slice.service_us);
        let bytes = self.plan.size as u64;
        let second = Second {
            at_s: slice.second as f64 + slice.length.as_secs_f64(),
            length_s: slice.length.as_secs_f64(),
            requests: if self.is_echo() { slice.received } else { slice.sent },
            failed: slice.corrupt,
            late_starts: slice.late,
            in_flight: slice.in_flight,
            bytes_sent: slice.sent * bytes,
            bytes_received: slice.received * bytes,
            latency_us: Latency::of(&slice.latency_us),
        };
        let part = match self.plan.amount {
            Amount::Time(time) => self.begun.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9),
            Amount::Requests(n) => self.seconds.iter().map(|s| s.requests).sum::<u64>() as f64 / n as f64,
        };
        observer(RunEvent::Second {
            second: &second,
            latency_us: &slice.latency_us,
            status: RunStatus::default(),
        });
        observer(RunEvent::Progress { requests: second.requests, part: part.min(1.0) });
        self.seconds.push(second);
    }

    fn is_echo(&self) -> bool {
        matches!(self.plan.expect, Expect::Echo { .. })
    }

    fn enter(&mut self, outcome: FlowResult) {
        self.udp.add(&outcome.counts);
        self.length = self.length.max(outcome.length);
        self.late = (self.late.0 + outcome.late, self.late.1.max(outcome.worst_late));
        self.answered_late += outcome.answered_late;
        let has_sent = outcome.counts.sent + outcome.counts.send_errors > 0;
        self.flows.0 += usize::from(has_sent);
        self.flows.1 += usize::from(outcome.is_deserted);
        self.scheduled += outcome.scheduled;
        self.first_error = self.first_error.take().or(outcome.first_error);
        self.busiest = Share::busiest(self.busiest.into_iter().chain(outcome.share));
    }

    fn report(mut self) -> Report {
        let (plan, echo) = (self.plan, self.is_echo());
        if echo && self.udp.received == 0 {
            self.first_error.get_or_insert_with(|| {
                "no message came back; the target must be a datagram echo server, or add --one-way".into()
            });
        }
        let elapsed_s = self.length.as_secs_f64().max(1e-9);
        let requests = if echo { self.udp.received } else { self.udp.sent };
        self.udp.path = plan.path.name().into();
        self.udp.echo = echo;
        self.udp.sent_per_s = self.udp.sent as f64 / elapsed_s;
        let bytes = plan.size as u64;
        let (bytes_sent, bytes_received) = (self.udp.sent * bytes, self.udp.received * bytes);
        let open_loop = plan.rate.map(|rate_per_s| OpenLoop {
            rate_per_s,
            scheduled: self.scheduled,
            started: self.udp.sent,
            not_started: self.scheduled.saturating_sub(self.udp.sent),
            started_per_s: self.udp.sent_per_s,
            answered_late: self.answered_late,
            late_starts: self.late.0,
            late_wake_ups: self.late.0, // nothing else keeps a message back
            worst_late_us: self.late.1.as_micros() as u64,
            service_us: Latency::of(&self.service_us),
            service_v2: encode(&self.service_us),
            // Only the latest and how many were late are kept of messages.
            delay_us: Latency::default(),
            delay_v2: String::new(),
        });
        Report {
            format: 1,
            protocol: if echo { "udp echo" } else { "udp one way" }.into(),
            target: plan.target.to_string(),
            model: plan.path.name().into(),
            threads: plan.flows,
            connections: plan.flows,
            message_bytes: plan.size,
            attempted: plan.flows as u64,
            connected: plan.flows as u64,
            elapsed_s: self.length.as_secs_f64(),
            requests,
            requests_per_s: requests.saturating_sub(self.answered_late) as f64 / elapsed_s,
            failed: self.udp.corrupt,
            wrong: self.udp.corrupt,
            timed_out: self.udp.lost,
            bytes_sent,
            bytes_received,
            sent_bytes_per_s: bytes_sent as f64 / elapsed_s,
            received_bytes_per_s: bytes_received as f64 / elapsed_s,
            latency_us: Latency::of(&self.latency_us),
            latency_v2: encode(&self.latency_us),
            first_error: self.first_error,
            server_gone_after_s: (self.flows.1 > 0 && self.flows.0 == self.flows.1).then_some(elapsed_s),
            open_loop,
            seconds: self.seconds,
            udp: Some(self.udp),
            ..Report::default()
        }
    }
}
