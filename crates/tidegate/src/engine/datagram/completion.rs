//! The completion models for datagrams: one loop over one socket, whose receives stay posted and whose sends are not
//! waited for.
//!
//! What was received is held back while half of the replies that the policy allows are with the kernel. Receive buffers
//! are bounded, and those that are held are not posted: so overload waits, and is dropped, in the kernel.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;
use tidegate_os::datagram::{Arrival, is_report};
use tidegate_os::waker::Waker;

use super::state::{DatagramState, Drain};
use super::{DatagramWorker, FAILED_RECEIVE_PAUSE, StopOrder, StopSignal};
use crate::engine::worker::Ready;
use crate::engine::worker::threads::rest_after_failed_wait;
use crate::policy::datagram::ReplyLimits;
use crate::policy::wait::spins;
use crate::proto::datagram::ReplyRun;
use crate::service::DatagramService;

/// A queue between a thread and the kernel, for one datagram socket.
pub(in crate::engine) trait DatagramDriver: Sized {
    /// A datagram that was received, in one of the driver's buffers.
    type Buffer;

    /// For the calling thread. From now on the waker ends a wait.
    fn open(worker: &DatagramWorker, waker: &Arc<Waker>) -> io::Result<Self>;
    /// Posts what receives there are to be and have a buffer.
    fn receive(&mut self);
    /// Ends the receives, where that is needed; each still completes, and none is posted from now on that would take
    /// what arrives later.
    fn stop(&mut self, order: StopOrder);
    /// Whether receives were ended that have not completed yet.
    fn is_ending(&self) -> bool;
    /// Whether what has arrived at the socket completes without waiting.
    fn shows_all(&self) -> bool;
    /// Sends a run of replies.
    fn send(&mut self, bytes: Bytes, run: &ReplyRun, key: u64);
    /// Hands over what was asked for and waits until something has completed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    /// The next completion that is there.
    ///
    /// # Errors
    /// The system lacks what the driver needs.
    fn next(&mut self) -> io::Result<Option<DatagramCompletion<Self::Buffer>>>;
    /// What was received.
    fn arrival<'a>(&'a self, buffer: &'a Self::Buffer) -> Option<Arrival<'a>>;
    /// Takes a buffer back.
    fn recycle(&mut self, buffer: Self::Buffer);
}

/// What has completed.
pub(in crate::engine) enum DatagramCompletion<B> {
    Received(io::Result<B>),
    /// A receive that was ended, or has to be posted again.
    Ended,
    Sent(u64, io::Result<()>),
    Woken,
}

struct DatagramLoop<D: DatagramDriver> {
    driver: D,
    loop_state: DatagramState,
    limits: ReplyLimits,
    stop_signal: Arc<StopSignal>,
    /// Received and not shown yet.
    held: VecDeque<D::Buffer>,
    /// Runs that the kernel has, under the keys of their sends.
    in_flight: Slab<ReplyRun>,
    datagrams_in_flight: usize,
    bytes_in_flight: usize,
    /// When to receive again, if it has to rest.
    rests: Option<Instant>,
    drain: Option<Drain>,
    /// What still waits in the socket is for another process.
    leaving: bool,
}

pub(in crate::engine) fn run<D: DatagramDriver>(
    service: Box<dyn DatagramService>,
    worker: DatagramWorker,
    waker: Arc<Waker>,
    ready: Ready,
) {
    let Some(mut state) = ready.report(DatagramLoop::<D>::open(service, &worker, &waker)) else { return };
    state.serve(&worker);
}

impl<D: DatagramDriver> DatagramLoop<D> {
    /// Posts receives, which fail at once where the kernel has not what they need.
    fn open(
        service: Box<dyn DatagramService>,
        worker: &DatagramWorker,
        waker: &Arc<Waker>,
    ) -> io::Result<Self> {
        let mut state = Self::new(D::open(worker, waker)?, service, worker);
        state.receive_again();
        state.driver.wait(Some(Duration::ZERO))?;
        state.take()?;
        Ok(state)
    }

