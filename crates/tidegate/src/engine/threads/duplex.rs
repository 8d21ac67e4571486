//! `blocking`: two threads for each connection; one receives, one sends.
//!
//! # How it waits
//! The receiving thread sleeps in `recv`, shows what came to the session, and wakes the sending thread, which sleeps on
//! a condition and then in `send`. An acceptor sleeps in `poll` on the listener when nobody waits there. This is the
//! blocking server of the book (docs/sources.md).
//!
//! # What it bounds
//! Two threads for each connection: the first limit is the number of threads (`kernel.threads-max`, `kernel.pid_max`,
//! and two memory maps a thread out of `vm.max_map_count`), the next their memory. A connection for which there are no
//! threads, or not the memory to begin with and a reserve beside it, is refused and counted. `threads` and
//! `events_per_wait` have no effect here.
//!
//! # What it costs
//! Two stacks and two kernel stacks (16 KiB each) for each connection, a receive buffer of `buffer_bytes` on the heap,
//! and two thread switches for each request. Connections take 8 sets of counters for each processor in turn (at least
//! 16, at most 256, of 512 bytes), so that threads which run at once seldom write the same cache line.
//!
//! # Where it differs
//! While the sending thread sleeps in `send`, mail and timers of the session wait for it, at most for 200 ms
//! (`SO_SNDTIMEO`). `Peer::thread` is always 0.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use tidegate_os::file::FileRange;
use tidegate_os::socket::{Blocking, More, SENDS_FILES, Stream, local_addr};
use tidegate_os::thread::{self, Headroom, most_threads, share_a_limited_heap};

use super::super::worker::admission::failure;
use super::super::worker::control::ControlThread;
use super::super::worker::queue_writer::{Write, write_next};
use super::super::worker::registry::{Caller, ConnectionRegistry, Order, RegistrySlot};
use super::super::worker::threads::{LEAST_RESERVE, all_or_none};
use super::super::worker::transport::SocketTransport;
use super::super::{Availability, EngineConfig, EngineHandle};
use super::acceptor::{settle, spawn, start_acceptor};
use crate::policy::sends::{GROUP_QUANTUM, MAIL_QUANTUM, SEND_QUANTUM};
use crate::proto::dial::DialRequest;
use crate::proto::queue::SendQueue;
use crate::proto::{Action, Connection, Direction, Event, NextStep, Receive};
use crate::stats::{Counters, Writers};

/// Whether it works here.
pub(in crate::engine) fn probe() -> Availability {
    let room = most_threads().map_or(String::new(), |n| format!(": room for about {} here", n / 2));
    Availability::Available(format!("two threads for each connection{room}"))
}

/// Starts the acceptor and the control; connections bring their own threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    share_a_limited_heap();
    if let Some(listener) = &config.listener {
        listener.set_blocking(Blocking::Never)?;
    }
    let control = ControlThread::new(config.policy.mail_queue);
    let command_queue = control.command_queue.clone();
    // Many writers, because connections share a set; so many sets that those which run at once seldom have the same
    // one.
    let sets = std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(8).clamp(16, 256);
    let registry = ConnectionRegistry::new(config, Counters::sets(sets, Writers::Many));
    let back = registry.clone();
    registry.dials_by(dial);
    let start = |threads: &mut Vec<_>| {
        threads.push(start_acceptor(&registry, Blocking::Waits, begin)?);
        threads.push(spawn(&registry, "control", move || control.run(&back))?);
        Ok(())
    };
    let threads = all_or_none(start, || registry.order_all(Order::Stop))?;
    Ok(registry.handle(command_queue, threads))
}

/// Gives an accepted connection its receiving thread.
fn begin(stream: Stream, peer: Option<SocketAddr>, slot: RegistrySlot) {
    let caller = Caller::Accepted(peer);
    let registry = slot.registry.clone();
    if registry.open() > most_threads().map_or(usize::MAX, |n| n / 2) {
        return no_thread(&registry, caller, no_room());
    }
    let run = move |headroom| serve(stream, slot, Caller::Accepted(peer), headroom);
    if let Err(e) = start_receiver(&registry, run) {
        no_thread(&registry, caller, e);
    }
}

fn no_room() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "no threads or no memory for one more connection")
}

/// Refuses a connection because it can have no threads.
fn no_thread(registry: &ConnectionRegistry, caller: Caller, e: io::Error) {
    registry.counters.no_threads.add(1);
    match caller {
        Caller::Accepted(_) => registry.counters.refused.add(1),
        Caller::Dialled(request) => registry.dial_failed(request, e),
    }
}

