//! The type-erased service that engines use.

use std::io;

use super::session::{Service, Session};
use crate::types::{Dial, Peer, Refusal};

/// A [`Service`] whose session type is erased, so that engines are compiled once and not for each service.
///
/// Costs an allocation for each connection and an indirect call for each event.
pub(crate) trait ErasedService: Send + Sync + 'static {
    /// See [`Service::open`].
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal>;
    /// See [`Service::speaks_first`].
    fn speaks_first(&self) -> bool;
    /// See [`Service::needs_peer_addr`].
    fn needs_peer_addr(&self) -> bool;
    /// See [`Service::needs_local_addr`].
    fn needs_local_addr(&self) -> bool;
    /// See [`Service::dials`].
    fn dials(&self) -> usize;
    /// See [`Service::dial_failed`].
    fn dial_failed(&self, dial: &Dial, error: &io::Error);
}

impl<S: Service> ErasedService for S {
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal> {
        Ok(Box::new(Service::open(self, peer)?))
    }

    fn speaks_first(&self) -> bool {
        Service::speaks_first(self)
    }

    fn needs_peer_addr(&self) -> bool {
        Service::needs_peer_addr(self)
    }

    fn needs_local_addr(&self) -> bool {
        Service::needs_local_addr(self)
    }

    fn dials(&self) -> usize {
        Service::dials(self)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        Service::dial_failed(self, dial, error);
    }
}
