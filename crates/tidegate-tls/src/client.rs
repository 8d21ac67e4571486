//! The dialling side: trusted certificates, and a service that encrypts dialled connections.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use tidegate::{Dial, Endpoint, Origin, Peer, Policy, PolicyError, Refusal, Service, ServiceOptions};

use crate::fault::{TlsCounters, TlsError};
use crate::pem::PemText;
use crate::server::alpn;
use crate::session::{TlsLimits, TlsSession, TlsShared};

/// Which server certificates are trusted, or a whole rustls configuration.
///
/// Except for those made [from](Self::from) a [`ClientConfig`], which is used as it is: the provider ring, TLS 1.2 and
/// 1.3 with rustls' default cipher suites, resumption of earlier sessions, no client certificate, no ALPN.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

/// Uses the configuration as it is: a client certificate, another verifier, another provider, other versions.
impl From<Arc<ClientConfig>> for Trust {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }
}

/// Uses the configuration as it is: a client certificate, another verifier, another provider, other versions.
impl From<ClientConfig> for Trust {
    fn from(config: ClientConfig) -> Self {
        Self(Arc::new(config))
    }
}

impl Trust {
    /// Trusts the system's certificate authorities.
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

    /// Trusts the authorities in this PEM file. A self-signed certificate is its own authority, whether or not it is
    /// marked as one.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate usable as an authority.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, TlsError> {
        Self::in_given(PemText::read(path.as_ref())?.certificates()?)
    }

    /// Trusts the authorities in this PEM text.
    ///
    /// # Errors
    /// It holds no certificate usable as an authority.
    pub fn pem(text: &str) -> Result<Self, TlsError> {
        Self::in_given(PemText::of(text).certificates()?)
    }

    /// Trusts every certificate, which allows man-in-the-middle attacks: only for tests of your own servers.
    ///
    /// # Errors
    /// Errors of rustls that the caller cannot correct.
    pub fn anything() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        Self::by_verifier(Anything(provider))
    }

    fn in_given(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        Self::by_verifier(GivenCertificates::new(certificates)?)
    }

    fn by_verifier(verifier: impl ServerCertVerifier + 'static) -> Result<Self, TlsError> {
        let mut trust = Self::in_roots(RootCertStore::empty())?;
        trust.config().dangerous().set_certificate_verifier(Arc::new(verifier));
        Ok(trust)
    }

    fn in_roots(roots: RootCertStore) -> Result<Self, TlsError> {
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(config.into())
    }

    fn config(&mut self) -> &mut ClientConfig {
        Arc::make_mut(&mut self.0)
    }

    /// Offers these protocols for ALPN (RFC 7301), in order of preference.
    #[must_use]
    pub fn protocols(mut self, protocols: &[&str]) -> Self {
        self.config().alpn_protocols = alpn(protocols);
        self
    }

    /// Disables session resumption: every handshake is a full one.
    #[must_use]
    pub fn without_resumption(mut self) -> Self {
        self.config().resumption = Resumption::disabled();
        self
    }
}

/// Accepts certificates signed by the given ones, and also each given one itself if it is a CA certificate used by a
/// server, as `openssl req -x509` creates. The owner of its key could sign any certificate, so this extends trust to
/// nobody else.
#[derive(Debug)]
struct GivenCertificates {
    authorities: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl GivenCertificates {
    fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone())?;
        }
        let provider = Arc::new(ring::default_provider());
        let built = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
        let authorities = built.map_err(|e| TlsError::NoRoots(e.to_string()))?;
        Ok(Self { authorities, certificates })
    }
}