/// Makes a connection on a thread that becomes the receiving one.
fn dial(request: DialRequest, slot: RegistrySlot) {
    let registry = slot.registry.clone();
    // The thread takes it, or the code below if the thread did not start.
    let hand = Arc::new(Mutex::new(Some((request, slot))));
    let theirs = hand.clone();
    let thread = start_receiver(&registry, move |headroom| {
        drop(headroom); // others may have it until this one is connected
        if let Some((request, slot)) = take(&theirs) {
            connect_and_serve(request, slot);
        }
    });
    if let Err(e) = thread
        && let Some((request, _slot)) = take(&hand)
    {
        no_thread(&registry, Caller::Dialled(request), e);
    }
}

fn take<T>(hand: &Mutex<Option<T>>) -> Option<T> {
    hand.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// What a connection allocates on its way besides stacks and buffer: session, outbox, mailbox, each maybe a page of its
/// own.
const BEGINNING_BYTES: usize = 128 * 1024;

/// What is kept free for each open connection to grow into, and for all of them at most. With none open nearly nothing
/// has to be left: the heaps of the allocator never give their address space back, and may leave no more than that.
const GROWTH_BYTES: usize = 256 * 1024;
const MOST_RESERVE: usize = 32 << 20;

/// Address space for a connection from its receiving thread until it serves.
fn headroom(registry: &ConnectionRegistry) -> io::Result<Headroom> {
    let policy = registry.policy();
    let stacks = registry.stack_bytes().saturating_mul(2);
    let bytes = stacks.saturating_add(policy.buffer_bytes).saturating_add(BEGINNING_BYTES);
    let reserve = registry.open().saturating_mul(GROWTH_BYTES).clamp(LEAST_RESERVE, MOST_RESERVE);
    Headroom::promise(bytes, reserve)
}

/// Starts the receiving thread of a connection, if there is memory for all that the connection begins with.
fn start_receiver(
    registry: &ConnectionRegistry,
    run: impl FnOnce(Headroom) + Send + 'static,
) -> io::Result<()> {
    let headroom = headroom(registry)?;
    thread::start("tidegate-receive", registry.stack_bytes(), move || run(headroom))
}

fn connect_and_serve(request: DialRequest, slot: RegistrySlot) {
    match connect(&request, &slot) {
        Err(e) => slot.registry.dial_failed(request, e),
        Ok(stream) => match headroom(&slot.registry) {
            Ok(headroom) => serve(stream, slot, Caller::Dialled(request), headroom),
            Err(e) => no_thread(&slot.registry, Caller::Dialled(request), e),
        },
    }
}

fn connect(request: &DialRequest, slot: &RegistrySlot) -> io::Result<Stream> {
    let dial = request.dial();
    let begun = slot.registry.config.transports.dial(&dial.to, dial.source)?;
    match settle(SocketTransport::Plain(begun), request, slot)? {
        SocketTransport::Plain(stream) => stream.set_blocking(Blocking::Waits).map(|()| stream),
        _ => Err(io::ErrorKind::NotConnected.into()), // a plain one stays so
    }
}

/// One connection, shared by its two threads.
struct SharedConnection {
    stream: Stream,
    state: Mutex<DuplexState>,
    /// Wakes the sending thread: there is something to send, mail, or an order.
    sender: Arc<Notify>,
    /// Wakes the receiving thread: the outbox has drained, the connection is over, or mail has come that may end the
    /// work for which it receives nothing.
    receiver: Arc<Notify>,
    /// Held while mail is handed out, so that it is read in the order in which it was sent.
    deliveries: Mutex<()>,
    counters: Arc<Counters>,
    /// Given back after the socket was closed: fields are dropped in order.
    slot: RegistrySlot,
}

struct DuplexState {
    connection: Connection,
    /// The sending thread sleeps at most until then.
    sleeps_until: Option<Instant>,
    /// The sending thread is in `send`, where it may sleep.
    sends: bool,
}

/// Something a thread can sleep on while others ring.
#[derive(Default)]
struct Notify {
    notified: Mutex<bool>,
    condition: Condvar,
}

impl Notify {
    fn notify(&self) {
        *self.notified.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_one();
    }

    /// Sleeps until it was notified, at most for `limit`.
    fn wait(&self, limit: Option<Duration>) {
        let notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notified = match limit {
            Some(limit) => {
                let waited = self.condition.wait_timeout_while(notified, limit, |notified| !*notified);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self
                .condition
                .wait_while(notified, |notified| !*notified)
                .unwrap_or_else(PoisonError::into_inner),
        };
        *notified = false;
    }
}

/// Those who look for mail: the sending thread, and the receiving one while that sends.
struct ThreadWakers {
    sender: Arc<Notify>,
    receiver: Arc<Notify>,
}

impl Wake for ThreadWakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.sender.notify();
        self.receiver.notify();
    }
}

