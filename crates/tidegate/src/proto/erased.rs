//! The type-erased service that engines use.

use std::io;
use std::sync::Arc;

#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
use super::dial::DialRequest;
use super::session::{Service, Session};
use crate::policy::{Policy, PolicyError};
use crate::types::{Dial, Peer, Refusal, ServiceOptions};

/// A [`Service`] whose session type is erased, so that engines are compiled once and not for each service.
///
/// Costs an allocation for each connection and an indirect call for each event.
pub(crate) trait ErasedService: Send + Sync + 'static {
    /// See [`Service::open`].
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal>;
    /// What [`Service::options`] said when the service was erased.
    fn options(&self) -> ServiceOptions;
    /// See [`Service::check_limits`].
    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError>;
    /// See [`Service::dial_failed`].
    fn dial_failed(&self, dial: &Dial, error: &io::Error);
    /// A loop takes a dial: the simulation observes the session for the new connection.
    #[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
    fn observe_dial(&self, request: DialRequest) -> DialRequest {
        request
    }
}

/// Erases the type of the sessions. The service is asked for its options here, on the caller's thread, and not again:
/// limits are derived from them, and a panic of the application would end an I/O thread.
pub(crate) fn erase(service: impl Service) -> Arc<dyn ErasedService> {
    Arc::new(Erased { options: service.options(), service })
}

struct Erased<S> {
    service: S,
    options: ServiceOptions,
}

impl<S: Service> ErasedService for Erased<S> {
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal> {
        Ok(Box::new(self.service.open(peer)?))
    }

    fn options(&self) -> ServiceOptions {
        self.options
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.service.check_limits(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.service.dial_failed(dial, error);
    }
}