    fn new(driver: D, service: Box<dyn DatagramService>, worker: &DatagramWorker) -> Self {
        Self {
            driver,
            loop_state: DatagramState::new(service, worker),
            limits: worker.policy.reply_limits(worker.path),
            stop_signal: worker.stop_signal.clone(),
            held: VecDeque::new(),
            in_flight: Slab::new(),
            datagrams_in_flight: 0,
            bytes_in_flight: 0,
            rests: None,
            drain: None,
            leaving: false,
        }
    }

    fn serve(&mut self, worker: &DatagramWorker) {
        let mut active = Instant::now();
        loop {
            self.answer();
            self.receive_again();
            let now = Instant::now();
            if self.drain.is_none()
                && let Some(order) = self.stop_signal.order()
            {
                let queued = worker.socket.receive_buffer().unwrap_or(0);
                self.drain = Some(Drain::begin(&worker.policy, queued, now));
                self.leaving = order == StopOrder::Leave;
                self.driver.stop(order);
            }
            let idle = spins(worker.policy.wait, active, now).then_some(Duration::ZERO);
            let waited = self.driver.wait(self.timeout(idle, now));
            let taken = self.take(); // also after a failed wait: there may be no room for more before
            let (events, arrivals) = match waited.and(taken) {
                Ok(taken) => taken,
                Err(e) => {
                    rest_after_failed_wait("datagrams", &e);
                    // Not that nothing has come, only that time is over, ends a stop now.
                    if self.is_out_of_time() {
                        return;
                    }
                    continue;
                }
            };
            if events > 0 {
                active = Instant::now();
                self.loop_state.counters.wake_ups.add(1);
            }
            if self.is_over(arrivals) {
                return;
            }
        }
    }

    /// Takes what has completed: how many completions, and how many of them arrivals.
    fn take(&mut self) -> io::Result<(usize, usize)> {
        let (mut events, mut arrivals) = (0, 0);
        while let Some(completion) = self.driver.next()? {
            events += 1;
            match completion {
                DatagramCompletion::Received(received) => arrivals += self.received(received),
                DatagramCompletion::Sent(key, outcome) => self.sent(key, outcome),
                DatagramCompletion::Ended | DatagramCompletion::Woken => {}
            }
        }
        Ok((events, arrivals))
    }

    /// How long to wait; `idle` if there is nothing to wait for but datagrams.
    fn timeout(&self, idle: Option<Duration>, now: Instant) -> Option<Duration> {
        let left = |at: Instant| at.saturating_duration_since(now);
        match (&self.drain, self.rests) {
            (Some(drain), Some(at)) => Some(left(at.min(drain.deadline))),
            // What was queued before the stop comes without waiting; then only sends are waited for.
            (Some(_), None) if self.in_flight.is_empty() && !self.driver.is_ending() => Some(Duration::ZERO),
            (Some(drain), None) => Some(left(drain.deadline)),
            (None, Some(at)) => Some(left(at)),
            (None, None) => idle,
        }
    }

    /// Takes what a receive brought; how many arrivals that were.
    fn received(&mut self, received: io::Result<D::Buffer>) -> usize {
        match received {
            // What comes after a stop, and more than was queued then, is too late.
            Ok(buffer) if !self.leaving && self.drain.as_ref().is_some_and(Drain::is_over) => {
                self.driver.recycle(buffer);
                0
            }
            Ok(buffer) => {
                self.loop_state.counters.receives.add(1);
                self.held.push_back(buffer);
                1
            }
            Err(e) => {
                self.loop_state.counters.receive_errors.add(1);
                // Taking a report about a peer has cleared it.
                if !is_report(&e) {
                    self.rest();
                }
                0
            }
        }
    }

    fn sent(&mut self, key: u64, outcome: io::Result<()>) {
        let Some(run) = self.in_flight.try_remove(key as usize) else { return };
        self.datagrams_in_flight -= run.datagrams;
        self.bytes_in_flight -= run.length;
        match outcome {
            Ok(()) => {
                self.loop_state.counters.sends.add(1);
                self.loop_state.sent(&run);
            }
            Err(e) => self.loop_state.refused(&run, &e),
        }
    }

