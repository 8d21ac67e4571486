//! Certificates and keys in PEM form, from files and texts.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fault::TlsError;

/// A text in PEM form.
pub(crate) struct PemText<'a> {
    /// Its file, or what errors call it.
    pub(crate) source: &'a Path,
    text: Cow<'a, [u8]>,
}

impl<'a> PemText<'a> {
    /// Reads a regular file: others (a FIFO, a terminal) may never end, or block the reader forever.
    pub(crate) fn read(path: &'a Path) -> Result<Self, TlsError> {
        let read = |path: &Path| match std::fs::metadata(path)?.is_file() {
            true => std::fs::read(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        };
        let text = read(path).map_err(|error| TlsError::Read { path: path.into(), error })?;
        Ok(Self { source: path, text: text.into() })
    }

    pub(crate) fn of(text: &'a str) -> Self {
        Self { source: Path::new("the text given"), text: text.as_bytes().into() }
    }

    /// All certificates in it.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let error = |e| self.error("certificate", e);
        let all: Vec<_> =
            CertificateDer::pem_slice_iter(&self.text).collect::<Result<_, _>>().map_err(error)?;
        if all.is_empty() {
            return Err(error(pem::Error::NoItemsFound));
        }
        Ok(all)
    }

    /// The first private key in it.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|e| self.error("private key", e))
    }

    fn error(&self, what: &'static str, e: pem::Error) -> TlsError {
        let path = self.source.into();
        match e {
            pem::Error::Io(error) => TlsError::Read { path, error },
            other => TlsError::Pem { path, what, why: other.to_string() },
        }
    }
}
