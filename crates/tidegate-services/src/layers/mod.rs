//! Layers: services that wrap a service and add a protocol to any TCP service, on every model.
//!
//! A layer is a session that contains the inner service's session, passes it decoded input, and encodes its output.
//! Engines do not know of layers.
//!
//! | layer | what it adds |
//! |---|---|
//! | [`proxy`] | the real address of a client behind a proxy (PROXY protocol, versions 1 and 2) |

pub mod proxy;

pub use proxy::{HeaderFault, HeaderFaults, ProxyLimits, ProxyProtocol};
