//! What must not be lost between the layer and the session inside, and what must not be taken for complete.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::version::TLS13;
use tidegate::link::{self, Link};
use tidegate::{
    Activity, CloseReason, Consumed, Flow, Mail, Outbox, Peer, Policy, Refusal, Service, Session,
};
use tidegate_tls::TlsServer;

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::{TestConnection, WireState};

/// The calls that sessions received.
type Diary = Arc<Mutex<Vec<String>>>;

fn note(diary: &Diary, text: String) {
    diary.lock().unwrap().push(text);
}

/// A connection behind the handshake.
fn established(service: impl Service) -> (TestConnection, TestClient) {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(service, papers.identity(&[]));
    let mut wire = TestConnection::to(&service, Policy::default());
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    test_client.talk(&mut wire).unwrap();
    (wire, test_client)
}

/// A service for one connection.
struct Only<S>(Mutex<Option<S>>);

impl<S: Session> Only<S> {
    fn new(session: S) -> Self {
        Self(Mutex::new(Some(session)))
    }
}

impl<S: Session> Service for Only<S> {
    type Session = S;

    fn open(&self, _: &Peer) -> Result<S, Refusal> {
        self.0.lock().unwrap().take().ok_or(Refusal)
    }
}

/// Takes one byte, and works on it until its timer.
struct Worker(Diary);

const WORK: Duration = Duration::from_millis(100);

impl Session for Worker {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        note(&self.0, format!("{} of {}", char::from(input[0]), input.len()));
        out.set_activity(Activity::Work);
        out.wake_at(out.now() + WORK);
        Consumed::bytes(1).again()
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if matches!(mail, Mail::Timer) {
            out.set_activity(Activity::Nothing);
        }
        Flow::Continue
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        note(&self.0, "end".into());
        Flow::Close
    }
}

#[test]
fn what_a_session_at_work_has_left_comes_when_that_is_done_and_before_the_end() {
    for ends in [true, false] {
        let diary = Diary::default();
        let (mut wire, mut test_client) = established(Only::new(Worker(diary.clone())));
        test_client.say(b"abc");
        if ends {
            test_client.tls.send_close_notify();
        }
        wire.send(test_client.says());
        wire.happens(tidegate::proto::Event::Mail(Mail::Wake.into())); // that is no reason to be called again
        assert_eq!(*diary.lock().unwrap(), ["a of 3"]);
        (0..3).for_each(|_| wire.wait(WORK));
        let all = ["a of 3", "b of 2", "c of 1", "end"];
        assert_eq!(*diary.lock().unwrap(), all[..if ends { 4 } else { 3 }]);
    }
}

/// Answers with so many bytes, at once or as there is room, and then goes on or closes.
struct Answers {
    left: usize,
    at_once: bool,
    then: Flow,
}

impl Answers {
    fn answer(&mut self, out: &mut Outbox<'_>) -> Flow {
        while self.left > 0 && (self.at_once || !out.is_full()) {
            out.write(&[b'x'; 1000]);
            self.left -= 1000;
        }
        if self.left == 0 { self.then } else { Flow::Continue }
    }
}

impl Session for Answers {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input).then(self.answer(out))
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.answer(out)
    }
}

/// The client's stream ends without `close_notify` while it does not read.
#[test]
fn an_answer_is_sent_whole_or_not_taken_for_whole_when_a_stream_was_cut_off() {
    const ANSWER: usize = 200_000;
    for (left, at_once, then) in [
        (1000, true, Flow::Continue),
        (ANSWER, true, Flow::Continue),
        (ANSWER, true, Flow::Close),
        (ANSWER, false, Flow::Close),
    ] {
        let (mut wire, mut test_client) = established(Only::new(Answers { left, at_once, then }));
        wire.reads = false;
        test_client.say(b"?");
        wire.send(test_client.says());
        wire.end();
        wire.read();
        test_client.talk_once(&mut wire);
        assert_eq!(wire.state, WireState::Closed);
        let heard = test_client.heard.len();
        assert_eq!(heard == left, at_once, "{heard} bytes of {left}, {then:?}");
        // Only who says that it closes has said that this is all.
        assert_eq!(test_client.clean_end, at_once && then == Flow::Close, "{left} bytes, {then:?}");
    }
}

#[test]
fn a_link_passes_a_stream_that_was_cut_off_or_changed_on_as_a_reset() {
    for changed in [false, true] {
        let (near, far): (Link, Link) = link::pair(64 << 10);
        let mut other = TestConnection::to(&Only::new(far), Policy::default());
        let (mut wire, mut test_client) = established(Only::new(near));
        test_client.say(b"half of it");
        wire.send(test_client.says());
        match changed {
            true => wire.send([&[23, 3, 3, 0, 32][..], &[7; 32]].concat()),
            false => wire.end(),
        }
        wire.wait(Policy::default().linger_timeout); // for the peer's end
        other.deliver();
        other.wait(Duration::from_secs(10));
        assert_eq!(other.state, WireState::Reset, "changed: {changed}");
        assert_eq!(other.text(), "half of it");
    }
}

/// Takes messages of 60 KiB.
struct Messages(Diary);

const MESSAGE: usize = 60 << 10;

impl Session for Messages {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        let whole = input.len() / MESSAGE;
        (0..whole).for_each(|_| note(&self.0, "message".into()));
        Consumed::bytes(whole * MESSAGE)
    }

    fn on_close(&mut self, why: CloseReason) {
        note(&self.0, why.to_string());
    }
}

/// Each is within `input_bytes`, though not together with an unfinished record behind it.
#[test]
fn messages_within_the_limit_are_taken_whatever_records_they_come_in() {
    assert!(MESSAGE < Policy::default().input_bytes);
    let diary = Diary::default();
    let (mut wire, mut test_client) = established(Only::new(Messages(diary.clone())));
    test_client.say(&vec![b'm'; 5 * MESSAGE]);
    let said = test_client.says();
    said.chunks(16 << 10).for_each(|piece| wire.send(piece));
    assert_eq!(*diary.lock().unwrap(), ["message"; 5]);
}