    /// Shows what is held, as far as there is room for replies, and hands those over.
    fn answer(&mut self) {
        while !self.limits.wants_out(self.datagrams_in_flight, self.bytes_in_flight) {
            let Some(buffer) = self.held.pop_front() else { break };
            match self.driver.arrival(&buffer).map(|arrival| (arrival.from, arrival)) {
                Some((Some(from), arrival)) => self.loop_state.show(from, &arrival),
                Some((None, arrival)) if arrival.truncated => self.loop_state.counters.truncated.add(1),
                _ => {
                    self.loop_state.counters.receive_errors.add(1);
                    self.rest();
                }
            }
            self.driver.recycle(buffer);
            if self.loop_state.replies.wants_out() {
                self.hand_over();
            }
        }
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if self.loop_state.replies.is_empty() {
            return;
        }
        let (block, runs) = self.loop_state.replies.take();
        let block = Bytes::from(block);
        for run in runs {
            self.datagrams_in_flight += run.datagrams;
            self.bytes_in_flight += run.length;
            let key = self.in_flight.insert(run) as u64;
            self.driver.send(block.slice(run.range()), &run, key);
        }
    }

    /// A receive has failed, and the next one may at once: none is posted for a while.
    fn rest(&mut self) {
        self.rests = Some(Instant::now() + FAILED_RECEIVE_PAUSE);
    }

    /// Posts receives again, unless they rest.
    fn receive_again(&mut self) {
        if self.rests.is_some_and(|at| Instant::now() >= at) {
            self.rests = None;
        }
        if self.rests.is_none() {
            self.driver.receive();
        }
    }

    /// Whether a stop has no time left: what is in flight is given up.
    fn is_out_of_time(&self) -> bool {
        let is_late = self.drain.as_ref().is_some_and(|drain| Instant::now() >= drain.deadline);
        if is_late {
            self.loop_state.counters.abandoned.add(self.datagrams_in_flight as u64);
        }
        is_late
    }

    /// Whether a stop has nothing left to do, or no time.
    fn is_over(&mut self, arrivals: usize) -> bool {
        if self.is_out_of_time() {
            return true;
        }
        let Some(drain) = &mut self.drain else { return false };
        drain.count(arrivals);
        // What a receive took before it was ended is still served: nobody else has it.
        let quiet = match self.leaving {
            true => !self.driver.is_ending(),
            false => arrivals == 0 && self.driver.shows_all() || drain.is_over(),
        };
        quiet && self.held.is_empty() && self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::num::NonZeroUsize;

    use super::*;
    use crate::engine::datagram::kit;
    use crate::policy::DatagramPolicy;
    use crate::proto::datagram::Replies;
    use crate::stats::DatagramStats;

    /// A kernel that completes what a test says.
    #[derive(Default)]
    struct Scripted {
        completions: VecDeque<DatagramCompletion<Vec<u8>>>,
        /// Keys of the sends that it has.
        sends: Vec<u64>,
        posts: usize,
        recycled: usize,
        stopped: Option<StopOrder>,
        ending: bool,
        /// Waits that are still to fail.
        failures: usize,
    }

    impl DatagramDriver for Scripted {
        type Buffer = Vec<u8>;

        fn open(_: &DatagramWorker, _: &Arc<Waker>) -> io::Result<Self> {
            Ok(Self::default())
        }

        fn receive(&mut self) {
            self.posts += 1;
        }

        fn stop(&mut self, order: StopOrder) {
            self.stopped = Some(order);
        }

        fn is_ending(&self) -> bool {
            self.ending
        }

        fn shows_all(&self) -> bool {
            self.stopped.is_some() && !self.ending
        }

        fn send(&mut self, _: Bytes, _: &ReplyRun, key: u64) {
            self.sends.push(key);
        }

        fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
            match self.failures.checked_sub(1) {
                Some(left) => {
                    self.failures = left;
                    Err(io::ErrorKind::OutOfMemory.into())
                }
                None => {
                    let sent = std::mem::take(&mut self.sends);
                    self.completions
                        .extend(sent.into_iter().map(|key| DatagramCompletion::Sent(key, Ok(()))));
                    Ok(())
                }
            }
        }

        fn next(&mut self) -> io::Result<Option<DatagramCompletion<Vec<u8>>>> {
            Ok(self.completions.pop_front())
        }

        fn arrival<'a>(&'a self, bytes: &'a Vec<u8>) -> Option<Arrival<'a>> {
            // One that is too long comes without its sender.
            let truncated = bytes.len() > 8;
            let from = (!truncated).then_some(PEER);
            Some(Arrival { from, bytes, segment: bytes.len(), truncated })
        }

        fn recycle(&mut self, _: Vec<u8>) {
            self.recycled += 1;
        }
    }

