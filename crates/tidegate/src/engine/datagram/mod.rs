//! Datagrams on every model: one socket for each I/O thread (`pool`: one for all), and one loop for each family.
//!
//! | loop | models | how it waits |
//! |---|---|---|
//! | [`threads`] | `blocking`, `pool` | in the receive itself |
//! | [`readiness`] | `select`, `poll`, `epoll`, `event-select`, `async-select` | the [`Poller`](super::readiness::Poller) that connections have too |
//! | `completion` | `uring`, `iocp`, `overlapped` | for completions: of one endless receive, or of several that stay posted |
//! | [`tokio`] | `tokio` | the library does, one runtime for each thread |
//!
//! All but the completion models share the [`pump`], which moves datagrams between a socket and a service; all share
//! the [`state`], which is the only place that calls the service.
//!
//! Each thread has a socket on one port (`SO_REUSEPORT`) because one receive queue shared by several threads is one
//! lock, and because the kernel then keeps each peer on one thread: its datagrams stay in order. The price is that one
//! peer alone never keeps more than one thread busy. On `pool` it is the other way round: the thread that is free takes
//! the next datagram, so a slow service holds nobody up, and a peer's replies may overtake each other.

#[cfg(any(target_os = "linux", windows))]
pub(super) mod completion;
#[cfg(test)]
mod kit;
mod pump;
pub(super) mod readiness;
#[cfg(target_os = "linux")]
pub(super) mod ring;
mod state;
mod threads;
#[cfg(feature = "tokio")]
mod tokio;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_os::datagram::{DatagramOptions, DatagramSocket, Joining, SHARES_PORT, probe_segments};
use tidegate_os::socket::Blocking;

use super::worker::Ready;
use super::worker::threads::{STACK_BYTES, Starting, start_all};
use super::{Availability, Model};
use crate::policy::{DatagramPath, DatagramPolicy};
use crate::service::DatagramService;
use crate::stats::DatagramCounters;

/// What all threads of one server share, and the sockets they serve.
pub(crate) struct DatagramConfig {
    pub(crate) model: Model,
    pub(crate) policy: Arc<DatagramPolicy>,
    pub(crate) path: DatagramPath,
    /// One for each thread; on `pool` the same one each time.
    pub(crate) sockets: Vec<Arc<DatagramSocket>>,
}

/// What one I/O thread has.
pub(crate) struct DatagramWorker {
    pub(super) policy: Arc<DatagramPolicy>,
    pub(super) path: DatagramPath,
    pub(super) socket: Arc<DatagramSocket>,
    counters: Arc<DatagramCounters>,
    stop_signal: Arc<StopSignal>,
}

/// Makes the service of the I/O thread with this number.
pub(crate) type MakeService<'a> = &'a dyn Fn(usize) -> Box<dyn DatagramService>;

/// How a thread is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StopOrder {
    /// Serving what has arrived.
    Serve = 1,
    /// Receiving nothing more: what waits is for another process, which has the same socket.
    Leave = 2,
}

/// The order to stop, and the way to wake the thread that has to hear it.
pub(crate) struct StopSignal {
    /// A [`StopOrder`], or 0.
    asked: AtomicU8,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl StopSignal {
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asked: AtomicU8::new(0), wake: Box::new(wake) }
    }

    /// Asks all threads to stop. None is woken before all are asked: on `pool` waking one wakes the others.
    /// The first order counts.
    pub(crate) fn ask(all: &[Arc<Self>], order: StopOrder) {
        for stop_signal in all {
            let _ = stop_signal.asked.compare_exchange(0, order as u8, Ordering::SeqCst, Ordering::SeqCst);
        }
        for stop_signal in all {
            (stop_signal.wake)();
        }
    }

    pub(crate) fn order(&self) -> Option<StopOrder> {
        match self.asked.load(Ordering::SeqCst) {
            0 => None,
            n if n == StopOrder::Leave as u8 => Some(StopOrder::Leave),
            _ => Some(StopOrder::Serve),
        }
    }
}

