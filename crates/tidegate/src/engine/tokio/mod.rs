//! `tokio`: the library's model: a task for each connection on the library's own threads.
//!
//! # How it waits
//! tokio's reactor (`epoll` on Linux) wakes the connection's task, and one of the runtime's worker threads runs it.
//!
//! # What it bounds
//! `threads` worker threads; with one, the runtime is the single-threaded one. A task receives into a buffer of the
//! worker thread, so an idle connection pins none.
//!
//! # What it costs
//! An allocation for the task and its timer, scheduling between worker threads, and the library's own budget that makes
//! tasks yield. A connection of the fast path has one descriptor more: the reactor owns what it watches.
//!
//! # Where it differs
//! A connection may move from thread to thread between events; `Peer::thread` is always 0. Batches of events belong
//! to the library and are not counted; wake-ups are runs of a task.

#[cfg(all(test, unix, not(tidegate_loom)))]
mod tests;

use std::cell::{OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use ::tokio::net::{TcpListener, TcpStream};
use ::tokio::runtime::{Builder, Handle, Runtime};
use ::tokio::sync::oneshot;
use ::tokio::time::{Sleep, sleep, sleep_until};
use tidegate_os::descriptor::AsFd;
use tidegate_os::file::FileRange;
use tidegate_os::socket::{
    Blocking, Listener, More, SENDS_FILES, Stream, confirm_end, local_addr, reset_on_close, send_file,
    send_vectored,
};

use super::platform::local;
use super::worker::admission::failure;
use super::worker::control::ControlThread;
use super::worker::queue_writer::{Write, write_next};
use super::worker::registry::{AcceptStep, Caller, ConnectionRegistry, RegistrySlot};
use super::worker::threads::{self, STACK_BYTES};
use super::{Availability, EngineConfig, EngineHandle, Model};
use crate::fastpath::{self, Begun, HandshakeOutcome, Rendezvous, Transports};
use crate::policy::accept::Admission;
use crate::policy::sends::MAIL_QUANTUM;
use crate::proto::dial::DialRequest;
use crate::proto::{Connection, Direction, Event, NextStep, Receive};
use crate::service::Dial;
use crate::stats::{Counters, Writers};

/// Whether it works here.
pub(in crate::engine) fn probe() -> Availability {
    Availability::Available("tokio 1, multi-threaded from two threads on".into())
}

/// Starts the runtime, and the control that keeps it until all connections are gone.
pub(in crate::engine) fn start(mut config: EngineConfig) -> io::Result<EngineHandle> {
    let (done, until_done) = oneshot::channel::<()>();
    let threads = config.threads(Model::Tokio);
    let (driver, runtime) = start_runtime(threads, config.stack_bytes(), until_done)?;
    let front = {
        let _inside = runtime.enter();
        config
            .listener
            .take()
            .map(|listener| TokioListener::of(&listener).map(|front| (front, listener)))
            .transpose()?
    };
    let control = ControlThread::new(config.policy.mail_queue);
    let command_queue = control.command_queue.clone();
    let registry = ConnectionRegistry::new(config, Counters::sets(threads, Writers::One));
    if let Some((front, same)) = front {
        let (registry, duty) = (registry.clone(), registry.begin_accepting());
        runtime.spawn(async move {
            match front {
                TokioListener::Tcp(listener) => accept_all(registry, listener, same).await,
                TokioListener::Unix(listener) => accept_all(registry, listener, same).await,
            }
            drop(duty);
        });
    }
    registry.dials_by(move |request, slot| _ = runtime.spawn(dial(request, slot)));
    let mut started = registry.handle(command_queue, vec![driver]);
    started.threads.push(spawn("control", STACK_BYTES, move || {
        control.run(&registry);
        drop(done);
    })?);
    Ok(started)
}

fn spawn(
    name: &str,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    threads::spawn(format!("tidegate-{name}"), stack_bytes, run)
}

/// Builds the runtime on the thread that drives it until `until_done`: the single-threaded one runs only while somebody
/// does.
fn start_runtime(
    threads: usize,
    stack_bytes: usize,
    until_done: oneshot::Receiver<()>,
) -> io::Result<(std::thread::JoinHandle<()>, Handle)> {
    if threads > 1 {
        // If the library gets fewer threads than it wants, it panics, and then waits for ever for those that it got.
        threads::try_out(threads, stack_bytes)?;
    }
    let (sender, built) = mpsc::channel();
    let driver = spawn("runtime", stack_bytes, move || match build(threads, stack_bytes) {
        Ok(runtime) => {
            let _ = sender.send(Ok(runtime.handle().clone()));
            let _ = runtime.block_on(until_done);
        }
        Err(e) => _ = sender.send(Err(e)),
    })?;
    match built.recv_timeout(START_LIMIT) {
        Ok(runtime) => runtime.map(|runtime| (driver, runtime)),
        // Somebody else took a thread after the trial.
        Err(_) => {
            Err(io::Error::other(format!("tokio did not get its {threads} threads; use fewer (--threads)")))
        }
    }
}

/// How long the runtime may take to start.
const START_LIMIT: Duration = Duration::from_secs(10);

fn build(threads: usize, stack_bytes: usize) -> io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads).thread_stack_size(stack_bytes).thread_name("tidegate-tokio");
    }
    builder.enable_all().build()
}

