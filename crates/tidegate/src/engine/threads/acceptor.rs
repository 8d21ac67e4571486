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

use super::super::worker::registry::{ConnectionRegistry, RegistrySlot};
use super::super::worker::threads;
use super::super::worker::transport::{Settled, SocketTransport, Transport};
use crate::policy::sends::DIAL_QUANTUM;
use crate::proto::dial::DialRequest;

/// Starts a named thread with the stack that sessions run on.
pub(super) fn spawn(
    registry: &ConnectionRegistry,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    threads::spawn(format!("tidegate-{name}"), registry.stack_bytes(), run)
}

/// Starts the thread that accepts until the registry stops; `serve` takes each connection that is let in.
pub(super) fn start_acceptor(
    registry: &Arc<ConnectionRegistry>,
    blocking: Blocking,
    serve: impl FnMut(Stream, Option<SocketAddr>, RegistrySlot) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let waker = Arc::new(Waker::new()?);
    registry.set_waker(waker.clone());
    let (front, duty) = (registry.clone(), registry.begin_accepting());
    spawn(registry, "accept", move || {
        accept_all(&front, &waker, blocking, serve);
        drop(duty);
    })
}

/// Accepts until the registry stops, and then those who wait already; `serve` takes each connection that is let in.
fn accept_all(
    registry: &Arc<ConnectionRegistry>,
    waker: &Waker,
    blocking: Blocking,
    mut serve: impl FnMut(Stream, Option<SocketAddr>, RegistrySlot),
) {
    let Some(listener) = registry.take_listener() else { return };
    let rendezvous = registry.config.rendezvous.as_deref();
    let mut take = |(stream, peer), slot: Option<RegistrySlot>| match slot {
        Some(slot) => serve(stream, peer, slot),
        // Answers its offer of the fast path, if it has left one, and closes it.
        None => drop(SocketTransport::accepted(stream, peer, rendezvous)),
    };
    while let Some(admission) = registry.wait_for_admission() {
        if registry.accept_next(admission, || listener.accept(blocking), &mut take) {
            continue;
        }
        // Waiting in accept itself could be ended by shutting the socket down only, for every process that holds it.
        let (calls, wake) = (Some(borrowed(&*listener)), Some(borrowed(waker)));
        if let Err(e) = wait_pair(calls, Readiness::READ, wake, None) {
            registry.accept_failed(&e);
        }
    }
    registry.sweep(|| listener.accept(blocking), take);
}

/// Waits until it is settled what becomes of a connection attempt; gives it up at its deadline, or when the registry
/// stops.
pub(super) fn settle(
    mut transport: SocketTransport,
    request: &DialRequest,
    slot: &RegistrySlot,
) -> io::Result<SocketTransport> {
    let begun = Instant::now();
    let wants = Readiness::WRITE;
    loop {
        if let Some(e) = slot.gives_up(request) {
            return Err(e);
        }
        let handshake_timeout =
            transport.handshake_timeout().map(|handshake_timeout| begun + handshake_timeout);
        let now = Instant::now();
        let until =
            [Some(now + DIAL_QUANTUM), request.deadline(), handshake_timeout].into_iter().flatten().min();
        let limit = until.map(|at| at.saturating_duration_since(now));
        let ready = match wait_pair(transport.borrowed(), transport.interest(wants), None, limit) {
            Ok((ready, _)) => transport.heed(ready, wants),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let out_of_time = handshake_timeout.is_some_and(|at| at <= Instant::now());
        if (ready.readable || ready.writable || out_of_time) && transport.settle()? == Settled::Established {
            return Ok(transport);
        }
    }
}
