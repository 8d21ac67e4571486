//! The accepting side: certificate and key, and a service that encrypts accepted connections.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ProducesTickets, UnbufferedServerConnection};
use tidegate::{Dial, Origin, Peer, Policy, PolicyError, Refusal, Service, ServiceOptions};

use crate::fault::{TlsCounters, TlsError};
use crate::pem::PemText;
use crate::server_name::noting;
use crate::session::{TlsLimits, TlsSession, TlsShared};

/// A server's certificate and key, from PEM files or texts, or a rustls configuration.
///
/// PEM is used with the provider ring, TLS 1.2 and 1.3 with rustls' default cipher suites, session tickets, no early
/// data and no client certificates. For other settings make an identity [from](Self::from) a [`ServerConfig`], which is
/// used as it is.
///
/// Clones share the certificate. Connections use the configuration at the time they begin; [`reload`](Self::reload) and
/// [`replace`](Self::replace) do not affect established ones.
#[derive(Clone, Debug)]
pub struct Identity(Arc<IdentityState>);

#[derive(Debug)]
struct IdentityState {
    files: Option<CertificateFiles>,
    config: ArcSwap<ServerConfig>,
}

/// The source of the certificate, and the settings shared by its configurations.
#[derive(Clone, Debug)]
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    /// Protocols for ALPN (RFC 7301), in order of preference; empty disables ALPN.
    protocols: Vec<Vec<u8>>,
    /// Encrypts session tickets; its keys change every six hours. Kept when the certificate changes.
    tickets: Arc<dyn ProducesTickets>,
}

impl Identity {
    /// Reads the certificate chain and the key from PEM files.
    ///
    /// # Errors
    /// A file cannot be read, has other content, or the key does not match the certificate.
    pub fn read(cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, TlsError> {
        let files = CertificateFiles {
            cert: cert.as_ref().into(),
            key: key.as_ref().into(),
            protocols: Vec::new(),
            tickets: ring::Ticketer::new()?,
        };
        let config = noting(files.config()?);
        Ok(Self::new(Some(files), config))
    }

    /// Takes the certificate chain and the key from PEM texts.
    ///
    /// # Errors
    /// A text has other content, or the key does not match the certificate.
    pub fn pem(cert: &str, key: &str) -> Result<Self, TlsError> {
        let mut config = config_of(&PemText::of(cert), &PemText::of(key))?;
        config.ticketer = ring::Ticketer::new()?;
        Ok(config.into())
    }

    fn new(files: Option<CertificateFiles>, config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(IdentityState { files, config: ArcSwap::new(config) }))
    }

    /// Selects from these protocols by ALPN (RFC 7301), in order of preference: a client that offers some, but none of
    /// these, is rejected. By default ALPN is disabled, or as in the [`ServerConfig`] given. Earlier clones keep their
    /// protocols, and share no certificate with the result.
    #[must_use]
    pub fn protocols(self, protocols: &[&str]) -> Self {
        let protocols = alpn(protocols);
        let mut config = ServerConfig::clone(&self.0.config.load());
        config.alpn_protocols.clone_from(&protocols);
        let files = self.0.files.clone().map(|files| CertificateFiles { protocols, ..files });
        Self::new(files, Arc::new(config))
    }

    /// Replaces the configuration for new connections, with its protocols: by the one that another identity has now, or
    /// by what one is made from. Later changes of the other do not follow, and a later [`reload`](Self::reload) reads
    /// the files of this one again.
    pub fn replace(&self, with: impl Into<Self>) {
        self.0.config.store(with.into().0.config.load_full());
    }

    /// Reads the files again. New connections use the new content; after an error they keep the previous one.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); [`TlsError::NoFiles`] if this was not created by that.
    pub fn reload(&self) -> Result<(), TlsError> {
        let files = self.0.files.as_ref().ok_or(TlsError::NoFiles)?;
        self.0.config.store(noting(files.config()?));
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.0.config.load_full()
    }
}

