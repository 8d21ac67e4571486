//! The type-erased service that engines use.

use std::io;

use super::session::{Service, Session};
use crate::policy::{Policy, PolicyError};
use crate::types::{Dial, Peer, Refusal, ServiceOptions};

/// A [`Service`] whose session type is erased, so that engines are compiled once and not for each service.
///
/// Costs an allocation for each connection and an indirect call for each event.
pub(crate) trait ErasedService: Send + Sync + 'static {
    /// See [`Service::open`].
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal>;
    /// See [`Service::options`].
    fn options(&self) -> ServiceOptions;
    /// See [`Service::check_limits`].
    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError>;
    /// See [`Service::dial_failed`].
    fn dial_failed(&self, dial: &Dial, error: &io::Error);
}

impl<S: Service> ErasedService for S {
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal> {
        Ok(Box::new(Service::open(self, peer)?))
    }

    fn options(&self) -> ServiceOptions {
        Service::options(self)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        Service::check_limits(self, policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        Service::dial_failed(self, dial, error);
    }
}
