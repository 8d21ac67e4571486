//! Captures the host name that a client requests.
//!
//! rustls (0.23) passes it only to the certificate resolver in the case of an unbuffered connection. So a wrapper
//! around the configured resolver stores it in a thread-local, on the thread that runs the handshake step.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

thread_local! {
    /// Read after each step.
    static NAME: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// The name requested in the step that this thread has just run.
pub(crate) fn take() -> Option<Box<str>> {
    NAME.take()
}

#[derive(Debug)]
struct Noting(Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for Noting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        NAME.set(hello.server_name().map(|name| name.to_ascii_lowercase().into()));
        self.0.resolve(hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.only_raw_public_keys()
    }
}

/// The same configuration with a resolver that captures names.
pub(crate) fn noting(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.cert_resolver = Arc::new(Noting(config.cert_resolver));
    Arc::new(config)
}
