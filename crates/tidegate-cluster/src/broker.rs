//! The connection to the broker.

use std::path::Path;
use std::time::Duration;

use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr};

use crate::access::{Auth, BrokerAccess};
use crate::error::ClusterError;

/// Timeout of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

impl BrokerAccess {
    /// Connects; the client reconnects automatically.
    ///
    /// # Errors
    /// The broker does not answer or rejects us, or a file cannot be read.
    pub async fn connect(&self, name: &str) -> Result<Client, ClusterError> {
        let access = |why: String| ClusterError::Access { url: self.shown(), why };
        let write =
            |e: &dyn std::fmt::Display| access(format!("{e}; write nats://HOST:PORT or tls://HOST:PORT"));
        let parsed = self.url.split(',').map(|url| url.trim().parse::<ServerAddr>());
        let addrs = parsed.collect::<Result<Vec<_>, _>>().map_err(|e| write(&e))?;
        if addrs.iter().any(|addr| addr.host().is_empty()) {
            return Err(write(&"the host is missing"));
        }
        let mut options = self.options(&addrs)?.name(name).connection_timeout(CONNECT);
        // Beats go to and fro each half second anyway; this finds a broker that takes bytes and does nothing.
        options = options.ping_interval(Duration::from_secs(2));
        options.connect(addrs).await.map_err(|e| match self.to_give(&e) {
            Some(remedy) => access(format!("{e}; {remedy}")),
            None => {
                ClusterError::Broker { url: self.shown(), why: format!("{e}; {}", self.to_see(e.kind())) }
            }
        })
    }

    /// The remedy after an authentication or TLS error.
    fn to_give(&self, e: &ConnectError) -> Option<&'static str> {
        let text = e.to_string();
        let remedy = match e.kind() {
            ConnectErrorKind::AuthorizationViolation if matches!(self.auth, Auth::Url) => {
                "it requires authentication: give --nats-user, --nats-token-file, --nats-nkey or --nats-creds, or \
                 a user in the URL"
            }
            ConnectErrorKind::AuthorizationViolation => {
                "it rejects these credentials: compare them with its configuration"
            }
            // The alerts of a server that misses our certificate (RFC 8446, section 6.2; the last is of TLS 1.2).
            _ if ["CertificateRequired", "BadCertificate", "UnknownCA", "HandshakeFailure"]
                .iter()
                .any(|alert| text.contains(alert)) =>
            {
                "it requires a client certificate: give --nats-cert and --nats-key"
            }
            _ if text.contains("peer certificate") => {
                "give the authority of its certificate with --nats-ca, and write its host as the certificate does"
            }
            _ => return None,
        };
        Some(remedy)
    }

    /// The remedy where no broker answers.
    fn to_see(&self, kind: ConnectErrorKind) -> &'static str {
        match kind {
            ConnectErrorKind::TimedOut => {
                "the port is open, but no NATS server answers: check that nats-server runs there"
            }
            _ if self.ca.is_some() || self.identity.is_some() || self.url.contains("tls://") => {
                "check that nats-server runs there with TLS; without TLS use nats:// without --nats-ca and --nats-cert"
            }
            _ => "check that nats-server runs there",
        }
    }

    fn options(&self, addrs: &[ServerAddr]) -> Result<ConnectOptions, ClusterError> {
        let options = ConnectOptions::new();
        let mut options = match &self.auth {
            Auth::Url => of_url(options, addrs),
            Auth::User { name, password } => options.user_and_password(name.clone(), secret(password)?),
            Auth::Token(file) => options.token(secret(file)?),
            Auth::Nkey(file) => options.nkey(seed(file)?),
            Auth::Credentials(file) => {
                let expected = "JWT and seed as nsc writes them";
                let content = |_| ClusterError::Content { path: file.clone(), expected };
                // The client wants the end of the last line.
                options.credentials(&format!("{}\n", secret(file)?)).map_err(content)?
            }
        };
        for file in
            self.ca.iter().chain(self.identity.iter().flat_map(|(certificate, key)| [certificate, key]))
        {
            pem(file)?;
        }
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.identity {
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }
}

/// The client itself does not look for who we are in the URL. A name without a password is a token, as for NATS's own
/// tools.
fn of_url(options: ConnectOptions, addrs: &[ServerAddr]) -> ConnectOptions {
    let said = addrs.iter().find_map(|addr| Some((addr.username()?, addr.password())));
    match said {
        Some((name, Some(password))) => options.user_and_password(plain(name), plain(password)),
        Some((token, None)) => options.token(plain(token)),
        None => options,
    }
}

/// What `%40` and the like in a URL stand for (RFC 3986, section 2.1).
fn plain(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn secret(path: &Path) -> Result<String, ClusterError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| ClusterError::File { path: path.to_owned(), error })?;
    match text.trim() {
        "" => Err(ClusterError::Content { path: path.to_owned(), expected: "secret: it is empty" }),
        text => Ok(text.to_owned()),
    }
}

/// The client would only say that it cannot sign.
fn seed(path: &Path) -> Result<String, ClusterError> {
    let text = secret(path)?;
    match nkeys::KeyPair::from_seed(&text) {
        Ok(_) => Ok(text),
        Err(_) => {
            let expected = "seed of an nkey: one of a user begins with SU";
            Err(ClusterError::Content { path: path.to_owned(), expected })
        }
    }
}

/// The client would not say which file it is.
fn pem(path: &Path) -> Result<(), ClusterError> {
    match secret(path)?.contains("-----BEGIN ") {
        true => Ok(()),
        false => Err(ClusterError::Content { path: path.to_owned(), expected: "PEM text" }),
    }
}
