//! One connection without a socket, in a time that the test makes pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::policy::OutboxMarks;
use crate::policy::sends::{INPUT_QUANTUM, TIMER_QUANTUM};
use crate::policy::timeouts::LAST_WORD;
use crate::proto::mail::{Job, MailSink, MailboxError, OffloadError, SendError, Workers};
use crate::proto::table::Token;
use crate::service::LayerBuffer;
use crate::stats::Writers;
use crate::types::Consumed;

/// Takes nothing.
struct Nobody;

impl MailSink for Nobody {
    fn post(&self, _: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        Err(SendError { error: MailboxError::Stopped, message: mail })
    }
}

impl Workers for Nobody {
    fn run(&self, _: Job) -> Result<(), OffloadError> {
        Err(OffloadError::NoThread)
    }
}

/// Runs a job at once.
struct AtOnce;

impl Workers for AtOnce {
    fn run(&self, job: Job) -> Result<(), OffloadError> {
        job();
        Ok(())
    }
}

/// What a session was called with, and how often.
type Calls = Arc<Mutex<Vec<String>>>;

/// A connection, and what there is around it.
struct TestConnection {
    connection: Connection,
    policy: Policy,
    counters: Counters,
    mail_sink: Arc<dyn MailSink>,
    workers: &'static dyn Workers,
    now: Instant,
    calls: Calls,
}

impl TestConnection {
    fn open<S: Session>(policy: Policy, make: impl FnOnce(Calls) -> S) -> Self {
        let (now, calls) = (Instant::now(), Calls::default());
        let mut server = Self {
            connection: Connection::new(Box::new(make(calls.clone())), Origin::Accepted, now),
            policy,
            counters: Counters::new(Writers::One),
            mail_sink: Arc::new(Nobody),
            workers: &Nobody,
            now,
            calls,
        };
        server.happens(Event::Opened);
        server
    }

    fn happens(&mut self, event: Event<'_>) -> Action {
        let context = Context {
            now: self.now,
            timestamp: self.now.into(),
            policy: &self.policy,
            counters: &self.counters,
            mail_sink: &self.mail_sink,
            workers: self.workers,
            token: Token { index: 0, generation: 0 },
        };
        self.connection.handle(event, &context)
    }

    /// Time passes until the next deadline, and it is notified.
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

/// Has a job done whose result cannot be dropped without a panic.
struct Offloads(Calls);

impl Session for Offloads {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.offload(|| Bomb).expect("it is run");
        note(&self.0, "went on");
        Consumed::all(input)
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("nobody takes it")); // as a panic, and prints nothing
    }
}

/// The thread that ran the job is not the one that the value belongs to.
#[test]
fn a_result_that_nobody_takes_may_panic_and_costs_nobody_anything() {
    let mut server = TestConnection::open(patient(), Offloads);
    server.workers = &AtOnce;
    server.happens(Event::Received(b"go"));
    assert_eq!(server.calls(), ["went on"]);
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
    let mut server = TestConnection::open(Policy { input_bytes: 1, ..patient() }, Singly);
    let bytes = vec![b'x'; 2 * INPUT_QUANTUM + 3];
    assert_eq!(server.happens(Event::Received(&bytes)).receive, Receive::Pause);
    assert_eq!(server.calls().len(), INPUT_QUANTUM);
    assert_eq!(
        server.connection.deadline(&server.policy),
        Some(server.now),
        "at once, when others had their turn"
    );
    // What was under way meanwhile, and the end behind it, keep their place.
    server.happens(Event::PeerEnded);
    assert!(server.calls().is_empty());
    server.happens(Event::Deadline);
    assert_eq!(server.calls().len(), INPUT_QUANTUM);
    server.happens(Event::Deadline);
    assert_eq!(server.calls(), ["3", "2", "1", "end"]);
    assert_eq!(server.connection.queue().len(), bytes.len());
}

