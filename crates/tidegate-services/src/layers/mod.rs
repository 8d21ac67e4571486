//! Layers: services that wrap a service, so that any TCP service can have what they add, on every model.
//!
//! A layer is a session that holds the session of the service inside, shows it what it is to see, and passes its
//! answers on. No engine knows of it.
//!
//! | layer | what it adds |
//! |---|---|
//! | [`proxy`] | the real address of a client behind a proxy (PROXY protocol, versions 1 and 2) |

pub mod proxy;

pub use proxy::{HeaderFault, HeaderFaults, ProxyLimits, ProxyLimitsError, ProxyProtocol};
