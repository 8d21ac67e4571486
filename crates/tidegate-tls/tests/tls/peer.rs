//! The session inside knows what was agreed on: host name, protocol, certificates of the client.

use std::sync::{Arc, Mutex};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig};
use tidegate::testing::{self, TestState};
use tidegate::{CloseReason, Consumed, Outbox, Peer, Policy, Refusal, Service, Session, TlsPeer};
use tidegate_tls::{TlsLimits, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::TestConnection;

/// Records what it learned of its peers.
#[derive(Clone, Default)]
struct Asks(Arc<Mutex<Vec<TlsPeer>>>);

impl Service for Asks {
    type Session = Said;

    fn open(&self, peer: &Peer) -> Result<Said, Refusal> {
        let tls = peer.tls.as_deref().ok_or(Refusal)?;
        self.0.lock().unwrap().push(tls.clone());
        Ok(Said)
    }
}

struct Said;

impl Session for Said {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

fn certificate(papers: &Papers) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(papers.cert()).unwrap()
}

fn key(papers: &Papers) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(papers.key()).unwrap()
}

/// A server that asks for a certificate and does without, if there is none.
fn server(papers: &Papers, clients: &Papers) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate(clients)).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(vec![certificate(papers)], key(papers))
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

#[test]
fn the_session_inside_knows_name_protocol_and_certificate() {
    let (papers, clients) = (Papers::of("localhost"), Papers::of("client"));
    for version in [&TLS12, &TLS13] {
        let asks = Asks::default();
        let service = TlsServer::new(asks.clone(), server(&papers, &clients));
        let exchange = |config: &Arc<ClientConfig>, step| {
            let mut test_client = TestClient { step, ..TestClient::new(config) };
            assert_eq!(
                test_client.exchange(b"hello", &mut TestConnection::to(&service, Policy::default())),
                b"hello"
            );
            asks.0.lock().unwrap().pop().expect("the service was asked")
        };
        let mut config = papers.trusting(&[version]);
        let plain = Arc::new(config.clone());
        for step in [1, usize::MAX, usize::MAX] {
            // cut, full, resumed
            let seen = exchange(&plain, step);
            assert_eq!(
                (seen.server_name.as_deref(), &seen.alpn, seen.certificates.len()),
                (Some("localhost"), &None, 0)
            );
        }
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
        let seen = exchange(&Arc::new(config.clone()), 7);
        assert_eq!(seen.alpn.as_deref(), Some(&b"h2"[..]), "the server's order counts: {version:?}");
        config.enable_sni = false;
        assert_eq!(exchange(&Arc::new(config), 100).server_name, None, "{version:?}");
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&papers)).unwrap();
        let known = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate(&clients)], key(&clients))
            .unwrap();
        let seen = exchange(&Arc::new(known), usize::MAX);
        assert_eq!(seen.certificates, [certificate(&clients).to_vec()], "{version:?}");
        assert_eq!(service.counters().handshakes(), 6, "{version:?}");
    }
}

/// The harness of the library drives a layer as it does any service.
#[test]
fn a_test_connection_speaks_tls() {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(Asks::default(), papers.identity(&["h2"]));
    let mut config = papers.trusting(&[&TLS13]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    for step in [1, 100, usize::MAX] {
        let mut conn = testing::TestConnection::open(&service).unwrap();
        let mut client = TestClient::new(&config);
        client.say(b"hello");
        while client.heard != b"hello" {
            let said = client.says();
            said.chunks(step).for_each(|piece| conn.receive(piece));
            let answer = conn.take_output();
            assert!(!said.is_empty() || !answer.is_empty(), "both are silent: {conn:?}");
            client.hears(&answer).unwrap();
        }
        conn.advance(TlsLimits::default().handshake_timeout.unwrap());
        assert_eq!(conn.state(), TestState::Open, "the handshake was over in time");
    }
    let mut conn = testing::TestConnection::open(&service).unwrap();
    conn.receive(b"\x16\x03\x01");
    conn.advance(TlsLimits::default().handshake_timeout.unwrap());
    assert_eq!((conn.state(), conn.close_reason()), (TestState::Reset, Some(CloseReason::Aborted)));
}
