//! TLS errors and their counters.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate::ParseEndpointError;

/// Why TLS ended a connection, or could not authenticate its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The handshake failed: no TLS, no common parameters, or an untrusted certificate.
    Handshake,
    /// The handshake took too long.
    TooLate,
    /// The peer closed the connection during the handshake.
    Unfinished,
    /// An invalid record after the handshake.
    Record,
    /// The peer closed the connection without `close_notify`.
    Truncated,
}

impl Fault {
    /// All faults, in the order of their counters.
    pub const ALL: &'static [Self] =
        &[Self::Handshake, Self::TooLate, Self::Unfinished, Self::Record, Self::Truncated];

    /// A short name, as used in counters and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::TooLate => "too-late",
            Self::Unfinished => "unfinished",
            Self::Record => "record",
            Self::Truncated => "truncated",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Handshake counters of one service.
#[derive(Debug, Default)]
pub struct TlsCounters {
    handshakes: AtomicU64,
    resumed: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
}

impl TlsCounters {
    /// Completed handshakes.
    #[must_use]
    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Relaxed)
    }

    /// Of those, the ones that resumed an earlier session.
    #[must_use]
    pub fn resumed(&self) -> u64 {
        self.resumed.load(Relaxed)
    }

    /// Connections with this fault.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }

    /// Failed handshakes.
    #[must_use]
    pub fn failed(&self) -> u64 {
        [Fault::Handshake, Fault::TooLate, Fault::Unfinished].map(|fault| self.of(fault)).iter().sum()
    }

    pub(crate) fn count_handshake(&self, resumed: bool) {
        self.handshakes.fetch_add(1, Relaxed);
        self.resumed.fetch_add(u64::from(resumed), Relaxed);
    }

    pub(crate) fn count(&self, fault: Fault) {
        self.faults[fault as usize].fetch_add(1, Relaxed);
    }
}

/// Invalid settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {error}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file with other content.
    #[error("{path} holds no {what} in PEM form: {why}", path = .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The error.
        why: String,
    },
    /// There are no files to reload.
    #[error("this identity was not read from files: change it with replace()")]
    NoFiles,
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error(
        "the certificate in {cert} cannot be used with the key in {key}: {error}",
        cert = .cert.display(),
        key = .key.display()
    )]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The error.
        error: Box<rustls::Error>,
    },
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] ParseEndpointError),
    /// The server name cannot occur in a certificate.
    #[error("{0:?} is not a valid server name; give a host name or an IP address")]
    Name(String),
    /// There are no trusted certificates.
    #[error("this system has no trusted certificates ({0}); give the certificate of the server's authority")]
    NoRoots(String),
    /// An error of rustls.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// An address that is one already: it is taken as text is.
impl From<Infallible> for TlsError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