/// The receiving thread; starts the sending one.
fn serve(stream: Stream, slot: RegistrySlot, mut caller: Caller, headroom: Headroom) {
    let registry = &slot.registry;
    let Ok(mut buffer) = new_buffer(registry.policy().buffer_bytes) else {
        return no_thread(registry, caller, no_room());
    };
    let counters = registry.counters_in_turn(&slot);
    let Some(session) = registry.open_session(&mut caller, || local_addr(&stream), 0, &counters) else {
        return;
    };
    // Without it a send could sleep for ever; the kernel refuses the option only for a socket that is gone.
    let _ = stream.set_send_timeout(Some(SEND_QUANTUM));
    let (sender, receiver) = (Arc::new(Notify::default()), Arc::new(Notify::default()));
    slot.inbox
        .wakes(&Waker::from(Arc::new(ThreadWakers { sender: sender.clone(), receiver: receiver.clone() })));
    let shared = Arc::new(SharedConnection {
        stream,
        state: Mutex::new(DuplexState {
            connection: Connection::new(session, caller.origin(), Instant::now()),
            sleeps_until: None,
            sends: false,
        }),
        sender,
        receiver,
        deliveries: Mutex::default(),
        counters,
        slot,
    });
    let own = shared.clone();
    let registry = &shared.slot.registry;
    let state = shared.lock(); // the other thread may have an order for it, and waits until it is open
    if let Err(e) = thread::start("tidegate-send", registry.stack_bytes(), move || own.send_all()) {
        return no_thread(registry, caller, e);
    }
    drop(headroom); // from here on it is mapped
    caller.served();
    shared.dispatch_to(state, Event::Opened);
    shared.receive_all(&mut buffer);
}

/// A receive buffer, or an error where `vec!` would end the process.
fn new_buffer(bytes: usize) -> Result<Vec<u8>, std::collections::TryReserveError> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes)?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

impl Write for &Stream {
    fn sends_files(&self) -> bool {
        SENDS_FILES
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        self.send_vectored(slices, more)
    }

    fn write_file(&mut self, range: &FileRange, more: More) -> io::Result<usize> {
        self.send_file(range, more)
    }
}

impl SharedConnection {
    fn lock(&self) -> MutexGuard<'_, DuplexState> {
        // A session that panicked has ended its thread; the other one must still be able to end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the connection something, and wakes the threads that have to know.
    fn dispatch(&self, event: Event<'_>) -> Action {
        self.dispatch_to(self.lock(), event)
    }

    fn dispatch_to(&self, mut state: MutexGuard<'_, DuplexState>, event: Event<'_>) -> Action {
        let policy = &*self.slot.registry.policy();
        let lacks_memory = matches!(event, Event::OutOfMemory(_));
        let context = self.slot.context(policy, &self.counters);
        let before = state.connection.action();
        let action = state.connection.handle(event, &context);
        let sooner = match (state.connection.deadline(policy), state.sleeps_until) {
            (Some(deadline), Some(until)) => deadline < until,
            (deadline, _) => deadline.is_some(),
        };
        drop(state);
        if action.send || action.then != NextStep::Nothing || sooner {
            self.sender.notify();
        }
        if action.receive != before.receive || action.then != NextStep::Nothing {
            self.receiver.notify();
        }
        if lacks_memory {
            self.slot.registry.relieve();
        }
        action
    }

