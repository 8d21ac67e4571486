//! One connection without a socket, in a time that the test makes pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::policy::OutboxMarks;
use crate::policy::sends::{INPUT_QUANTUM, TIMER_QUANTUM};
use crate::policy::timeouts::LAST_WORD;
use crate::proto::mail::{Job, MailSink, MailboxError, OffloadError, Workers};
use crate::proto::table::Token;
use crate::service::{Consumed, LayerBuffer};
use crate::stats::Writers;

/// Takes nothing.
struct Nobody;

impl MailSink for Nobody {
    fn post(&self, _: Token, _: Mail) -> Result<(), MailboxError> {
        Err(MailboxError::Stopped)
    }
}

impl Workers for Nobody {
    fn run(&self, _: Job) -> Result<(), OffloadError> {
        Err(OffloadError::NoThread)
    }
}

/// What a session was called with, and how often.
type Calls = Arc<Mutex<Vec<String>>>;

/// A connection, and what there is around it.
struct Wire {
    connection: Connection,
    policy: Policy,
    counters: Counters,
    office: Arc<dyn MailSink>,
    now: Instant,
    calls: Calls,
}

impl Wire {
    fn open<S: Session>(policy: Policy, make: impl FnOnce(Calls) -> S) -> Self {
        let (now, calls) = (Instant::now(), Calls::default());
        let mut wire = Self {
            connection: Connection::new(Box::new(make(calls.clone())), Origin::Accepted, now),
            policy,
            counters: Counters::new(Writers::One),
            office: Arc::new(Nobody),
            now,
            calls,
        };
        wire.happens(Event::Opened);
        wire
    }

    fn happens(&mut self, event: Event<'_>) -> Action {
        let context = Context {
            now: self.now,
            policy: &self.policy,
            counters: &self.counters,
            office: &self.office,
            workers: &Nobody,
            token: Token { index: 0, generation: 0 },
        };
        self.connection.handle(event, &context)
    }

    /// Time passes until the next deadline, and it is told so.
    fn wait(&mut self) -> Action {
        let at = self.connection.deadline(&self.policy).expect("a deadline");
        self.now = self.now.max(at);
        self.happens(Event::Deadline)
    }

    /// The kernel takes all there is.
    fn send(&mut self) -> Action {
        match self.connection.queue().len() {
            0 => self.connection.action(),
            n => self.happens(Event::Sent(n)),
        }
    }

    /// What it was called with since this was asked last.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

fn note(calls: &Calls, what: impl Into<String>) {
    calls.lock().unwrap().push(what.into());
}

fn patient() -> Policy {
    Policy { first_byte_timeout: None, send_timeout: None, ..Policy::default() }
}

/// Takes one byte with each call, answers it, and wants the next.
struct Singly(Calls);

impl Session for Singly {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        note(&self.0, format!("{}", input.len()));
        out.write(&input[..1]);
        Consumed::bytes(1).again()
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        note(&self.0, "end");
        Flow::Close
    }
}

#[test]
fn who_takes_one_message_a_call_has_its_turn_and_goes_on_before_more_is_received() {
    let mut wire = Wire::open(Policy { input_bytes: 1, ..patient() }, Singly);
    let bytes = vec![b'x'; 2 * INPUT_QUANTUM + 3];
    assert_eq!(wire.happens(Event::Received(&bytes)).receive, Receive::Pause);
    assert_eq!(wire.calls().len(), INPUT_QUANTUM);
    assert_eq!(wire.connection.deadline(&wire.policy), Some(wire.now), "at once, when others had their turn");
    // What was under way meanwhile, and the end behind it, keep their place.
    wire.happens(Event::PeerEnded);
    assert!(wire.calls().is_empty());
    wire.happens(Event::Deadline);
    assert_eq!(wire.calls().len(), INPUT_QUANTUM);
    wire.happens(Event::Deadline);
    assert_eq!(wire.calls(), ["3", "2", "1", "end"]);
    assert_eq!(wire.connection.queue().len(), bytes.len());
}

#[test]
fn who_takes_one_message_a_call_waits_for_a_full_outbox_without_being_woken() {
    let outbox = OutboxMarks { low: 0, high: 2 };
    let mut wire = Wire::open(Policy { outbox, ..patient() }, Singly);
    wire.happens(Event::Received(b"abc"));
    assert_eq!((wire.calls().len(), wire.connection.deadline(&wire.policy)), (2, None));
    wire.send();
    assert_eq!(wire.calls(), ["1"]);
}

/// Sets a timer for now whenever one comes.
struct Restless(Calls);

impl Session for Restless {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.set_timer(7, out.now());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        note(&self.0, format!("{mail:?}"));
        self.on_open(out)
    }
}

