//! What tests of datagrams have in common.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidegate_os::datagram::{DatagramSocket, PortSharing};

use super::{DatagramWorker, StopSignal, options};
use crate::engine::Model;
use crate::policy::{DatagramPath, DatagramPolicy};

/// Answers nothing.
#[cfg(all(unix, not(tidegate_loom)))]
pub(super) struct Deaf;

#[cfg(all(unix, not(tidegate_loom)))]
impl crate::service::DatagramService for Deaf {
    fn on_datagram(&mut self, _: SocketAddr, _: &[u8], _: &mut crate::service::Replies) {}
}

/// A worker with a socket of loopback that does not wait.
pub(super) fn worker(policy: DatagramPolicy) -> DatagramWorker {
    let options = options(Model::Poll, DatagramPath::Plain, &policy);
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = DatagramSocket::bind(at, PortSharing::Own, &options);
    DatagramWorker {
        policy: Arc::new(policy),
        path: DatagramPath::Plain,
        socket: Arc::new(socket.unwrap()),
        counters: Arc::default(),
        stop_signal: Arc::new(StopSignal::new(|| {})),
    }
}
