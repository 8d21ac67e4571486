//! How connections end: said by one side, by both, or by nobody.

use std::sync::{Arc, Mutex};

use rustls::version::{TLS12, TLS13};
use tidegate::proto::Event;
use tidegate::{CloseReason, Consumed, Flow, Outbox, Peer, Policy, Refusal, Service, Session};
use tidegate_tls::{Fault, TlsCounters, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::{TestConnection, WireState};

/// The calls that sessions received.
type Diary = Arc<Mutex<Vec<String>>>;

/// Obeys its input: `bye` half-closes, `close` closes, `abort` aborts, `k` is never enough, and of `1` it takes
/// one with each call.
struct Obeys(Diary);

struct Obedient(Diary);

impl Obedient {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl Service for Obeys {
    type Session = Obedient;

    fn open(&self, _: &Peer) -> Result<Obedient, Refusal> {
        Ok(Obedient(self.0.clone()))
    }
}

impl Session for Obedient {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match input {
            [b'k', ..] => return Consumed::bytes(0),
            [b'1', ..] => {
                out.write(b"one ");
                return Consumed::bytes(1).again();
            }
            _ => {}
        }
        self.note(format!("heard {}", String::from_utf8_lossy(input)));
        out.write(b"yes");
        Consumed::all(input).then(match input {
            b"bye" => Flow::Shutdown,
            b"close" => Flow::Close,
            b"abort" => Flow::Abort,
            _ => Flow::Continue,
        })
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.note("end".into());
        out.write(b"last");
        Flow::Close
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.note("limit".into());
        out.write(b"too long");
        Flow::Linger
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.note(if out.is_draining() { "drain".into() } else { "no drain".into() });
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        self.note(format!("closed {why}"));
    }
}

struct Scene {
    wire: TestConnection,
    test_client: TestClient,
    diary: Diary,
    counters: Arc<TlsCounters>,
}

impl Scene {
    fn begin() -> [Self; 2] {
        let papers = Papers::of("localhost");
        [&TLS12, &TLS13].map(|version| {
            let (diary, counters) = (Diary::default(), Arc::<TlsCounters>::default());
            let inside = Obeys(diary.clone());
            let service = TlsServer::new(inside, papers.identity(&[])).count_in(counters.clone());
            let wire = TestConnection::to(&service, Policy::default());
            let test_client = TestClient::new(&Arc::new(papers.trusting(&[version])));
            Self { wire, test_client, diary, counters }
        })
    }

    /// Behind the handshake.
    fn set() -> [Self; 2] {
        Self::begin().map(|mut scene| {
            scene.test_client.talk(&mut scene.wire).unwrap();
            assert_eq!(scene.hear("x"), "yes");
            scene.diary.lock().unwrap().clear();
            scene
        })
    }

    fn hear(&mut self, say: &str) -> String {
        String::from_utf8(self.test_client.exchange(say.as_bytes(), &mut self.wire)).unwrap()
    }

    fn end(&mut self) {
        self.test_client.tls.send_close_notify();
        self.test_client.talk(&mut self.wire).unwrap();
    }

    fn diary(&self) -> Vec<String> {
        self.diary.lock().unwrap().clone()
    }
}

#[test]
fn a_peer_that_says_so_has_ended() {
    for mut scene in Scene::set() {
        scene.end();
        assert_eq!(scene.diary(), ["end", "closed finished"]);
        assert_eq!((scene.test_client.heard.as_slice(), scene.test_client.clean_end), (&b"last"[..], true));
        assert_eq!(scene.wire.state, WireState::Closed);
        assert_eq!(scene.counters.of(Fault::Truncated), 0);
    }
}

#[test]
fn a_stream_that_was_cut_off_is_no_end() {
    for mut scene in Scene::set() {
        scene.wire.end();
        assert_eq!(scene.diary(), ["closed error"], "to the session the peer has not ended");
        assert_eq!(scene.counters.of(Fault::Truncated), 1);
        scene.test_client.talk(&mut scene.wire).unwrap();
        assert_eq!(scene.test_client.heard, b"");
    }
}

#[test]
fn a_record_that_was_cut_in_two_is_no_end_either() {
    for mut scene in Scene::set() {
        scene.test_client.say(b"some of this is lost");
        let said = scene.test_client.says();
        scene.wire.send(&said[..said.len() - 1]);
        scene.wire.end();
        assert_eq!(scene.diary(), ["closed error"]);
        assert_eq!(scene.counters.of(Fault::Truncated), 1);
    }
}

#[test]
fn a_session_that_closes_says_so() {
    for mut scene in Scene::set() {
        assert_eq!(scene.hear("close"), "yes");
        assert!(scene.test_client.clean_end);
        assert_eq!(scene.wire.state, WireState::Closed);
        assert_eq!(scene.diary(), ["heard close", "closed finished"]);
    }
}

#[test]
fn a_session_that_finishes_sending_still_hears() {
    for mut scene in Scene::set() {
        assert_eq!(scene.hear("bye"), "yes");
        assert!(scene.test_client.clean_end && scene.wire.finished);
        assert_eq!(scene.wire.state, WireState::Open);
        assert_eq!(scene.hear("more"), "", "nothing comes after the end");
        scene.end();
        assert_eq!(scene.diary(), ["heard bye", "heard more", "end", "closed finished"]);
        assert_eq!(scene.wire.state, WireState::Closed);
    }
}

#[test]
fn an_abort_says_nothing() {
    for mut scene in Scene::set() {
        assert_eq!(scene.hear("abort"), "");
        assert!(!scene.test_client.clean_end);
        assert_eq!(scene.wire.state, WireState::Reset);
    }
}

#[test]
fn what_comes_after_the_end_is_not_looked_at() {
    for mut scene in Scene::set() {
        scene.test_client.tls.send_close_notify();
        let said = scene.test_client.says();
        scene.wire.send([said.as_slice(), b"anything at all"].concat());
        assert_eq!(scene.diary(), ["end", "closed finished"]);
    }
}

#[test]
fn a_stop_is_passed_on_also_to_who_opens_later() {
    for mut scene in Scene::set() {
        scene.wire.happens(Event::Drain);
        assert_eq!(scene.diary(), ["drain"]);
    }
    for mut scene in Scene::begin() {
        scene.wire.happens(Event::Drain);
        assert!(scene.diary().is_empty(), "nobody is there yet");
        scene.test_client.talk(&mut scene.wire).unwrap();
        assert_eq!(scene.diary().first().map(String::as_str), Some("drain"));
    }
}

#[test]
fn a_message_that_is_too_long_is_answered() {
    for mut scene in Scene::set() {
        let message = "k".repeat(Policy::default().input_bytes + 1);
        assert_eq!(scene.hear(&message), "too long");
        assert!(scene.test_client.clean_end);
        scene.wire.end();
        assert_eq!(scene.diary(), ["limit", "closed input-limit"]);
    }
}

#[test]
fn a_session_may_take_one_message_with_each_call() {
    for mut scene in Scene::set() {
        assert_eq!(scene.hear("111x"), "one one one yes");
        assert_eq!(scene.diary(), ["heard x"]);
    }
}
