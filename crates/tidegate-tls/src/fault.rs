//! What goes wrong, and how often.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why TLS ended a connection, or could not vouch for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The handshake failed: no TLS, nothing in common, or a certificate that is not trusted.
    Handshake,
    /// The handshake took too long.
    TooLate,
    /// The peer left in the middle of the handshake.
    Unfinished,
    /// A record after the handshake was not what it should be.
    Record,
    /// The peer ended the connection without saying that it does.
    Truncated,
}

impl Fault {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 5] =
        [Self::Handshake, Self::TooLate, Self::Unfinished, Self::Record, Self::Truncated];

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

/// What the connections of one service have come to.
#[derive(Debug, Default)]
pub struct TlsCounters {
    handshakes: AtomicU64,
    resumed: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
}

impl TlsCounters {
    /// Handshakes that were completed.
    #[must_use]
    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Relaxed)
    }

    /// Of those, the ones that took up an earlier session and spared the certificate.
    #[must_use]
    pub fn resumed(&self) -> u64 {
        self.resumed.load(Relaxed)
    }

    /// Connections with this fault.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }

    /// Handshakes that were not completed.
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

/// Settings that cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {error}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file holds something else.
    #[error("{path} holds no {what} in PEM form: {why}", path = .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What was found.
        why: String,
    },
    /// There are no files to read again.
    #[error(
        "this identity was made of a configuration, not of files: give it another configuration with replace()"
    )]
    NoFiles,
    /// Certificate and key are no pair, or of a kind that cannot be used.
    #[error("the certificate in {cert} cannot be used with the key in {key}: {error}", cert = .cert.display(), key = .key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong.
        error: Box<rustls::Error>,
    },
    /// The other end has a name no certificate can have.
    #[error("{0:?} is no name that a certificate could have; give a host name or an IP address")]
    Name(String),
    /// There is nothing to trust.
    #[error("this system has no certificates to trust ({0}); give those of the server's authority")]
    NoRoots(String),
    /// An unfinished record would be cut off by the policy.
    #[error("input_bytes ({0}) is too small for TLS: a record that has not arrived in full is unconsumed input; raise it to {least} or more", least = crate::session::RECORD_BYTES)]
    InputBytes(usize),
    /// No handshake is fast enough.
    #[error("handshake_timeout is zero; it must be longer than zero, or none at all")]
    NoTime,
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}