/// The threads of a running engine.
pub(crate) struct DatagramEngineHandle {
    pub(crate) stop_signals: Vec<Arc<StopSignal>>,
    pub(crate) counters: Vec<Arc<DatagramCounters>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

impl DatagramPath {
    /// Whether this system has it, found out by trying.
    #[must_use]
    pub fn availability(self) -> Availability {
        let linux = cfg!(target_os = "linux");
        match self {
            Self::Plain => Availability::Available("sendmsg and recvmsg".into()),
            Self::Batched if linux => Availability::Available("sendmmsg and recvmmsg".into()),
            Self::Batched => Availability::Unavailable("sendmmsg is of Linux; use plain".into()),
            Self::Segments => match probe_segments() {
                Ok(()) => Availability::Available("UDP_SEGMENT and UDP_GRO".into()),
                Err(e) => Availability::Unavailable(format!(
                    "UDP_SEGMENT and UDP_GRO need Linux 5.0 ({e}); use batched or plain"
                )),
            },
        }
    }

    /// What a model takes when nobody says so: the cheapest that works with every network device.
    #[must_use]
    pub fn default_on(model: Model) -> Self {
        match model {
            Model::Uring => Self::Plain,
            _ if cfg!(target_os = "linux") => Self::Batched,
            _ => Self::Plain,
        }
    }
}

/// How long a thread sleeps in a send before it looks whether it is to stop: nobody wakes it.
const LONGEST_SEND: Duration = Duration::from_millis(100);

/// The pause after a receive has failed, but for a report about a peer: the next one may fail at once.
const FAILED_RECEIVE_PAUSE: Duration = Duration::from_millis(10);

/// Whether each thread has its own socket.
pub(crate) fn shares_socket(model: Model) -> bool {
    model == Model::Pool
}

/// Whether another process can go on with the sockets of a model.
pub(crate) fn hands_over(model: Model) -> Result<(), String> {
    match model {
        Model::Blocking | Model::Pool => Err(format!(
            "the threads of {model} sleep in the receive, and what wakes them at a stop ends the socket for every \
             process that has it; use epoll, uring, poll, select or tokio"
        )),
        _ => Ok(()),
    }
}

/// Whether a model has a loop for datagrams.
pub(crate) fn serves(model: Model) -> Result<(), &'static str> {
    match model {
        Model::Rio => {
            Err("it has requests for connections only, and none with an address (RIOReceiveEx, RIOSendEx); \
                           use iocp")
        }
        _ => Ok(()),
    }
}

/// Threads of a model where nobody says how many: one, where only one socket can have the port.
pub(crate) fn default_threads(model: Model) -> usize {
    if SHARES_PORT || shares_socket(model) { model.default_threads() } else { 1 }
}

/// How the sockets of a model are made.
pub(crate) fn options(model: Model, path: DatagramPath, policy: &DatagramPolicy) -> DatagramOptions {
    let sleeps = matches!(model, Model::Blocking | Model::Pool | Model::Uring);
    DatagramOptions {
        blocking: if sleeps { Blocking::Waits } else { Blocking::Never },
        joining: if path == DatagramPath::Segments { Joining::On } else { Joining::Off },
        receive_buffer: policy.socket_receive_buffer,
        send_buffer: policy.socket_send_buffer,
        send_timeout: Some(LONGEST_SEND),
    }
}

/// Starts the threads of a model that every system has, or says that it is none of these.
pub(super) fn start(
    config: &DatagramConfig,
    make: MakeService<'_>,
) -> Option<io::Result<DatagramEngineHandle>> {
    use super::readiness as pollers;
    Some(match config.model {
        Model::Blocking | Model::Pool => start_workers(config, make, threads::prepare, threads::run),
        Model::Select => {
            start_workers(config, make, readiness::prepare, readiness::run::<pollers::select::Select>)
        }
        Model::Poll => start_workers(config, make, readiness::prepare, readiness::run::<pollers::poll::Poll>),
        #[cfg(feature = "tokio")]
        Model::Tokio => start_workers(config, make, tokio::prepare, tokio::run),
        _ => return None,
    })
}

