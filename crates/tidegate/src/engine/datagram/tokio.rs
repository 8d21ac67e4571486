//! `tokio` for datagrams: the library waits, on a runtime of one thread for each socket.
//!
//! One runtime for each thread rather than tasks that move between threads: a socket's datagrams are served by one
//! service in order, and nothing is shared.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use ::tokio::io::Interest;
use ::tokio::net::UdpSocket;
use ::tokio::runtime::{Builder, Runtime};
use ::tokio::sync::Notify;
use ::tokio::task::yield_now;
use ::tokio::time::sleep_until;
use tidegate_os::datagram::DatagramSocket;

use super::pump::{Pump, Step};
use super::{DatagramWorker, StopSignal};
use crate::engine::worker::Ready;
use crate::service::DatagramService;

pub(super) fn prepare(_: &Arc<DatagramSocket>) -> io::Result<(StopSignal, Arc<Notify>)> {
    let notify = Arc::new(Notify::new());
    let wake = notify.clone();
    Ok((StopSignal::new(move || wake.notify_one()), notify))
}

pub(super) fn run(
    service: Box<dyn DatagramService>,
    worker: DatagramWorker,
    notify: Arc<Notify>,
    ready: Ready,
) {
    let Some((runtime, socket)) = ready.report(build(&worker.socket)) else { return };
    runtime.block_on(serve(Pump::new(service, worker), &socket, &notify));
}

fn build(socket: &DatagramSocket) -> io::Result<(Runtime, UdpSocket)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let socket = UdpSocket::from_std(socket.to_std()?)?;
    drop(inside);
    Ok((runtime, socket))
}

async fn serve(mut pump: Pump, socket: &UdpSocket, notify: &Notify) {
    loop {
        let wanted = match pump.step() {
            Step::Ended => return,
            Step::Again => {
                yield_now().await;
                continue;
            }
            Step::Idle => Interest::READABLE,
            Step::Full => Interest::WRITABLE,
        };
        // Tells the library that the socket would block. Its reports come on this very thread, so none is lost between
        // the pump's try and this.
        let _ = socket.try_io(wanted, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        let deadline = pump.deadline();
        let mut ready = pin!(socket.ready(wanted));
        let mut notified = pin!(notify.notified());
        let mut give_up = pin!(async move {
            match deadline {
                Some(deadline) => sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        });
        poll_fn(|task| {
            let any = ready.as_mut().poll(task).is_ready()
                || notified.as_mut().poll(task).is_ready()
                || give_up.as_mut().poll(task).is_ready();
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        pump.woke();
    }
}
