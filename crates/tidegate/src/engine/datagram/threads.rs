//! `blocking` and `pool` for datagrams: a thread sleeps in the receive itself.
//!
//! # How it waits
//! In `recvmsg` or `recvmmsg` (with `MSG_WAITFORONE`, so for the first datagram only). A stop wakes it by ending the
//! receiving side of the socket; on Windows, where that would lose what has arrived, by ending the call, and calls do
//! not sleep from then on.
//!
//! # What it bounds
//! Threads: one for each socket on `blocking`, as many as the policy says on the one socket of `pool`.
//!
//! # What it costs
//! The fewest system calls when traffic is thin: one to receive, one to send.
//!
//! # Where it differs
//! A send may sleep too, for at most 100 ms; then the thread looks whether it is to stop, and tries again.

use std::io;
use std::sync::Arc;

use tidegate_os::datagram::DatagramSocket;

use super::pump::{Pump, Step};
use super::{DatagramWorker, StopSignal};
use crate::engine::worker::Ready;
use crate::service::DatagramService;

pub(super) fn prepare(socket: &Arc<DatagramSocket>) -> io::Result<(StopSignal, ())> {
    // The worker has the socket while it runs; it must not stay bound for a handle to a server that has ended.
    let socket = Arc::downgrade(socket);
    let wake = move || {
        if let Some(socket) = socket.upgrade() {
            socket.wake_receivers();
        }
    };
    Ok((StopSignal::new(wake), ()))
}

pub(super) fn run(service: Box<dyn DatagramService>, worker: DatagramWorker, (): (), ready: Ready) {
    if ready.report(Ok(())).is_none() {
        return;
    }
    let mut pump = Pump::new(service, worker);
    while pump.step() != Step::Ended {
        pump.woke();
    }
}
