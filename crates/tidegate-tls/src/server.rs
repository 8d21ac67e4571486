//! The accepting side: certificate and key, and a service that encrypts accepted connections.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ProducesTickets, UnbufferedServerConnection};
use tidegate::{Dial, Origin, Peer, Policy, PolicyError, Refusal, Service, ServiceOptions};

use crate::fault::{TlsCounters, TlsError};
use crate::server_name::noting;
use crate::session::{TlsLimits, TlsSession, TlsShared};

/// A server's certificate and key, from PEM files or from a rustls configuration.
///
/// Connections use the configuration at the time they begin; [`reload`](Self::reload) and [`replace`](Self::replace) do
/// not affect established ones.
#[derive(Debug)]
pub struct Identity {
    files: Option<CertificateFiles>,
    config: ArcSwap<ServerConfig>,
}

/// The source of the certificate, and the settings shared by its configurations.
#[derive(Debug)]
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    /// Protocols for ALPN (RFC 7301), in order of preference; empty disables ALPN.
    protocols: Vec<Vec<u8>>,
    /// Encrypts session tickets; its keys change every six hours. Kept when the certificate changes.
    tickets: Arc<dyn ProducesTickets>,
}

impl Identity {
    /// Reads the certificate chain and the key. `protocols` are for ALPN: a client that offers some, but none of these,
    /// is rejected.
    ///
    /// # Errors
    /// A file cannot be read, has other content, or the key does not match the certificate.
    pub fn read(cert: &Path, key: &Path, protocols: &[&str]) -> Result<Self, TlsError> {
        let tickets = ring::Ticketer::new()?;
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.as_bytes().into()).collect();
        let files = CertificateFiles { cert: cert.into(), key: key.into(), protocols, tickets };
        let config = ArcSwap::new(noting(&Arc::new(files.config()?)));
        Ok(Self { files: Some(files), config })
    }

    /// Uses a rustls configuration: client certificates, several names, another provider, other versions.
    #[must_use]
    pub fn of(config: Arc<ServerConfig>) -> Self {
        Self { files: None, config: ArcSwap::new(noting(&config)) }
    }

    /// Replaces the configuration for new connections.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.config.store(noting(&config));
    }

    /// Reads the files again. New connections use the new content; after an error they keep the previous one.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); [`TlsError::NoFiles`] if this was created [from a configuration](Self::of).
    pub fn reload(&self) -> Result<(), TlsError> {
        let files = self.files.as_ref().ok_or(TlsError::NoFiles)?;
        self.config.store(noting(&Arc::new(files.config()?)));
        Ok(())
    }
}

impl CertificateFiles {
    fn config(&self) -> Result<ServerConfig, TlsError> {
        let Self { cert, key, protocols, tickets } = self;
        let chain = certificates(cert)?;
        let secret =
            PrivateKeyDer::from_pem_slice(&contents(key)?).map_err(|e| pem_error(key, "private key", e))?;
        let pair = |error: rustls::Error| TlsError::Pair {
            cert: cert.into(),
            key: key.into(),
            error: Box::new(error),
        };
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(pair)?;
        config.alpn_protocols.clone_from(protocols);
        config.ticketer = tickets.clone();
        Ok(config)
    }
}

/// Reads a regular file: others (a FIFO, a terminal) may never end, or block the reader forever.
fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = |path: &Path| match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    read(path).map_err(|error| TlsError::Read { path: path.into(), error })
}

/// All certificates of a file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |e| pem_error(path, "certificate", e);
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(&contents(path)?).collect::<Result<_, _>>().map_err(error)?;
    if all.is_empty() {
        return Err(error(pem::Error::NoItemsFound));
    }
    Ok(all)
}

/// The certificates in a text.
pub(crate) fn certificates_of(text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |e| pem_error(Path::new("the text given"), "certificate", e);
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().map_err(error)?;
    if all.is_empty() {
        return Err(error(pem::Error::NoItemsFound));
    }
    Ok(all)
}

fn pem_error(path: &Path, what: &'static str, e: pem::Error) -> TlsError {
    match e {
        pem::Error::Io(error) => TlsError::Read { path: path.into(), error },
        other => TlsError::Pem { path: path.into(), what, why: other.to_string() },
    }
}

/// A service whose accepted connections are encrypted. Dialled ones are refused.
///
/// The result of the handshake (host name, application protocol, client certificate) is in [`Peer::tls`] of the peer
/// passed to the inner service.
///
/// ```no_run
/// use std::sync::Arc;
/// use tidegate_tls::{Identity, TlsLimits, TlsServer};
/// # use tidegate_services::Echo;
///
/// let limits = TlsLimits::default();
/// let identity = Arc::new(Identity::read("cert.pem".as_ref(), "key.pem".as_ref(), &[])?);
/// let service = TlsServer::new(Echo, identity.clone(), limits, Default::default());
/// let running = tidegate::Server::new(service).bind("127.0.0.1:7000")?.start()?;
/// identity.reload()?; // the files hold another certificate now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsServer<S> {
    shared: Arc<TlsShared<S>>,
    identity: Arc<Identity>,
}

impl<S> std::fmt::Debug for TlsServer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl<S: Service> TlsServer<S> {
    /// Encrypts the connections to `service`, and counts handshakes.
    #[must_use]
    pub fn new(service: S, identity: Arc<Identity>, limits: TlsLimits, counters: Arc<TlsCounters>) -> Self {
        Self { shared: Arc::new(TlsShared { service, limits, counters, target: None }), identity }
    }

    /// Encrypts the connections to `service` with a rustls configuration (client certificates, several names, ALPN) and
    /// the default limits.
    ///
    /// The inner service gets the result of the handshake in [`Peer::tls`].
    #[must_use]
    pub fn with_config(service: S, config: Arc<ServerConfig>) -> Self {
        Self::new(service, Arc::new(Identity::of(config)), TlsLimits::default(), Arc::default())
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
        let connection = UnbufferedServerConnection::new(self.identity.config.load_full());
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