#[test]
fn who_takes_one_message_a_call_waits_for_a_full_outbox_without_being_woken() {
    let outbox = OutboxMarks { low: 0, high: 2 };
    let mut server = TestConnection::open(Policy { outbox, ..patient() }, Singly);
    server.happens(Event::Received(b"abc"));
    assert_eq!((server.calls().len(), server.connection.deadline(&server.policy)), (2, None));
    server.send();
    assert_eq!(server.calls(), ["1"]);
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
    let mut server = TestConnection::open(patient(), Restless);
    assert_eq!(server.connection.resolution(server.now), Resolution::Tick);
    server.wait();
    assert_eq!(server.calls(), vec!["KeyedTimer(7)"; TIMER_QUANTUM]);
    assert_eq!(server.connection.deadline(&server.policy), Some(server.now));
}

/// A layer that sets a timer, around a session that sets one under the same key.
struct Layered {
    calls: Calls,
    layer_buffer: LayerBuffer,
}

impl Session for Layered {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let at = out.now() + Duration::from_millis(5);
        out.set_timer(1, at);
        out.set_timer(2, at);
        let mut inside = out.layered(&mut self.layer_buffer);
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
        let inside = out.layered(&mut self.layer_buffer);
        assert!(!inside.is_inner_timer(), "there is nobody inside that");
        note(&self.calls, format!("{whose} {mail:?}"));
        Flow::Continue
    }
}

#[test]
fn a_layer_and_the_session_inside_do_not_take_each_others_timers() {
    let mut server =
        TestConnection::open(patient(), |calls| Layered { calls, layer_buffer: LayerBuffer::default() });
    server.wait();
    assert_eq!(server.calls(), ["own KeyedTimer(1)", "inner KeyedTimer(1)"]);
    server.wait();
    assert_eq!(server.calls(), ["inner KeyedTimer(2)"]);
    assert_eq!(server.connection.deadline(&server.policy), None);
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
        let mut server = TestConnection::open(patient(), Pusher);
        let start = server.now;
        server.happens(Event::Drain);
        server.happens(Event::Drain); // a loop may say so twice
        assert_eq!(server.calls(), ["drain"]);
        let mut steps = 0;
        while server.calls.lock().unwrap().is_empty() {
            steps += 1;
            assert!(steps < 20, "it goes on pushing");
            server.wait();
            if its_peer_takes_it && server.calls.lock().unwrap().is_empty() {
                server.send();
            }
        }
        assert_eq!((server.calls(), server.now), (vec!["leave".to_owned()], start + LAST_WORD));
        assert_eq!(server.connection.action().then, NextStep::CloseAfterSend, "what it said is sent");
        server.send();
        assert_eq!(
            (server.calls(), server.connection.action().then),
            (vec!["finished".to_owned()], NextStep::Close)
        );
    }
}

#[test]
fn a_late_deadline_ends_the_wait_for_a_last_word_and_a_send_that_timed_out_meanwhile() {
    let policy = Policy { send_timeout: Some(LAST_WORD), ..patient() };
    let mut server = TestConnection::open(policy, Pusher);
    server.happens(Event::Drain);
    server.wait(); // something to send, which its peer does not take: timed out after the last word
    server.calls();
    server.now += LAST_WORD * 100;
    assert_eq!(server.happens(Event::Deadline).then, NextStep::Reset);
    assert_eq!(server.calls(), ["leave", "send-timeout"]);
}

#[test]
fn what_a_session_says_at_a_late_deadline_is_sent_although_other_limits_have_passed() {
    let limit = Some(LAST_WORD + LAST_WORD / 2);
    let policy =
        Policy { first_byte_timeout: limit, idle_timeout: limit, send_timeout: limit, ..Policy::default() };
    let mut server = TestConnection::open(policy, Pusher);
    server.happens(Event::Drain);
    server.calls();
    server.now += LAST_WORD * 100;
    assert_eq!(server.happens(Event::Deadline).then, NextStep::CloseAfterSend);
    assert_eq!(server.connection.queue().len(), "tick".len() + "bye".len());
    let deadline = server.connection.deadline(&server.policy);
    assert!(deadline.is_some_and(|at| at > server.now), "its peer has time to take it");
    server.send();
    assert_eq!(server.calls(), ["leave", "finished"]);
}