    fn receive_all(&self, buffer: &mut [u8]) {
        while self.wait_until_wanted() {
            let event = match self.stream.receive(buffer) {
                Ok(0) if self.is_broken() => Event::Failed(io::ErrorKind::ConnectionReset),
                Ok(0) => Event::PeerEnded,
                Ok(n) => Event::Received(&buffer[..n]),
                // The second: a socket in a sockmap, woken for something else than input (docs/fastpath.md).
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                    continue;
                }
                Err(e) => failure(&e, Direction::Receive),
            };
            self.counters.wake_ups.add(1);
            self.counters.events.add(1);
            self.dispatch(event);
        }
    }

    /// Whether what was received as the end is none: the sending thread may have received the error of a reset.
    fn is_broken(&self) -> bool {
        // Locked for the question too: in between, the sending thread could end its side, and no send is possible then.
        let state = self.lock();
        state.sends && self.stream.is_broken()
    }

    /// Sleeps until the connection wants input; `false` when it is over.
    fn wait_until_wanted(&self) -> bool {
        loop {
            let state = self.lock();
            let action = state.connection.action();
            if matches!(action.then, NextStep::Close | NextStep::Reset) {
                return false;
            }
            if action.receive == Receive::Post {
                return true;
            }
            // The other thread may sleep in `send`, and what this one waits for may be in the mail.
            let looks = state.sends && state.connection.waits_for_work();
            drop(state);
            if !(looks && self.take_delivery()) {
                self.receiver.wait(None);
            }
        }
    }

    fn send_all(&self) {
        // What this thread sends from while it does not have the lock.
        let mut taken = SendQueue::default();
        loop {
            let has_mail = self.take_some_deliveries(&taken);
            let mut state = self.lock();
            state.sends = false;
            // Also of one that has something to send all the time.
            if state.connection.deadline(&self.slot.registry.policy()).is_some_and(|at| at <= Instant::now())
            {
                drop(state);
                self.dispatch(Event::Deadline);
                state = self.lock();
            }
            let (action, is_short) = (state.connection.action(), state.connection.is_short(Direction::Send));
            if matches!(action.then, NextStep::Close | NextStep::Reset) {
                drop(state);
                return self.end(action.then);
            }
            if action.then == NextStep::FinishSending {
                drop(state);
                let event = match self.stream.shutdown_send() {
                    Ok(()) => Event::SendFinished,
                    Err(e) => failure(&e, Direction::Send),
                };
                self.dispatch(event);
            } else if !is_short && (action.send || !taken.is_empty()) {
                if taken.is_empty() {
                    state.connection.queue_mut().take_all(&mut taken);
                }
                state.sends = true;
                let waits = state.connection.waits_for_work();
                drop(state);
                if waits {
                    self.receiver.notify(); // mail that has come before is its to look at, too
                }
                self.send(&mut taken);
            } else if has_mail && !is_short {
                drop(state);
                std::thread::yield_now(); // the receiving thread first
            } else {
                let deadline = state.connection.deadline(&self.slot.registry.policy());
                state.sleeps_until = deadline;
                drop(state);
                self.sender.wait(deadline.map(|at| at.saturating_duration_since(Instant::now())));
            }
        }
    }

    /// Orders, and mail for which there is room, as much as has its turn: what it brings about goes out before more is
    /// read, or a peer that reads all the time would be far behind in the outbox only. A long queue is read in any
    /// case, so that who really takes too little is found out. Whether there is more.
    fn take_some_deliveries(&self, taken: &SendQueue) -> bool {
        for _ in 0..MAIL_QUANTUM {
            let Some(waiting) = self.slot.inbox.waiting() else { return false };
            if waiting < GROUP_QUANTUM && !self.has_room(taken) {
                return true;
            }
            self.take_delivery();
        }
        self.slot.inbox.has_delivery()
    }

    /// Whether the outbox is low, or nothing of it can be sent.
    fn has_room(&self, taken: &SendQueue) -> bool {
        let state = self.lock();
        let sends = state.connection.action().send || !taken.is_empty();
        !sends || state.connection.queue().len() <= self.slot.registry.policy().outbox.low
    }

    /// Hands out one piece of mail, or an order. Whether there was one.
    fn take_delivery(&self) -> bool {
        let _in_order = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.inbox.take().map(|event| self.dispatch(event)).is_some()
    }

    /// Sends once from what was taken.
    fn send(&self, taken: &mut SendQueue) {
        let event = match write_next(&self.stream, taken, NextStep::Nothing) {
            Ok(written) => {
                taken.confirm_and_free(written.bytes);
                Event::Sent(written.bytes)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                // The peer takes nothing, and the session is to find that out; bounded, for it may mail itself.
                let _ = (0..GROUP_QUANTUM).all(|_| self.take_delivery());
                Event::Deadline // if one is due: the core knows
            }
            Err(e) => failure(&e, Direction::Send),
        };
        self.dispatch(event);
    }

    /// Lets the receiving thread go; the socket is closed when both have let go of it.
    fn end(&self, then: NextStep) {
        if then == NextStep::Reset {
            let _ = self.stream.reset_on_close(); // it is closed either way
        }
        self.receiver.notify();
        // Wakes the other thread from its receive without telling the peer anything. It may have ended already.
        let _ = self.stream.shutdown_receive();
    }
}