/// Starts one thread for each worker and waits until all of them serve.
///
/// `prepare` makes the worker's way of being woken and whatever goes with it; `run` runs on the worker's own thread,
/// says through `Ready` whether it could start, and returns when it has stopped.
pub(super) fn start_workers<W: Send + 'static>(
    config: &DatagramConfig,
    make: MakeService<'_>,
    prepare: fn(&Arc<DatagramSocket>) -> io::Result<(StopSignal, W)>,
    run: fn(Box<dyn DatagramService>, DatagramWorker, W, Ready),
) -> io::Result<DatagramEngineHandle> {
    let prepared = config.sockets.iter().map(|socket| {
        let (stop_signal, extra) = prepare(socket)?;
        let worker = DatagramWorker {
            policy: config.policy.clone(),
            path: config.path,
            socket: socket.clone(),
            counters: Arc::default(),
            stop_signal: Arc::new(stop_signal),
        };
        Ok((worker, extra))
    });
    let workers: Vec<_> = prepared.collect::<io::Result<_>>()?;
    let stop_signals: Vec<_> = workers.iter().map(|(worker, _)| worker.stop_signal.clone()).collect();
    let counters = workers.iter().map(|(worker, _)| worker.counters.clone()).collect();
    let stack = match config.model {
        Model::Blocking | Model::Pool => config.policy.thread_stack_bytes,
        _ => STACK_BYTES,
    };
    let starts = workers.into_iter().enumerate().map(|(index, (worker, extra))| {
        let service = make(index);
        let run = move |ready| run(service, worker, extra, ready);
        Starting::spawn(format!("tidegate-udp-{index}"), stack, run)
    });
    let threads = start_all(starts, || StopSignal::ask(&stop_signals, StopOrder::Serve))?;
    Ok(DatagramEngineHandle { stop_signals, counters, threads })
}

#[cfg(all(test, target_os = "linux", not(tidegate_loom)))]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroUsize;
    use std::time::Instant;

    use tidegate_os::datagram::PortSharing;

    use super::kit::Deaf;
    use super::*;
    use crate::engine::start_datagrams;

    /// Receives that sleep bring something from nobody at once when the receiving side of the socket is shut down.
    #[test]
    fn a_receive_that_always_fails_is_tried_once_in_each_pause() {
        for model in [Model::Blocking, Model::Pool] {
            let policy = DatagramPolicy { threads: NonZeroUsize::new(1), ..DatagramPolicy::default() };
            let options = options(model, DatagramPath::Plain, &policy);
            let socket = DatagramSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), PortSharing::Own, &options);
            let socket = Arc::new(socket.unwrap());
            let sockets = vec![socket.clone()];
            let config =
                DatagramConfig { model, policy: Arc::new(policy), path: DatagramPath::Plain, sockets };
            let started = start_datagrams(&config, &|_| Box::new(Deaf)).unwrap();
            let errors = || started.counters[0].receive_errors.get();
            let start = Instant::now();
            socket.wake_receivers(); // and nobody has asked for a stop
            while errors() < 5 {
                assert!(start.elapsed() < Duration::from_secs(50), "{model}: {} errors", errors());
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(100));
            let (errors, elapsed) = (errors(), start.elapsed());
            StopSignal::ask(&started.stop_signals, StopOrder::Serve);
            started.threads.into_iter().for_each(|thread| thread.join().unwrap());
            let most = elapsed.as_millis() / FAILED_RECEIVE_PAUSE.as_millis() + 2;
            assert!(u128::from(errors) <= most, "{model}: {errors} errors in {elapsed:?}");
        }
    }
}
