//! Whatever the steps in which bytes come, each comes back once and in order; both versions, full handshakes and
//! resumed ones.

use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use tidegate::Policy;
use tidegate_services::Echo;
use tidegate_tls::{TlsCounters, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::{TestConnection, WireState};

fn noise(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

#[test]
fn every_byte_comes_back_whatever_the_steps() {
    let papers = Papers::of("localhost");
    let counters = Arc::<TlsCounters>::default();
    let service = TlsServer::new(Echo, papers.identity(&[])).count_in(counters.clone());
    let mut connections = 0;
    for version in [&TLS12, &TLS13] {
        for step in [1, 7, 1000, 20_000, usize::MAX] {
            let config = Arc::new(papers.trusting(&[version])); // of its own: no session to take up
            let mut wire = TestConnection::to(&service, Policy::default());
            let mut test_client = TestClient { step, ..TestClient::new(&config) };
            for bytes in [1, 100, 16_384, 16_385, 50_000] {
                let said = noise(bytes);
                assert!(test_client.exchange(&said, &mut wire) == said, "{version:?} in steps of {step}");
            }
            assert_eq!(test_client.tls.protocol_version(), Some(version.version));
            assert_eq!(wire.state, WireState::Open);
            connections += 1;
        }
    }
    assert_eq!((counters.handshakes(), counters.resumed(), counters.failed()), (connections, 0, 0));
}

#[test]
fn an_earlier_session_is_taken_up() {
    let papers = Papers::of("localhost");
    for version in [&TLS12, &TLS13] {
        let counters = Arc::<TlsCounters>::default();
        let service = TlsServer::new(Echo, papers.identity(&[])).count_in(counters.clone());
        let config = Arc::new(papers.trusting(&[version]));
        for resumed in 0..3 {
            let mut wire = TestConnection::to(&service, Policy::default());
            let mut test_client = TestClient::new(&config);
            assert_eq!(test_client.exchange(b"hello", &mut wire), b"hello");
            assert_eq!((counters.handshakes(), counters.resumed()), (resumed + 1, resumed), "{version:?}");
        }
    }
}

#[test]
fn what_both_speak_is_agreed_on() {
    let papers = Papers::of("localhost");
    let counters = Arc::<TlsCounters>::default();
    let service = TlsServer::new(Echo, papers.identity(&["http/1.1"])).count_in(counters.clone());
    for (offers, agreed) in
        [(vec!["h2", "http/1.1"], Some("http/1.1")), (vec![], None), (vec!["http/1.1"], Some("http/1.1"))]
    {
        let mut config = papers.trusting(&[&TLS13]);
        config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut test_client = TestClient::new(&Arc::new(config));
        assert_eq!(test_client.exchange(b"x", &mut TestConnection::to(&service, Policy::default())), b"x");
        assert_eq!(test_client.tls.alpn_protocol(), agreed.map(str::as_bytes));
    }
    let mut config = papers.trusting(&[&TLS13]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut test_client = TestClient::new(&Arc::new(config));
    let e = test_client.talk(&mut TestConnection::to(&service, Policy::default())).unwrap_err();
    assert!(e.to_string().contains("NoApplicationProtocol"), "{e}");
    assert_eq!(counters.failed(), 1);
}