    const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7);

    struct Echo;

    impl DatagramService for Echo {
        fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
            out.send(from, bytes);
        }
    }

    fn worker() -> DatagramWorker {
        let threads = NonZeroUsize::new(1);
        kit::worker(DatagramPolicy { replies: 4, threads, ..DatagramPolicy::default() })
    }

    /// A loop that lets four replies be with the kernel, of which two hold the service back.
    fn state() -> DatagramLoop<Scripted> {
        DatagramLoop::new(Scripted::default(), Box::new(Echo), &worker())
    }

    fn stats(state: &DatagramLoop<Scripted>) -> DatagramStats {
        DatagramStats::sum(std::slice::from_ref(&state.loop_state.counters))
    }

    /// Lets completions come, and does what follows from them.
    fn turn(state: &mut DatagramLoop<Scripted>, completions: Vec<DatagramCompletion<Vec<u8>>>) -> usize {
        state.driver.completions.extend(completions);
        let (_, arrivals) = state.take().unwrap();
        state.answer();
        state.receive_again();
        arrivals
    }

    fn arrivals(count: usize) -> Vec<DatagramCompletion<Vec<u8>>> {
        (0..count).map(|_| DatagramCompletion::Received(Ok(b"datagram".to_vec()))).collect()
    }

    #[test]
    fn nothing_is_shown_while_half_of_the_replies_are_with_the_kernel() {
        let mut state = state();
        assert_eq!(turn(&mut state, arrivals(5)), 5);
        assert_eq!((stats(&state).datagrams_in, state.held.len(), state.driver.recycled), (2, 3, 2));
        assert_eq!(state.driver.sends.len(), 2);
        let first = state.driver.sends.remove(0);
        turn(&mut state, vec![DatagramCompletion::Sent(first, Ok(()))]);
        assert_eq!((stats(&state).datagrams_in, state.held.len()), (4, 1)); // and no more than four are queued
        // The kernel never reports a send twice; were it to, nobody would count it.
        while let Some(key) = state.driver.sends.pop() {
            turn(
                &mut state,
                vec![DatagramCompletion::Sent(key, Ok(())), DatagramCompletion::Sent(1 << 40, Ok(()))],
            );
        }
        let stats = stats(&state);
        assert_eq!((stats.datagrams_in, stats.datagrams_out, stats.sends), (5, 5, 5));
        assert_eq!((state.datagrams_in_flight, state.bytes_in_flight, state.driver.recycled), (0, 0, 5));
    }

    #[test]
    fn a_reply_that_the_kernel_refuses_is_counted_and_not_tried_again() {
        let mut state = state();
        turn(&mut state, arrivals(2));
        let refusals = [io::ErrorKind::OutOfMemory, io::ErrorKind::NetworkUnreachable];
        let sends = std::mem::take(&mut state.driver.sends);
        let refused =
            sends.into_iter().zip(refusals).map(|(key, e)| DatagramCompletion::Sent(key, Err(e.into())));
        turn(&mut state, refused.collect());
        let stats = stats(&state);
        assert_eq!((stats.no_buffers, stats.send_errors, stats.datagrams_out), (1, 1, 0));
        assert!(state.driver.sends.is_empty() && state.in_flight.is_empty());
    }

    #[test]
    fn a_receive_that_fails_rests_unless_it_brought_a_report_about_a_peer() {
        let report =
            if cfg!(unix) { io::ErrorKind::ConnectionRefused } else { io::ErrorKind::ConnectionReset };
        let mut state = state();
        turn(&mut state, vec![DatagramCompletion::Received(Err(report.into()))]);
        assert_eq!((stats(&state).receive_errors, state.driver.posts, state.rests), (1, 1, None));
        turn(&mut state, vec![DatagramCompletion::Received(Err(io::ErrorKind::OutOfMemory.into()))]);
        assert_eq!((stats(&state).receive_errors, state.driver.posts), (2, 1));
        let rests = state.rests.expect("a pause");
        assert!(
            state.timeout(None, rests - FAILED_RECEIVE_PAUSE) == Some(FAILED_RECEIVE_PAUSE),
            "it waits until the pause is over"
        );
        std::thread::sleep(FAILED_RECEIVE_PAUSE);
        turn(&mut state, vec![DatagramCompletion::Ended]);
        assert_eq!((state.driver.posts, state.rests), (2, None));
    }

    #[test]
    fn a_loop_that_could_not_wait_serves_on() {
        for stops in [false, true] {
            let worker = worker();
            let failures = 2;
            let driver = Scripted { failures, completions: arrivals(1).into(), ..Scripted::default() };
            let mut state = DatagramLoop::new(driver, Box::new(Echo), &worker);
            let stop = || StopSignal::ask(std::slice::from_ref(&worker.stop_signal), StopOrder::Serve);
            let start = Instant::now();
            std::thread::scope(|scope| {
                if stops {
                    stop();
                } else {
                    scope.spawn(|| {
                        std::thread::sleep(10 * FAILED_RECEIVE_PAUSE);
                        stop();
                    });
                }
                state.serve(&worker);
            });
            let stats = stats(&state);
            assert_eq!((stats.datagrams_in, stats.datagrams_out, state.driver.failures), (1, 1, 0));
            assert!(start.elapsed() >= 2 * FAILED_RECEIVE_PAUSE, "{:?}", start.elapsed());
        }
    }

    #[test]
    fn one_that_is_too_long_counts_as_that_also_where_its_sender_is_unknown() {
        let mut state = state();
        turn(&mut state, vec![DatagramCompletion::Received(Ok(vec![0; 9]))]);
        let stats = stats(&state);
        assert_eq!((stats.truncated, stats.receive_errors, stats.datagrams_in), (1, 0, 0));
    }

    #[test]
    fn a_stop_waits_for_receives_that_were_ended_and_for_sends_and_not_past_its_deadline() {
        for order in [StopOrder::Serve, StopOrder::Leave] {
            let mut state = state();
            turn(&mut state, arrivals(1));
            let now = Instant::now();
            state.drain = Some(Drain::begin(&state.loop_state.policy, 1 << 16, now));
            state.leaving = order == StopOrder::Leave;
            state.driver.stop(order);
            state.driver.ending = true;
            assert!(!state.is_over(0) && state.timeout(None, now) > Some(Duration::ZERO), "{order:?}");
            // One more came with a receive that was ended too late.
            assert_eq!(turn(&mut state, arrivals(1)), 1);
            state.driver.ending = false;
            assert!(!state.is_over(1) && !state.is_over(0), "{order:?}: replies are on their way");
            for key in std::mem::take(&mut state.driver.sends) {
                turn(&mut state, vec![DatagramCompletion::Sent(key, Ok(()))]);
            }
            assert!(state.timeout(None, now) == Some(Duration::ZERO) && state.is_over(0), "{order:?}");
            assert_eq!(stats(&state).datagrams_out, 2);
            turn(&mut state, arrivals(1));
            assert!(!state.is_over(1));
            if let Some(drain) = &mut state.drain {
                drain.deadline = now;
            }
            assert!(state.is_over(0) && stats(&state).abandoned == 1, "{order:?}");
        }
    }
}