#[test]
fn who_sets_a_timer_for_now_without_end_has_its_turn() {
    let mut wire = Wire::open(patient(), Restless);
    assert_eq!(wire.connection.resolution(wire.now), Resolution::Tick);
    wire.wait();
    assert_eq!(wire.calls(), vec!["KeyedTimer(7)"; TIMER_QUANTUM]);
    assert_eq!(wire.connection.deadline(&wire.policy), Some(wire.now));
}

/// A layer that sets a timer, around a session that sets one under the same key.
struct Layered {
    calls: Calls,
    draft: LayerBuffer,
}

impl Session for Layered {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let at = out.now() + Duration::from_millis(5);
        out.set_timer(1, at);
        out.set_timer(2, at);
        let mut inside = out.layered(&mut self.draft);
        inside.set_timer(1, at);
        inside.set_timer(2, at + Duration::from_millis(5));
        inside.cancel_timer(3);
        out.cancel_timer(2);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let whose = if out.is_inner_timer() { "inner" } else { "own" };
        let inside = out.layered(&mut self.draft);
        assert!(!inside.is_inner_timer(), "there is nobody inside that");
        note(&self.calls, format!("{whose} {mail:?}"));
        Flow::Continue
    }
}

#[test]
fn a_layer_and_the_session_inside_do_not_take_each_others_timers() {
    let mut wire = Wire::open(patient(), |calls| Layered { calls, draft: LayerBuffer::default() });
    wire.wait();
    assert_eq!(wire.calls(), ["own KeyedTimer(1)", "inner KeyedTimer(1)"]);
    wire.wait();
    assert_eq!(wire.calls(), ["inner KeyedTimer(2)"]);
    assert_eq!(wire.connection.deadline(&wire.policy), None);
}

/// Sends something at short intervals.
struct Pusher(Calls);

impl Session for Pusher {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.wake_at(out.now() + LAST_WORD / 4);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        out.write(b"tick");
        self.on_open(out)
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        assert!(out.is_draining());
        note(&self.0, "drain");
        Flow::Continue
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        note(&self.0, "leave");
        out.write(b"bye");
    }

    fn on_close(&mut self, why: CloseReason) {
        note(&self.0, why.name());
    }
}

#[test]
fn what_a_session_sends_of_its_own_does_not_hold_a_stop_up() {
    for its_peer_takes_it in [true, false] {
        let mut wire = Wire::open(patient(), Pusher);
        let start = wire.now;
        wire.happens(Event::Drain);
        wire.happens(Event::Drain); // a loop may say so twice
        assert_eq!(wire.calls(), ["drain"]);
        let mut steps = 0;
        while wire.calls.lock().unwrap().is_empty() {
            steps += 1;
            assert!(steps < 20, "it goes on pushing");
            wire.wait();
            if its_peer_takes_it && wire.calls.lock().unwrap().is_empty() {
                wire.send();
            }
        }
        assert_eq!((wire.calls(), wire.now), (vec!["leave".to_owned()], start + LAST_WORD));
        assert_eq!(wire.connection.action().then, NextStep::CloseAfterSend, "what it said is sent");
        wire.send();
        assert_eq!(
            (wire.calls(), wire.connection.action().then),
            (vec!["finished".to_owned()], NextStep::Close)
        );
    }
}

#[test]
fn an_answer_to_a_last_word_is_finished_however_long_it_is() {
    let mut wire = Wire::open(patient(), Pusher);
    wire.happens(Event::Drain);
    wire.happens(Event::Mail(Mail::Timer.into())); // something to send
    wire.happens(Event::Received(b"one more"));
    wire.calls();
    for _ in 0..20 {
        wire.wait();
    }
    assert!(wire.calls().is_empty(), "it is not cut off while its peer takes it");
    assert_eq!(wire.send().receive, Receive::Post, "and then it lingers");
    assert_eq!(wire.calls(), ["leave"]);
}

/// A layer around a session that has taken input and is at work.
struct Around;

impl Session for Around {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut draft = LayerBuffer::default();
        let mut inner = out.layered(&mut draft);
        inner.set_buffered(input.len());
        inner.set_activity(Activity::Work);
        out.set_buffered(0);
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        let mut draft = LayerBuffer::default();
        let mut inner = out.layered(&mut draft);
        inner.set_buffered(0);
        inner.set_activity(Activity::Nothing);
        Flow::Continue
    }
}

#[test]
fn a_layer_does_not_take_back_what_the_session_inside_keeps() {
    let mut wire = Wire::open(patient(), |_| Around);
    assert_eq!(wire.happens(Event::Received(b"kept")).receive, Receive::Pause);
    assert_eq!(wire.happens(Event::Mail(Mail::Wake.into())).receive, Receive::Post);
}
