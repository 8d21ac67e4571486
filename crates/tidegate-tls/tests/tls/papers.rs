//! Certificates of one's own making, and who trusts them.

use std::path::PathBuf;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tidegate_tls::Identity;

pub struct Papers {
    folder: TempDir,
}

impl Papers {
    /// A new pair, for this name and for 127.0.0.1.
    pub fn of(name: &str) -> Self {
        let papers = Self { folder: tempfile::tempdir().unwrap() };
        papers.renew(name);
        papers
    }

    /// Another pair in the same files.
    pub fn renew(&self, name: &str) {
        let pair = rcgen::generate_simple_self_signed(vec![name.into(), "127.0.0.1".into()]).unwrap();
        std::fs::write(self.cert(), pair.cert.pem()).unwrap();
        std::fs::write(self.key(), pair.signing_key.serialize_pem()).unwrap();
    }

    pub fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    pub fn identity(&self, protocols: &[&str]) -> Identity {
        Identity::read(self.cert(), self.key()).unwrap().protocols(protocols)
    }

    /// A client that trusts these papers and nothing else.
    pub fn trusting(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.cert()).unwrap()).unwrap();
        ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}
