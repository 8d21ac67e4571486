//! The side that accepts: a certificate and its key, and a service that has them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ProducesTickets, UnbufferedServerConnection};
use tidegate::{Dial, Origin, Peer, Refusal, Service};

use crate::fault::{TlsCounters, TlsError};
use crate::session::{Shared, TlsLimits, TlsSession};

/// What a server shows its clients: a certificate and its key, from files in PEM form, or a configuration of rustls.
///
/// Connections take what is there when they begin; [`reload`](Self::reload) and [`replace`](Self::replace) change
/// nothing for those that stand.
#[derive(Debug)]
pub struct Identity {
    files: Option<Files>,
    config: ArcSwap<ServerConfig>,
}

/// Where a certificate comes from, and what its configurations have in common.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    /// Protocols for ALPN (RFC 7301), the best first; none takes no part in it.
    protocols: Vec<Vec<u8>>,
    /// Protects session tickets; its keys change every six hours. Kept when the certificate changes.
    tickets: Arc<dyn ProducesTickets>,
}

impl Identity {
    /// Reads the certificate, with those between it and the authority behind it, and the key. `protocols` are those of
    /// ALPN: a client that names some, and none of these, is turned away.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds something else, or a key of another certificate.
    pub fn read(cert: &Path, key: &Path, protocols: &[&str]) -> Result<Self, TlsError> {
        let tickets = ring::Ticketer::new()?;
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.as_bytes().into()).collect();
        let files = Files { cert: cert.into(), key: key.into(), protocols, tickets };
        let config = ArcSwap::from_pointee(files.config()?);
        Ok(Self { files: Some(files), config })
    }

    /// Of a configuration of rustls: client certificates, several names, another provider, other versions.
    #[must_use]
    pub fn of(config: Arc<ServerConfig>) -> Self {
        Self { files: None, config: ArcSwap::new(config) }
    }

    /// New connections get this configuration.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.config.store(config);
    }

    /// Reads the files again. New connections get what they hold now, all of it or, after an error, nothing of it.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`TlsError::NoFiles`] if this was made [of a configuration](Self::of).
    pub fn reload(&self) -> Result<(), TlsError> {
        let files = self.files.as_ref().ok_or(TlsError::NoFiles)?;
        self.config.store(Arc::new(files.config()?));
        Ok(())
    }
}

impl Files {
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

/// The bytes of a regular file: others (a FIFO, a terminal) may never end, or keep their reader waiting for ever.
fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = |path: &Path| match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file; copy it into one")),
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

/// A service whose accepted connections are encrypted. Those that this end dialled are refused.
///
/// ```no_run
/// use std::sync::Arc;
/// use tidegate_tls::{Identity, TlsLimits, TlsServer};
/// # use tidegate_services::Echo;
///
/// let limits = TlsLimits::default();
/// limits.check(&tidegate::Policy::default())?;
/// let identity = Arc::new(Identity::read("cert.pem".as_ref(), "key.pem".as_ref(), &[])?);
/// let service = TlsServer::new(Echo, identity.clone(), limits, Default::default());
/// let running = tidegate::Server::new(service).bind("127.0.0.1:7000".parse()?)?.start()?;
/// identity.reload()?; // the files hold another certificate now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsServer<S> {
    shared: Arc<Shared<S>>,
    identity: Arc<Identity>,
}

impl<S: Service> TlsServer<S> {
    /// Encrypts the connections to `service`, and counts what becomes of them.
    #[must_use]
    pub fn new(service: S, identity: Arc<Identity>, limits: TlsLimits, counters: Arc<TlsCounters>) -> Self {
        Self { shared: Arc::new(Shared { service, limits, counters, target: None }), identity }
    }
}

impl<S: Service> Service for TlsServer<S> {
    type Session = TlsSession<S, UnbufferedServerConnection>;

    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal> {
        let Origin::Accepted = peer.origin else { return Err(Refusal) };
        let connection = UnbufferedServerConnection::new(self.identity.config.load_full());
        let connection = connection.map_err(|e| {
            tracing::warn!(%e, "no TLS connection can be made");
            Refusal
        })?;
        Ok(TlsSession::new(connection, *peer, self.shared.clone()))
    }

    /// Never: whatever the service inside does, the client's hello comes first.
    fn speaks_first(&self) -> bool {
        false
    }

    fn needs_peer_addr(&self) -> bool {
        self.shared.service.needs_peer_addr()
    }

    fn dials(&self) -> usize {
        self.shared.service.dials()
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.shared.service.dial_failed(dial, error);
    }
}
