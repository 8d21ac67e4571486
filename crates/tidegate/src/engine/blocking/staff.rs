//! What both blocking models do alike: starting threads, accepting, connecting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate_sys::descriptor::AsRawFd;

use tidegate_sys::poll::{Readiness, wait_pair};
use tidegate_sys::socket::{Blocking, Stream};
use tidegate_sys::waker::Waker;

use super::super::clerk::dial_failed;
use super::super::house::House;
use super::super::threads;
use crate::policy::accept::Admission;
use crate::service::Dial;

/// Starts a named thread with the stack the policy gives.
pub(super) fn spawn(
    house: &House,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    threads::spawn(format!("tidegate-{name}"), house.policy().thread_stack_bytes, run)
}

/// Starts the thread that accepts until the house stops; `serve` takes each connection that is let in.
pub(super) fn start_acceptor(
    house: &Arc<House>,
    blocking: Blocking,
    serve: impl FnMut(Stream, Option<SocketAddr>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let bell = Arc::new(Waker::new()?);
    house.set_bell(bell.clone());
    let (front, duty) = (house.clone(), house.begin_accepting());
    spawn(house, "accept", move || {
        accept_all(&front, &bell, blocking, serve);
        drop(duty);
    })
}

/// Accepts until the house stops, and then those who wait already; `serve` takes each connection that is let in.
fn accept_all(
    house: &House,
    bell: &Waker,
    blocking: Blocking,
    mut serve: impl FnMut(Stream, Option<SocketAddr>),
) {
    let Some(listener) = house.take_listener() else { return };
    while let Some(admission) = house.wait_for_admission() {
        match listener.accept(blocking) {
            Ok((stream, peer)) => {
                house.counters.attempted.add(1);
                if admission == Admission::Refuse {
                    house.counters.refused.add(1);
                    house.plan.turn_away(stream, peer);
                } else {
                    serve(stream, peer);
                }
            }
            // Waiting in accept itself could be ended by shutting the socket down only, for every process that holds it.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let wanted = Readiness { readable: true, writable: false };
                if let Err(e) = wait_pair(listener.as_raw_fd(), wanted, bell.as_raw_fd(), None) {
                    house.accept_failed(&e);
                }
            }
            Err(e) => house.accept_failed(&e),
        }
    }
    house.accept_the_rest(&listener, blocking, serve);
}

/// Makes a connection, or tells the service why not.
pub(super) fn connect<T>(house: &House, dial: &Dial, make: impl FnOnce() -> io::Result<T>) -> Option<T> {
    house.counters.attempted.add(1);
    let connected = match house.may_dial() {
        true => make(),
        false => Err(io::Error::other("max_connections are open, or the client is stopping")),
    };
    connected.map_err(|e| dial_failed(house, dial, &e)).ok()
}
