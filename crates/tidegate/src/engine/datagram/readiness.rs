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

const READ: Readiness = Readiness { readable: true, writable: false };
const WRITE: Readiness = Readiness { readable: false, writable: true };

pub(in crate::engine) fn prepare(_: &Arc<DatagramSocket>) -> io::Result<(StopSignal, Arc<Waker>)> {
    let waker = Arc::new(Waker::new()?);
    let wake = waker.clone();
    Ok((StopSignal::new(move || wake.wake()), waker))
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
            Step::Idle => Some(READ),
            Step::Full => Some(WRITE),
        };
        poller.change(SOCKET, borrowed(&*socket), wanted.unwrap_or(READ));
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
    poller.watch(SOCKET, borrowed(socket), READ)?;
    Ok(poller)
}