/// Uses the configuration as it is: client certificates, several names, another provider, other versions.
impl From<Arc<ServerConfig>> for Identity {
    fn from(config: Arc<ServerConfig>) -> Self {
        Arc::unwrap_or_clone(config).into()
    }
}

/// Uses the configuration as it is: client certificates, several names, another provider, other versions.
impl From<ServerConfig> for Identity {
    fn from(config: ServerConfig) -> Self {
        Self::new(None, noting(config))
    }
}

impl CertificateFiles {
    fn config(&self) -> Result<ServerConfig, TlsError> {
        let mut config = config_of(&PemText::read(&self.cert)?, &PemText::read(&self.key)?)?;
        config.alpn_protocols.clone_from(&self.protocols);
        config.ticketer = self.tickets.clone();
        Ok(config)
    }
}

/// A configuration with this certificate chain and key, the versions and cipher suites that rustls calls safe, and no
/// session tickets yet.
fn config_of(cert: &PemText<'_>, key: &PemText<'_>) -> Result<ServerConfig, TlsError> {
    let (chain, secret) = (cert.certificates()?, key.key()?);
    let pair = |error: rustls::Error| TlsError::Pair {
        cert: cert.source.into(),
        key: key.source.into(),
        error: Box::new(error),
    };
    ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(pair)
}

/// Protocols as rustls has them.
pub(crate) fn alpn(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().into()).collect()
}

/// A service whose accepted connections are encrypted. Dialled ones are refused.
///
/// The result of the handshake (host name, application protocol, client certificate) is in [`Peer::tls`] of the peer
/// passed to the inner service.
///
/// ```no_run
/// use tidegate_tls::{Identity, TlsServer};
/// # use tidegate_services::Echo;
///
/// let identity = Identity::read("cert.pem", "key.pem")?;
/// let service = TlsServer::new(Echo, identity.clone());
/// let running = tidegate::Server::new(service).bind("127.0.0.1:7000")?.start()?;
/// identity.reload()?; // the files hold another certificate now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsServer<S> {
    shared: Arc<TlsShared<S>>,
    identity: Identity,
}

impl<S> std::fmt::Debug for TlsServer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl<S: Service> TlsServer<S> {
    /// Encrypts the connections to `service` by an [`Identity`] or a [`ServerConfig`], under the default
    /// [limits](TlsLimits).
    #[must_use]
    pub fn new(service: S, identity: impl Into<Identity>) -> Self {
        Self { shared: Arc::new(TlsShared::new(service, None)), identity: identity.into() }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: TlsLimits) -> Self {
        Arc::make_mut(&mut self.shared).limits = limits;
        self
    }

    /// Counts handshakes in these counters, which several services may share. By default it has its own.
    #[must_use]
    pub fn count_in(mut self, counters: Arc<TlsCounters>) -> Self {
        Arc::make_mut(&mut self.shared).counters = counters;
        self
    }

    /// The counters; valid while the service runs.
    #[must_use]
    pub fn counters(&self) -> Arc<TlsCounters> {
        self.shared.counters.clone()
    }
}

impl<S: Service> Service for TlsServer<S> {
    type Session = TlsSession<S, UnbufferedServerConnection>;

    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal> {
        let Origin::Accepted = peer.origin else { return Err(Refusal) };
        let connection = UnbufferedServerConnection::new(self.identity.config());
        let connection = connection.map_err(|e| {
            tracing::warn!(%e, "cannot start a TLS connection");
            Refusal
        })?;
        Ok(TlsSession::new(connection, peer.clone(), self.shared.clone()))
    }

    /// Those of the inner service; but the client sends first, whatever the inner service does.
    fn options(&self) -> ServiceOptions {
        self.shared.service.options().speaks_first(false)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.shared.limits.check(policy)?;
        self.shared.service.check_limits(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.shared.service.dial_failed(dial, error);
    }
}
