//! The side that dials: whom to trust, and a service that does.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tidegate::{Dial, Endpoint, Origin, Peer, Refusal, Service};

use crate::fault::{TlsCounters, TlsError};
use crate::server::{certificates, certificates_of};
use crate::session::{Shared, TlsLimits, TlsSession};

/// Which certificates the other end may have.
#[derive(Clone, Debug)]
pub struct Trust(ClientConfig);

impl Trust {
    /// Those that the authorities of this system vouch for.
    ///
    /// # Errors
    /// The system has none.
    pub fn system() -> Result<Self, TlsError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (known, _) = roots.add_parsable_certificates(found.certs);
        if known == 0 {
            let why = found.errors.first().map_or("none was found".into(), ToString::to_string);
            return Err(TlsError::NoRoots(why));
        }
        Self::in_roots(roots)
    }

    /// Those that the authorities in this file of PEM form vouch for. A self-signed certificate is its own authority.
    ///
    /// # Errors
    /// A file that can not be read, or holds no certificate that could be an authority's.
    pub fn file(path: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate)?;
        }
        Self::in_roots(roots)
    }

    /// Those that the authorities in this text of PEM form vouch for; for what does not come from a file.
    ///
    /// # Errors
    /// There is no certificate in it that could be an authority's.
    pub fn pem(text: &str) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates_of(text)? {
            roots.add(certificate)?;
        }
        Self::in_roots(roots)
    }

    /// All of them. Whoever sits in between reads and changes what is sent: for tests of one's own servers.
    ///
    /// # Errors
    /// None that could be put right.
    pub fn anything() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mut trust = Self::in_roots(RootCertStore::empty())?;
        trust.0.dangerous().set_certificate_verifier(Arc::new(Anything(provider)));
        Ok(trust)
    }

    fn in_roots(roots: RootCertStore) -> Result<Self, TlsError> {
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(config))
    }

    /// Offers these protocols for ALPN (RFC 7301), the best first.
    #[must_use]
    pub fn protocols(mut self, protocols: &[&str]) -> Self {
        self.0.alpn_protocols = protocols.iter().map(|name| name.as_bytes().into()).collect();
        self
    }

    /// Makes every handshake a full one: no earlier session is taken up.
    #[must_use]
    pub fn without_resumption(mut self) -> Self {
        self.0.resumption = Resumption::disabled();
        self
    }
}

/// Takes any certificate; that its owner speaks is still checked.
#[derive(Debug)]
struct Anything(Arc<CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A service whose dialled connections are encrypted. Those that were accepted are refused.
///
/// A connection whose handshake fails is told to [`Service::dial_failed`] of the service inside, as one that could not be made.
pub struct TlsClient<S> {
    shared: Arc<Shared<S>>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl<S: Service> TlsClient<S> {
    /// Encrypts the connections of `service`, which go to `target`, whose certificate has to be for `name`: a host name or an
    /// IP address.
    ///
    /// # Errors
    /// `name` is neither.
    pub fn new(
        service: S,
        target: Endpoint,
        name: &str,
        trust: Trust,
        limits: TlsLimits,
    ) -> Result<Self, TlsError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.into()))?;
        let shared = Shared { service, limits, counters: Arc::default(), target: Some(target) };
        Ok(Self { shared: Arc::new(shared), config: Arc::new(trust.0), name })
    }

    /// The counters; they stay valid while the service runs.
    #[must_use]
    pub fn counters(&self) -> Arc<TlsCounters> {
        self.shared.counters.clone()
    }
}

impl<S: Service> Service for TlsClient<S> {
    type Session = TlsSession<S, UnbufferedClientConnection>;

    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal> {
        let Origin::Dialled { .. } = peer.origin else { return Err(Refusal) };
        let connection = UnbufferedClientConnection::new(self.config.clone(), self.name.clone());
        let connection = connection.map_err(|e| {
            tracing::warn!(%e, "no TLS connection can be made");
            Refusal
        })?;
        Ok(TlsSession::new(connection, *peer, self.shared.clone()))
    }

    fn speaks_first(&self) -> bool {
        true
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.shared.service.dial_failed(dial, error);
    }
}