/// A listener as the library has it.
enum TokioListener {
    Tcp(TcpListener),
    Unix(local::LocalListener),
}

impl TokioListener {
    fn of(listener: &Listener) -> io::Result<Self> {
        listener.set_blocking(Blocking::Never)?;
        Ok(if listener.local_addr()?.is_unix() {
            Self::Unix(local::listen(listener)?)
        } else {
            Self::Tcp(TcpListener::from_std(listener.to_std()?)?)
        })
    }
}

/// What an accept has brought: a connection, and the address of its peer if that is known.
pub(super) type AcceptResult<S> = io::Result<(S, Option<SocketAddr>)>;

/// What the library's listeners have in common.
pub(super) trait AsyncListener {
    type Stream: Socket;
    fn poll_accept(&self, task: &mut TaskContext<'_>) -> Poll<AcceptResult<Self::Stream>>;
}

impl AsyncListener for TcpListener {
    type Stream = TcpStream;

    fn poll_accept(&self, task: &mut TaskContext<'_>) -> Poll<AcceptResult<TcpStream>> {
        self.poll_accept(task).map_ok(|(stream, peer)| (stream, Some(peer)))
    }
}

/// What the library's streams have in common.
pub(super) trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send + Sized + 'static {
    /// Whether it goes through shared memory, and not through the socket that it has.
    const IS_SHARED: bool = false;
    /// One that does not wait.
    fn adopt(stream: Stream) -> io::Result<Self>;
    fn poll_write_ready(&self, task: &mut TaskContext<'_>) -> Poll<io::Result<()>>;
    fn try_write_io<R>(&self, f: impl FnOnce() -> io::Result<R>) -> io::Result<R>;
    /// Makes the coming close a reset.
    fn reset_on_close(&self) -> io::Result<()> {
        reset_on_close(self)
    }
    /// Gives an accepted connection its task: through shared memory if it has left an offer.
    fn begin_accepted(self, peer: Option<SocketAddr>, slot: RegistrySlot) {
        begin(self, Caller::Accepted(peer), slot);
    }
    /// Answers its offer, if it has left one, and closes it.
    fn turn_away(self, peer: Option<SocketAddr>, rendezvous: Option<&Rendezvous>) {
        let _ = (peer, rendezvous);
    }
}

impl Socket for TcpStream {
    fn adopt(stream: Stream) -> io::Result<Self> {
        Self::from_std(stream.into_std())
    }

    fn poll_write_ready(&self, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(task)
    }

    fn try_write_io<R>(&self, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.try_io(Interest::WRITABLE, f)
    }

    fn begin_accepted(self, peer: Option<SocketAddr>, slot: RegistrySlot) {
        let registry = slot.registry.clone();
        let (Some(rendezvous), Some(addr)) = (registry.config.rendezvous.as_deref(), peer) else {
            return begin(self, Caller::Accepted(peer), slot);
        };
        match local::claim(self, rendezvous, addr) {
            Ok(Ok(shared)) => begin(shared, Caller::Accepted(peer), slot),
            Ok(Err(stream)) => begin(stream, Caller::Accepted(peer), slot),
            Err(e) => {
                tracing::warn!(error = %e, "an accepted connection cannot be watched");
                registry.counters.refused.add(1);
            }
        }
    }