impl ServerCertVerifier for GivenCertificates {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let outcome = self.authorities.verify_server_cert(shown, between, name, ocsp, now);
        if !outcome.as_ref().is_err_and(is_of_an_authority) || !self.certificates.contains(shown) {
            return outcome;
        }
        // webpki checks validity period and unknown critical extensions before it returns this error; the name is
        // checked afterwards.
        verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Whether the only error so far is that the certificate is a CA certificate.
fn is_of_an_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = error else { return false };
    matches!(why.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Accepts any certificate; the handshake signature is still verified.
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

/// A service whose dialled connections are encrypted. Accepted ones are refused.
///
/// A failed handshake is reported to [`Service::dial_failed`] of the inner service, as a failed dial.
///
/// ```no_run
/// use tidegate_tls::{TlsClient, Trust};
/// # use tidegate_services::Echo;
///
/// let target = "192.0.2.1:443";
/// let service = TlsClient::new(Echo, target, "example.org", Trust::system()?)?;
/// let client = tidegate::Client::new(service).start()?;
/// client.dial(target)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsClient<S> {
    shared: Arc<TlsShared<S>>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl<S> std::fmt::Debug for TlsClient<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S: Service> TlsClient<S> {
    /// Encrypts the connections of `service` to `target`, under the default [limits](TlsLimits). The address is given
    /// as to [`Server::bind`](tidegate::Server::bind). The server's certificate must be valid for `name`, a host name
    /// or an IP address. What it is trusted by has no default: a [`Trust`] or a [`ClientConfig`].
    ///
    /// # Errors
    /// `target` is a text that is not an address, or `name` is neither of the two.
    pub fn new(
        service: S,
        target: impl TryInto<Endpoint, Error: Into<TlsError>>,
        name: &str,
        trust: impl Into<Trust>,
    ) -> Result<Self, TlsError> {
        let target = target.try_into().map_err(Into::into)?;
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.into()))?;
        let shared = Arc::new(TlsShared::new(service, Some(target)));
        Ok(Self { shared, config: trust.into().0, name })
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

impl<S: Service> Service for TlsClient<S> {
    type Session = TlsSession<S, UnbufferedClientConnection>;

    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal> {
        let Origin::Dialled { .. } = peer.origin else { return Err(Refusal) };
        let connection = UnbufferedClientConnection::new(self.config.clone(), self.name.clone());
        let connection = connection.map_err(|e| {
            tracing::warn!(%e, "cannot start a TLS connection");
            Refusal
        })?;
        Ok(TlsSession::new(connection, peer.clone(), self.shared.clone()))
    }

    fn options(&self) -> ServiceOptions {
        self.shared.service.options().speaks_first(true)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.shared.limits.check(policy)?;
        self.shared.service.check_limits(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.shared.service.dial_failed(dial, error);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    const YEARS: Duration = Duration::from_secs(100 * 366 * 86_400);

    fn now() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
    }

    fn verdict(
        given: &GivenCertificates,
        shown: &CertificateDer<'_>,
        name: &str,
        at: Duration,
    ) -> Result<(), Error> {
        let (name, at) = (ServerName::try_from(name).unwrap(), UnixTime::since_unix_epoch(at));
        given.verify_server_cert(shown, &[], &name, &[], at).map(drop)
    }

    /// Two as `openssl req -x509 -newkey ec -subj /CN=localhost -addext subjectAltName=DNS:localhost` makes them, with
    /// the times of those of rcgen (`openssl ca -selfsign`, OpenSSL 3.0).
    fn of_openssl() -> [CertificateDer<'static>; 2] {
        let both = PemText::of(include_str!("client/openssl.pem"));
        both.certificates().unwrap().try_into().expect("two")
    }

    fn params(is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.is_ca = is_ca;
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2090, 1, 1));
        params
    }

    fn of_rcgen(is_ca: IsCa) -> CertificateDer<'static> {
        params(is_ca).self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// Taken as it is, by name and in its time; another one like it is not.
    fn assert_taken(shown: &CertificateDer<'static>, like: &CertificateDer<'static>) {
        let given = GivenCertificates::new(vec![like.clone(), shown.clone()]).unwrap();
        assert_eq!(verdict(&given, shown, "localhost", now()), Ok(()));
        let refusal = |name, at| match verdict(&given, shown, name, at) {
            Err(Error::InvalidCertificate(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(matches!(refusal("elsewhere", now()), CertificateError::NotValidForNameContext { .. }));
        assert!(matches!(refusal("127.0.0.1", now()), CertificateError::NotValidForNameContext { .. }));
        assert!(matches!(refusal("localhost", now() + YEARS), CertificateError::ExpiredContext { .. }));
        let before = Duration::from_secs(1);
        assert!(matches!(refusal("localhost", before), CertificateError::NotValidYetContext { .. }));
        let other = GivenCertificates::new(vec![like.clone()]).unwrap();
        assert!(verdict(&other, shown, "localhost", now()).is_err(), "nobody has given it");
    }

    #[test]
    fn a_certificate_of_openssl_is_its_own_authority() {
        let [shown, like] = of_openssl();
        assert_taken(&shown, &like);
    }

    #[test]
    fn a_certificate_of_rcgen_is_its_own_authority_whether_or_not_it_says_so() {
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            assert_taken(&of_rcgen(is_ca), &of_rcgen(is_ca));
        }
    }

    #[test]
    fn an_authority_vouches_for_servers_and_for_no_other_authority_that_is_shown() {
        let key = KeyPair::generate().unwrap();
        let mut root = params(IsCa::Ca(BasicConstraints::Unconstrained));
        root.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
        let given = GivenCertificates::new(vec![root.self_signed(&key).unwrap().der().clone()]).unwrap();
        let issuer = Issuer::new(root, key);
        let below = |is_ca| params(is_ca).signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        assert_eq!(verdict(&given, below(IsCa::NoCa).der(), "localhost", now()), Ok(()));
        let other = below(IsCa::Ca(BasicConstraints::Unconstrained));
        let refusal = verdict(&given, other.der(), "localhost", now()).unwrap_err();
        assert!(is_of_an_authority(&refusal), "it was not given: {refusal}");
    }
}
