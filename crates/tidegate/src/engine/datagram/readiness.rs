//! The readiness models for datagrams: one loop over one socket and a waker.
//!
//! It waits with the same [`Poller`] as the loop of connections, which may report level- or edge-triggered: the pump
//! goes on until the socket would block, and only then is it waited for.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_os::descriptor::borrowed;

use tidegate_os::datagram::DatagramSocket;
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use super::pump::{Pump, Step};
use super::{DatagramWorker, StopSignal};
use crate::engine::readiness::{PollEvent, Poller, Source};
use crate::engine::worker::Ready;
use crate::engine::worker::threads::rest_after_failed_wait;
use crate::engine::worker::transport::Acceptor;
use crate::policy::Policy;
use crate::policy::wait::spins;
use crate::proto::Token;
use crate::service::DatagramService;

/// The name of the one socket.
const SOCKET: Token = Token { index: 0, generation: 0 };

pub(in crate::engine) fn prepare(_: &Arc<DatagramSocket>) -> io::Result<(StopSignal, Arc<Waker>)> {
    let waker = Arc::new(Waker::new()?);
    let wake = Arc::downgrade(&waker); // which the worker has while it runs
    Ok((StopSignal::new(move || _ = wake.upgrade().map(|waker| waker.wake())), waker))
}

pub(in crate::engine) fn run<P: Poller<Listener = Acceptor>>(
    service: Box<dyn DatagramService>,
    worker: DatagramWorker,
    waker: Arc<Waker>,
    ready: Ready,
) {
    let socket = worker.socket.clone();
    let Some(mut poller) = ready.report(watch::<P>(&waker, &socket)) else { return };
    let wait = worker.policy.wait;
    let mut pump = Pump::new(service, worker);
    let mut events: Vec<PollEvent> = Vec::with_capacity(2);
    let mut active = Instant::now();
    loop {
        let wanted = match pump.step() {
            Step::Ended => return,
            Step::Again => None,
            Step::Idle => Some(Readiness::READ),
            Step::Full => Some(Readiness::WRITE),
        };
        poller.change(SOCKET, borrowed(&*socket), wanted.unwrap_or(Readiness::READ));
        let now = Instant::now();
        let timeout = match (wanted, pump.deadline()) {
            (None, _) => Some(Duration::ZERO),
            (Some(_), Some(deadline)) => Some(deadline.saturating_duration_since(now)),
            (Some(_), None) => spins(wait, active, now).then_some(Duration::ZERO),
        };
        events.clear();
        if let Err(e) = poller.wait(timeout, &mut events) {
            rest_after_failed_wait("datagrams", &e);
        }
        if !events.is_empty() {
            active = Instant::now();
            pump.woke();
        }
        if events.iter().any(|event| event.source == Source::Waker) {
            waker.clear();
        }
    }
}

fn watch<P: Poller<Listener = Acceptor>>(waker: &Waker, socket: &DatagramSocket) -> io::Result<P> {
    let mut poller = P::new(&Policy { events_per_wait: 2, ..Policy::default() })?;
    poller.watch_waker(waker)?;
    poller.watch(SOCKET, borrowed(socket), Readiness::READ)?;
    Ok(poller)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use tidegate_os::datagram::PortSharing;

    use super::*;
    use crate::Model;
    use crate::engine::datagram::{DatagramConfig, StopOrder, options, start_workers};
    use crate::engine::readiness::Borrowed;
    use crate::engine::readiness::poll::Poll;
    use crate::engine::worker::transport::Acceptor;
    use crate::policy::{DatagramPath, DatagramPolicy};
    use crate::service::Replies;

    /// Its first waits fail.
    struct Failing {
        poll: Poll,
        failures: usize,
    }

    impl Poller for Failing {
        type Listener = Acceptor;

        fn new(policy: &Policy) -> io::Result<Self> {
            Ok(Self { poll: Poll::new(policy)?, failures: 2 })
        }

        fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
            self.poll.watch_waker(waker)
        }

        fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
            self.poll.watch_listener(acceptor)
        }

        fn unwatch_listener(&mut self, acceptor: &Acceptor) {
            self.poll.unwatch_listener(acceptor);
        }

        fn watch(&mut self, token: Token, fd: Borrowed<'_, Self>, wanted: Readiness) -> io::Result<()> {
            self.poll.watch(token, fd, wanted)
        }

        fn change(&mut self, token: Token, fd: Borrowed<'_, Self>, wanted: Readiness) {
            self.poll.change(token, fd, wanted);
        }

        fn unwatch(&mut self, token: Token, fd: Borrowed<'_, Self>) {
            self.poll.unwatch(token, fd);
        }

        fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
            match self.failures.checked_sub(1) {
                Some(left) => {
                    self.failures = left;
                    Err(io::ErrorKind::OutOfMemory.into())
                }
                None => self.poll.wait(timeout, into),
            }
        }
    }

    struct Echo;

    impl DatagramService for Echo {
        fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
            out.send(from, bytes);
        }
    }

    #[test]
    fn a_loop_that_could_not_wait_serves_on() {
        let policy = DatagramPolicy::default();
        let options = options(Model::Poll, DatagramPath::Plain, &policy);
        let socket = DatagramSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), PortSharing::Own, &options);
        let socket = Arc::new(socket.unwrap());
        let to = socket.local_addr().unwrap();
        let config = DatagramConfig {
            model: Model::Poll,
            policy: Arc::new(policy),
            path: DatagramPath::Plain,
            sockets: vec![socket],
        };
        let started = start_workers(&config, &|_| Box::new(Echo), prepare, run::<Failing>).unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        for _ in 0..3 {
            client.send_to(b"datagram", to).unwrap();
            let mut bytes = [0; 16];
            assert_eq!(client.recv(&mut bytes).unwrap(), 8);
        }
        StopSignal::ask(&started.stop_signals, StopOrder::Serve);
        started.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