    fn turn_away(self, peer: Option<SocketAddr>, rendezvous: Option<&Rendezvous>) {
        if let (Some(rendezvous), Some(addr)) = (rendezvous, peer) {
            drop(local::claim(self, rendezvous, addr));
        }
    }
}

async fn accept_all<L: AsyncListener>(registry: Arc<ConnectionRegistry>, listener: L, same: Arc<Listener>) {
    let take = |(stream, peer): (L::Stream, _), slot| match slot {
        Some(slot) => stream.begin_accepted(peer, slot),
        None => stream.turn_away(peer, registry.config.rendezvous.as_deref()),
    };
    let mut pause = pin!(sleep(Duration::ZERO));
    while let Some((admission, accepted)) =
        poll_fn(|task| poll_next(&registry, &listener, pause.as_mut(), task)).await
    {
        registry.accept_next(admission, || accepted, take);
    }
    // The kernel itself is asked: the library may not have heard of them yet, or want others to have a turn.
    registry.sweep(
        || same.accept(Blocking::Never).and_then(|(stream, peer)| Ok((L::Stream::adopt(stream)?, peer))),
        take,
    );
}

/// What the next accept brings, once there may be one; `None` when the registry stops.
fn poll_next<L: AsyncListener>(
    registry: &ConnectionRegistry,
    listener: &L,
    mut pause: Pin<&mut Sleep>,
    task: &mut TaskContext<'_>,
) -> Poll<Option<(Admission, AcceptResult<L::Stream>)>> {
    loop {
        match registry.poll_turn(task) {
            AcceptStep::Accept(admission) => {
                return listener.poll_accept(task).map(|accepted| Some((admission, accepted)));
            }
            AcceptStep::Wait(until) => {
                let Some(until) = until else { return Poll::Pending };
                pause.as_mut().reset(until.into());
                ready!(pause.as_mut().poll(task));
            }
            AcceptStep::Over => return Poll::Ready(None),
        }
    }
}

async fn dial(request: DialRequest, slot: RegistrySlot) {
    let dial = request.dial();
    let failed = match dial.to.addr() {
        Some(_) => {
            match unless_given_up(&request, &slot, connect(dial, &slot.registry.config.transports)).await {
                Ok(Ok(shared)) => return begin(shared, Caller::Dialled(request), slot),
                Ok(Err(stream)) => return begin(stream, Caller::Dialled(request), slot),
                Err(e) => e,
            }
        }
        None => match local::connect(dial) {
            Ok(stream) => return begin(stream, Caller::Dialled(request), slot),
            Err(e) => e,
        },
    };
    slot.registry.dial_failed(request, failed);
}

/// What becomes of a connection attempt, unless it is given up first: at its deadline, or when the registry stops.
async fn unless_given_up<T>(
    request: &DialRequest,
    slot: &RegistrySlot,
    attempt: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut attempt = pin!(attempt);
    let mut late = request.deadline().map(|at| Box::pin(sleep_until(at.into())));
    poll_fn(|task| {
        slot.inbox.wakes(task.waker());
        let is_late = late.as_mut().is_some_and(|late| late.as_mut().poll(task).is_ready());
        match slot.gives_up(request) {
            Some(e) => Poll::Ready(Err(e)),
            None if is_late => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            None => attempt.as_mut().poll(task),
        }
    })
    .await
}

/// Connects, with an offer of shared memory if that may be of use.
async fn connect(dial: &Dial, transports: &Transports) -> io::Result<Result<impl Socket + use<>, TcpStream>> {
    let stream = match fastpath::begin(&dial.to, dial.source, transports)? {
        Begun::Plain(stream) => stream,
        Begun::Handshaking(handshake) => {
            let timeout = transports.fast_path.map_or(Duration::ZERO, |fast| fast.handshake_timeout);
            local::answered(&handshake, timeout).await?;
            match handshake.settle(transports) {
                HandshakeOutcome::Link(link) => return local::over(link).map(Ok),
                HandshakeOutcome::Plain(stream) => stream,
            }
        }
    };
    let stream = TcpStream::adopt(stream)?; // it may still be connecting
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(Err(stream)), Err)
}

/// Gives a connection that is established its task.
fn begin<T: Socket>(stream: T, mut caller: Caller, slot: RegistrySlot) {
    let registry = &slot.registry;
    let session = with_counters(registry, |counters| {
        registry.open_session(&mut caller, || local_addr(&stream), 0, counters)
    });
    let Some(session) = session else { return };
    with_counters(registry, |counters| counters.fast_paths.add(T::IS_SHARED.into()));
    ::tokio::spawn(ConnectionTask {
        stream,
        connection: Connection::new(session, caller.origin(), Instant::now()),
        opened: false,
        sleep: None,
        slot,
    });
    caller.served();
}

/// One connection, as a task.
struct ConnectionTask<T> {
    stream: T,
    connection: Connection,
    opened: bool,
    /// Wakes the task for a deadline; made when the first one is set.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Given back after the socket was closed: fields are dropped in order.
    slot: RegistrySlot,
}

// Nothing in it is pinned in place: the timer is boxed.
impl<T> Unpin for ConnectionTask<T> {}

thread_local! {
    /// The receive buffer of a worker thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Its counters. A thread belongs to one runtime, and so to one registry.
    static COUNTERS: OnceCell<Arc<Counters>> = const { OnceCell::new() };
}

/// Lends out the counters of the thread that runs a task.
fn with_counters<R>(registry: &ConnectionRegistry, count: impl FnOnce(&Counters) -> R) -> R {
    COUNTERS.with(|own| count(own.get_or_init(|| registry.counters_of_next())))
}

