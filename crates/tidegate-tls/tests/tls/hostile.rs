//! Peers that do not want to speak TLS, or not in time.

use std::sync::Arc;
use std::time::Duration;

use rustls::version::TLS13;
use tidegate::{Policy, PolicyError, Server};
use tidegate_services::Echo;
use tidegate_tls::{Fault, TlsCounters, TlsLimits, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::{TestConnection, WireState};

fn service(papers: &Papers) -> (TlsServer<Echo>, Arc<TlsCounters>) {
    let counters = Arc::<TlsCounters>::default();
    (TlsServer::new(Echo, papers.identity(&[])).count_in(counters.clone()), counters)
}

/// An alert, and the state of the connection afterwards.
fn assert_turned_away(mut wire: TestConnection, what: &str) {
    assert_eq!(wire.output.first(), Some(&21), "{what}: an alert (RFC 8446, section 5.1)");
    assert!(wire.finished, "{what}: it is the last that is said");
    wire.send(vec![0; 100_000]); // looked at by nobody
    wire.wait(Policy::default().linger_timeout);
    assert_eq!(wire.state, WireState::Closed, "{what}");
}

#[test]
fn a_peer_without_tls_receives_an_alert_and_is_closed() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let noises: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0; 64], &[22, 3, 1, 255, 255, 1], &[23, 3, 3, 0, 1, 0]];
    for (i, noise) in noises.into_iter().enumerate() {
        let mut wire = TestConnection::to(&service, Policy::default());
        noise.iter().for_each(|&byte| wire.send([byte]));
        assert_eq!(counters.of(Fault::Handshake), 1 + i as u64, "{noise:?}");
        assert_turned_away(wire, &format!("{noise:?}"));
    }
    assert_eq!(counters.handshakes(), 0);
}

#[test]
fn any_change_of_a_hello_is_survived() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let hello = TestClient::new(&Arc::new(papers.trusting(&[&TLS13]))).says();
    for at in 0..hello.len() {
        for flip in [1, 0x80] {
            let mut changed = hello.clone();
            changed[at] ^= flip;
            let mut wire = TestConnection::to(&service, Policy::default());
            wire.send(&changed);
            wire.end();
        }
    }
    assert_eq!(counters.handshakes(), 0);
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let mut wire = TestConnection::to(&service, Policy::default());
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    assert_eq!(test_client.exchange(b"hello", &mut wire), b"hello");
    test_client.say(b"do not change this");
    let mut said = test_client.says();
    *said.last_mut().unwrap() ^= 1;
    wire.send(&said);
    assert!(test_client.talk(&mut wire).is_err(), "the peer gets an error");
    assert_eq!((test_client.heard.as_slice(), counters.of(Fault::Record)), (&b""[..], 1));
    assert!(wire.finished);
}

/// rustls takes 32 in a row, as BoringSSL does (`kMaxKeyUpdates`).
#[test]
fn a_peer_that_only_changes_keys_is_refused() {
    let papers = Papers::of("localhost");
    for together in [false, true] {
        let (service, counters) = service(&papers);
        let mut wire = TestConnection::to(&service, Policy::default());
        let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
        for _ in 0..3 {
            assert_eq!(
                test_client.exchange(b"hello", &mut wire),
                b"hello",
                "bytes of the session start the count anew"
            );
            for _ in 0..32 {
                test_client.tls.refresh_traffic_keys().unwrap();
                test_client.talk(&mut wire).unwrap();
            }
        }
        assert_eq!(counters.of(Fault::Record), 0);
        let mut said = Vec::new();
        for _ in 0..10 {
            test_client.tls.refresh_traffic_keys().unwrap();
            said.extend(test_client.says());
            if !together {
                wire.send(std::mem::take(&mut said));
            }
        }
        wire.send(&said[..said.len().saturating_sub(3)]); // and the last not in full
        let heard = test_client.talk(&mut wire).unwrap_err();
        assert!(matches!(heard, rustls::Error::AlertReceived(_)), "{together}: {heard}");
        assert!(!test_client.clean_end && wire.finished);
        assert_eq!(counters.of(Fault::Record), 1);
    }
}

#[test]
fn a_handshake_has_its_time() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let hello = TestClient::new(&Arc::new(papers.trusting(&[&TLS13]))).says();
    let mut wire = TestConnection::to(&service, Policy::default().idle_timeout(None));
    for byte in &hello[..100] {
        wire.send([*byte]);
        wire.wait(Duration::from_millis(99)); // never idle
        assert_eq!(wire.state, WireState::Open);
    }
    wire.wait(Duration::from_millis(100));
    assert_eq!(wire.state, WireState::Reset);
    assert_eq!(counters.of(Fault::TooLate), 1);
}

#[test]
fn after_the_handshake_there_is_no_hurry() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let mut wire = TestConnection::to(&service, Policy::default().idle_timeout(None));
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    test_client.talk(&mut wire).unwrap();
    wire.wait(Duration::from_secs(3600));
    assert_eq!(test_client.exchange(b"hello", &mut wire), b"hello");
    assert_eq!(counters.failed(), 0);
}

#[test]
fn who_leaves_in_the_handshake_is_counted_and_a_check_of_the_port_is_not() {
    let papers = Papers::of("localhost");
    let (service, counters) = service(&papers);
    let mut wire = TestConnection::to(&service, Policy::default());
    wire.end();
    assert_eq!((wire.state, counters.failed()), (WireState::Closed, 0));
    let mut wire = TestConnection::to(&service, Policy::default());
    wire.send(&TestClient::new(&Arc::new(papers.trusting(&[&TLS13]))).says()[..50]);
    wire.end();
    assert_eq!((wire.state, counters.of(Fault::Unfinished)), (WireState::Closed, 1));
}

#[test]
fn limits_that_cannot_work_are_refused() {
    let small = Policy::default().input_bytes(16 * 1024);
    let error = TlsLimits::default().check(&small).unwrap_err();
    assert!(matches!(error, PolicyError::Range { name: "input_bytes", .. }), "{error}");
    let hasty = TlsLimits::default().handshake_timeout(Some(Duration::ZERO));
    let error = hasty.check(&Policy::default()).unwrap_err();
    assert!(matches!(error, PolicyError::Range { name: "tls.handshake_timeout", .. }), "{error}");
    assert!(TlsLimits::default().check(&Policy::default()).is_ok());
}

#[test]
fn a_server_whose_policy_has_no_room_for_a_record_is_not_bound() {
    let papers = Papers::of("localhost");
    let server = |policy, limits| {
        let service = TlsServer::new(Echo, papers.identity(&[])).limits(limits);
        Server::new(service).policy(policy).bind("127.0.0.1:0").map(drop)
    };
    let small = Policy::default().input_bytes(16 * 1024);
    let text = server(small, TlsLimits::default()).unwrap_err().to_string();
    assert!(text.contains("`input_bytes` is 16384") && text.contains("TLS record"), "{text}");
    let hasty = TlsLimits::default().handshake_timeout(Some(Duration::ZERO));
    let text = server(Policy::default(), hasty).unwrap_err().to_string();
    assert!(text.contains("tls.handshake_timeout"), "{text}");
    assert!(server(Policy::default(), TlsLimits::default()).is_ok());
}
