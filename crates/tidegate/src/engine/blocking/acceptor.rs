//! What both blocking models do alike: starting threads, accepting, connecting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_os::descriptor::borrowed;

use tidegate_os::poll::{Readiness, wait_pair};
use tidegate_os::socket::{Blocking, Stream};
use tidegate_os::waker::Waker;

use super::super::readiness::{Settled, SocketTransport, Transport};
use super::super::worker::registry::{ConnectionRegistry, RegistrySlot};
use super::super::worker::threads;
use crate::policy::sends::DIAL_QUANTUM;
use crate::proto::dial::DialRequest;

/// Starts a named thread with the stack the policy gives.
pub(super) fn spawn(
    registry: &ConnectionRegistry,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    threads::spawn(format!("tidegate-{name}"), registry.policy().thread_stack_bytes, run)
}

/// Starts the thread that accepts until the registry stops; `serve` takes each connection that is let in.
pub(super) fn start_acceptor(
    registry: &Arc<ConnectionRegistry>,
    blocking: Blocking,
    serve: impl FnMut(Stream, Option<SocketAddr>, RegistrySlot) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let bell = Arc::new(Waker::new()?);
    registry.set_bell(bell.clone());
    let (front, duty) = (registry.clone(), registry.begin_accepting());
    spawn(registry, "accept", move || {
        accept_all(&front, &bell, blocking, serve);
        drop(duty);
    })
}

/// Accepts until the registry stops, and then those who wait already; `serve` takes each connection that is let in.
fn accept_all(
    registry: &Arc<ConnectionRegistry>,
    bell: &Waker,
    blocking: Blocking,
    mut serve: impl FnMut(Stream, Option<SocketAddr>, RegistrySlot),
) {
    let Some(listener) = registry.take_listener() else { return };
    let meeting = registry.config.meeting().map(|meeting| &**meeting);
    let mut take = |(stream, peer), seat: Option<RegistrySlot>| match seat {
        Some(seat) => serve(stream, peer, seat),
        // Answers its offer of the fast path, if it has left one, and closes it.
        None => drop(SocketTransport::accepted(stream, peer, meeting)),
    };
    while let Some(admission) = registry.wait_for_admission() {
        if registry.accept_next(admission, || listener.accept(blocking), &mut take) {
            continue;
        }
        // Waiting in accept itself could be ended by shutting the socket down only, for every process that holds it.
        let wanted = Readiness { readable: true, writable: false };
        let (calls, wake) = (Some(borrowed(&*listener)), Some(borrowed(bell)));
        if let Err(e) = wait_pair(calls, wanted, wake, None) {
            registry.accept_failed(&e);
        }
    }
    registry.sweep(|| listener.accept(blocking), take);
}

/// Waits until it is settled what becomes of a connection attempt; gives it up at its deadline, or when the registry
/// stops.
pub(super) fn settle(
    mut line: SocketTransport,
    request: &DialRequest,
    seat: &RegistrySlot,
) -> io::Result<SocketTransport> {
    let begun = Instant::now();
    let wants = Readiness { readable: false, writable: true };
    loop {
        if let Some(e) = seat.gives_up(request) {
            return Err(e);
        }
        let patience = line.patience().map(|patience| begun + patience);
        let now = Instant::now();
        let until = [Some(now + DIAL_QUANTUM), request.deadline(), patience].into_iter().flatten().min();
        let limit = until.map(|at| at.saturating_duration_since(now));
        let ready = match wait_pair(line.borrowed(), line.interest(wants), None, limit) {
            Ok((ready, _)) => line.heed(ready, wants),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let out_of_patience = patience.is_some_and(|at| at <= Instant::now());
        if (ready.readable || ready.writable || out_of_patience) && line.settle()? == Settled::Stands {
            return Ok(line);
        }
    }
}