#[test]
fn an_answer_to_a_last_word_is_finished_however_long_it_is() {
    let mut server = TestConnection::open(patient(), Pusher);
    server.happens(Event::Drain);
    server.happens(Event::Mail(Mail::Timer.into())); // something to send
    server.happens(Event::Received(b"one more"));
    server.calls();
    for _ in 0..20 {
        server.wait();
    }
    assert!(server.calls().is_empty(), "it is not cut off while its peer takes it");
    assert_eq!(server.send().receive, Receive::Post, "and then it lingers");
    assert_eq!(server.calls(), ["leave"]);
}

/// A layer around a session that has taken input and is at work.
struct Around;

impl Session for Around {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut layer_buffer = LayerBuffer::default();
        let mut inner = out.layered(&mut layer_buffer);
        inner.set_buffered(input.len());
        inner.set_activity(Activity::Work);
        out.set_buffered(0);
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        let mut layer_buffer = LayerBuffer::default();
        let mut inner = out.layered(&mut layer_buffer);
        inner.set_buffered(0);
        inner.set_activity(Activity::Nothing);
        Flow::Continue
    }
}

#[test]
fn a_layer_does_not_take_back_what_the_session_inside_keeps() {
    let mut server = TestConnection::open(patient(), |_| Around);
    assert_eq!(server.happens(Event::Received(b"kept")).receive, Receive::Pause);
    assert_eq!(server.happens(Event::Mail(Mail::Wake.into())).receive, Receive::Post);
}

/// Answers everything with as much.
struct Echoes(#[allow(dead_code, reason = "every test session has it")] Calls);

impl Session for Echoes {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

#[test]
fn what_failed_for_lack_of_memory_is_tried_again_after_pauses_that_grow() {
    let mut server = TestConnection::open(patient(), Echoes);
    let sends = server.happens(Event::Received(b"12345678"));
    assert!(sends.send);
    for ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
        let begun = server.now;
        let pauses = server.happens(Event::OutOfMemory(Direction::Send));
        assert!(!pauses.send && pauses.receive == Receive::Post, "the other direction goes on: {pauses:?}");
        assert_eq!(server.happens(Event::Deadline), pauses, "not before its time");
        assert!(server.wait().send);
        assert_eq!(server.now - begun, Duration::from_millis(ms));
    }
    assert_eq!((server.counters.no_memory.get(), server.counters.recovered.get()), (9, 0));
    server.send();
    assert_eq!(server.counters.recovered.get(), 1);
    let begun = server.now;
    assert_eq!(server.happens(Event::OutOfMemory(Direction::Receive)).receive, Receive::Pause);
    assert_eq!(server.wait().receive, Receive::Post);
    assert_eq!(server.now - begun, Duration::from_millis(10), "after a success the pauses are short again");
}

#[test]
fn a_lack_of_memory_is_not_the_fault_of_the_peer() {
    let short = Some(Duration::from_millis(15));
    let policy =
        Policy { first_byte_timeout: short, send_timeout: short, idle_timeout: short, ..Policy::default() };
    let mut server = TestConnection::open(policy, Echoes);
    server.happens(Event::Received(b"1"));
    for _ in 0..5 {
        server.happens(Event::OutOfMemory(Direction::Send));
        assert!(server.wait().send, "no time limit ends it");
    }
    assert_eq!(server.wait().then, NextStep::Reset, "but from then on its peer has to take it");
    assert_eq!(server.counters.closed[CloseReason::SendTimeout as usize].get(), 1);
}

#[test]
fn an_end_of_sending_for_which_there_is_no_memory_is_tried_again() {
    struct Shuts;
    impl Session for Shuts {
        fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
            Consumed::all(input).then(Flow::Shutdown)
        }
    }
    let mut server = TestConnection::open(patient(), |_| Shuts);
    assert_eq!(server.happens(Event::Received(b"1")).then, NextStep::FinishSending);
    assert_eq!(server.happens(Event::OutOfMemory(Direction::Send)).then, NextStep::Nothing);
    assert_eq!(server.wait().then, NextStep::FinishSending);
}