/// A socket of the library, whose task is woken when it would block now and no longer does.
struct Polled<'a, 'b, T> {
    stream: &'a mut T,
    task: &'a mut TaskContext<'b>,
}

impl<T: Socket> Polled<'_, '_, T> {
    /// For what the library does not know.
    fn when_ready(&mut self, send: impl Fn(&T) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match self.stream.poll_write_ready(self.task) {
                Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
                Poll::Ready(ready) => ready?,
            }
            match self.stream.try_write_io(|| send(self.stream)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }
}

impl<T: Socket> Write for Polled<'_, '_, T> {
    fn sends_files(&self) -> bool {
        SENDS_FILES && !T::IS_SHARED
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        if more != More::No && !T::IS_SHARED {
            return self.when_ready(|stream| send_vectored(stream, slices, more));
        }
        match Pin::new(&mut *self.stream).poll_write_vectored(self.task, slices) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write_file(&mut self, range: &FileRange, more: More) -> io::Result<usize> {
        self.when_ready(|stream| send_file(stream, range, more))
    }
}

impl<T: Socket> Future for ConnectionTask<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        with_counters(&this.slot.registry, |counters| counters.wake_ups.add(1));
        this.slot.inbox.wakes(task.waker());
        if !std::mem::replace(&mut this.opened, true) {
            this.dispatch(Event::Opened);
        }
        for _ in 0..MAIL_QUANTUM {
            let Some(event) = this.slot.inbox.take() else { break };
            this.dispatch(event);
        }
        let has_mail = this.slot.inbox.has_delivery();
        for _ in 0..this.slot.registry.policy().drain_budget {
            let action = this.connection.action();
            if matches!(action.then, NextStep::Close | NextStep::Reset) {
                if action.then == NextStep::Reset {
                    let _ = this.stream.reset_on_close(); // it is closed either way
                }
                return Poll::Ready(());
            }
            let sent = this.send(task);
            let received = this.receive(task);
            let timed = this.watch_deadline(task);
            if sent.is_pending() && received.is_pending() && timed.is_pending() {
                if has_mail {
                    break;
                }
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref(); // the others first
        Poll::Pending
    }
}

impl<T: Socket> ConnectionTask<T> {
    fn dispatch(&mut self, event: Event<'_>) {
        let lacks_memory = matches!(event, Event::OutOfMemory(_));
        with_counters(&self.slot.registry, |counters| {
            let policy = self.slot.registry.policy();
            self.connection.handle(event, &self.slot.context(&policy, counters));
        });
        if lacks_memory {
            self.slot.registry.relieve();
        }
    }

    /// One step of sending; pending if there is nothing to send, or the socket takes nothing.
    fn send(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        let action = self.connection.action();
        let event = if action.then == NextStep::FinishSending {
            match Pin::new(&mut self.stream).poll_shutdown(task) {
                Poll::Ready(Ok(())) => Event::SendFinished,
                Poll::Ready(Err(e)) => failure(&e, Direction::Send),
                Poll::Pending => return Poll::Pending,
            }
        } else if action.send {
            let to = Polled { stream: &mut self.stream, task };
            match write_next(to, self.connection.queue_mut(), action.then) {
                Ok(written) => Event::Sent(written.bytes),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(e) => failure(&e, Direction::Send),
            }
        } else {
            return Poll::Pending;
        };
        self.dispatch(event);
        Poll::Ready(())
    }

    /// One step of receiving; pending if nothing is wanted, or nothing is there.
    fn receive(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        if self.connection.action().receive == Receive::Pause {
            return Poll::Pending;
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(self.slot.registry.policy().buffer_bytes, 0);
            let mut room = ReadBuf::new(buffer);
            let event = match Pin::new(&mut self.stream).poll_read(task, &mut room) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if room.filled().is_empty() => match confirm_end(&self.stream) {
                    Ok(()) => Event::PeerEnded,
                    Err(e) => failure(&e, Direction::Receive),
                },
                Poll::Ready(Ok(())) => Event::Received(room.filled()),
                Poll::Ready(Err(e)) => failure(&e, Direction::Receive),
            };
            with_counters(&self.slot.registry, |counters| counters.events.add(1));
            self.dispatch(event);
            Poll::Ready(())
        })
    }

    /// Ready when a deadline has come, or when it may have moved; else the task will be woken for it.
    fn watch_deadline(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        let Some(at) = self.connection.deadline(&self.slot.registry.policy()) else { return Poll::Pending };
        let timer = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at.into())));
        // A timer that is set too early only makes the task look once more; moving it with every byte would cost more.
        if timer.is_elapsed() || timer.deadline().into_std() > at {
            timer.as_mut().reset(at.into());
        }
        if timer.as_mut().poll(task).is_pending() {
            return Poll::Pending;
        }
        self.dispatch(Event::Deadline);
        Poll::Ready(())
    }
}
