//! Certificates that change while the server runs, and files that hold none.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use tidegate::Policy;
use tidegate_services::Echo;
use tidegate_tls::{Identity, TlsClient, TlsError, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::TestConnection;

/// The certificate that a client sees which trusts these papers.
fn shown(service: &TlsServer<Echo>, papers: &Papers) -> Result<CertificateDer<'static>, rustls::Error> {
    let mut wire = TestConnection::to(service, Policy::default());
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    test_client.talk(&mut wire).map(|()| test_client.tls.peer_certificates().unwrap()[0].clone().into_owned())
}

fn held(papers: &Papers) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(papers.cert()).unwrap()
}

/// The protocol agreed on with a client that offers this one.
fn agreed(service: &TlsServer<Echo>, papers: &Papers, offer: &str) -> Result<Option<Vec<u8>>, rustls::Error> {
    let mut trusting = papers.trusting(&[&TLS13]);
    trusting.alpn_protocols = vec![offer.into()];
    let mut wire = TestConnection::to(service, Policy::default());
    let mut test_client = TestClient::new(&Arc::new(trusting));
    test_client.talk(&mut wire).map(|()| test_client.tls.alpn_protocol().map(<[u8]>::to_vec))
}

#[test]
fn new_connections_get_the_new_certificate_and_old_ones_go_on() {
    let papers = Papers::of("localhost");
    let identity = papers.identity(&[]);
    let service = TlsServer::new(Echo, identity.clone());
    let shown = |papers: &Papers| shown(&service, papers);
    let first = held(&papers);
    assert_eq!(shown(&papers).unwrap(), first);
    let mut standing = (
        TestConnection::to(&service, Policy::default()),
        TestClient::new(&Arc::new(papers.trusting(&[&TLS13]))),
    );
    standing.1.talk(&mut standing.0).unwrap();

    papers.renew("localhost");
    let second = held(&papers);
    assert_ne!(first, second);
    assert!(shown(&papers).is_err(), "nobody has said that there is another one");
    identity.reload().unwrap();
    assert_eq!(shown(&papers).unwrap(), second);
    assert_eq!(standing.1.exchange(b"still here", &mut standing.0), b"still here");

    std::fs::write(papers.key(), "no key").unwrap();
    let e = identity.reload().unwrap_err();
    assert!(matches!(e, TlsError::Pem { .. }) && e.to_string().contains("key.pem"), "{e}");
    assert_eq!(shown(&papers).unwrap(), second, "nothing has changed");
}

#[test]
fn files_that_cannot_be_used_say_why() {
    let (papers, others) = (Papers::of("localhost"), Papers::of("localhost"));
    let read = |cert, key| Identity::read(cert, key).map(drop);
    let (cert, key) = (papers.cert(), papers.key());
    assert!(read(&cert, &key).is_ok());
    let nowhere = cert.with_extension("missing");
    assert!(matches!(read(&nowhere, &key), Err(TlsError::Read { path, .. }) if path == nowhere));
    assert!(matches!(read(&cert, &nowhere), Err(TlsError::Read { path, .. }) if path == nowhere));
    assert!(matches!(read(&key, &key), Err(TlsError::Pem { what: "certificate", .. })));
    assert!(matches!(read(&cert, &cert), Err(TlsError::Pem { what: "private key", .. })));
    assert!(matches!(read(&cert, &others.key()), Err(TlsError::Pair { .. })), "a key of another certificate");
}

#[test]
fn a_configuration_of_rustls_is_taken_as_it_is() {
    let papers = Papers::of("localhost");
    let config = |papers: &Papers| {
        let chain = vec![CertificateDer::from_pem_file(papers.cert()).unwrap()];
        let key = PrivateKeyDer::from_pem_file(papers.key()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"own".to_vec()];
        Arc::new(config)
    };
    let identity = Identity::from(config(&papers));
    let service = TlsServer::new(Echo, identity.clone());
    let spoken = |papers: &Papers| agreed(&service, papers, "own");
    assert_eq!(spoken(&papers).unwrap().as_deref(), Some(b"own".as_slice()));
    let e = identity.reload().unwrap_err();
    assert!(matches!(e, TlsError::NoFiles) && e.to_string().contains("replace()"), "{e}");

    papers.renew("localhost");
    assert!(spoken(&papers).is_err(), "nobody has said that there is another one");
    identity.replace(config(&papers));
    assert!(spoken(&papers).is_ok());
}

#[test]
fn texts_are_as_good_as_files_and_another_identity_takes_their_place() {
    let (papers, others) = (Papers::of("localhost"), Papers::of("localhost"));
    let text = |path| std::fs::read_to_string(path).unwrap();
    let pem = |cert: &Papers, key: &Papers| Identity::pem(&text(cert.cert()), &text(key.key()));
    let identity = pem(&papers, &papers).unwrap();
    let service = TlsServer::new(Echo, identity.clone());
    assert_eq!(shown(&service, &papers).unwrap(), held(&papers));
    identity.replace(pem(&others, &others).unwrap());
    assert_eq!(shown(&service, &others).unwrap(), held(&others));

    assert!(matches!(identity.reload(), Err(TlsError::NoFiles)));
    assert!(matches!(pem(&papers, &others), Err(TlsError::Pair { .. })));
    assert!(matches!(Identity::pem("", ""), Err(TlsError::Pem { what: "certificate", .. })));
}

#[test]
fn the_protocols_stay_when_the_files_are_read_again() {
    let papers = Papers::of("localhost");
    let identity = papers.identity(&["own"]);
    let service = TlsServer::new(Echo, identity.clone());
    assert_eq!(agreed(&service, &papers, "own").unwrap().as_deref(), Some(b"own".as_slice()));
    assert!(agreed(&service, &papers, "other").is_err());
    identity.reload().unwrap();
    assert_eq!(agreed(&service, &papers, "own").unwrap().as_deref(), Some(b"own".as_slice()));
    let without = TlsServer::new(Echo, papers.identity(&[]));
    assert_eq!(agreed(&without, &papers, "other").unwrap(), None);
}

#[test]
fn where_a_client_dials_is_given_as_everywhere_and_bad_text_is_refused() {
    let papers = Papers::of("localhost");
    let client = |target, name| TlsClient::new(Echo, target, name, papers.trusting(&[&TLS13]));
    assert!(client("127.0.0.1:443", "localhost").is_ok());
    let e = client("127.0.0.1:https", "localhost").unwrap_err();
    assert!(matches!(e, TlsError::Address(_)) && e.to_string().contains("127.0.0.1:https"), "{e}");
    assert!(matches!(client("127.0.0.1:443", "a host"), Err(TlsError::Name(name)) if name == "a host"));
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 443));
    assert!(TlsClient::new(Echo, addr, "localhost", papers.trusting(&[&TLS13])).is_ok());
}
