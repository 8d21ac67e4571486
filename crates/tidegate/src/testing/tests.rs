//! The harness holds what it promises: back-pressure, ends, time, mail, jobs and dials as engines have them.

#[cfg(all(feature = "testing", target_os = "linux"))]
mod upstreams;

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::policy::{OutboxMarks, Policy};
use crate::service::{
    Activity, CloseReason, Consumed, Dial, Dialled, Flow, Group, Mail, MailboxError, Outbox, Peer, Recipient,
    Refusal, Service, Session,
};

/// What each byte asks for.
#[derive(Default)]
struct Obeys {
    log: String,
}

impl Recipient for Obeys {
    /// What it says; nothing to mail itself for ever.
    type Message = Option<&'static str>;
}

impl Session for Obeys {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut flow = Flow::Continue;
        for (at, order) in input.iter().enumerate() {
            match order {
                b'w' => out.wake_at(out.now() + Duration::from_secs(1)),
                b'k' => out.set_timer(7, out.now() + Duration::from_millis(1500)),
                b'j' => out.offload(|| 42_u8).unwrap(),
                b'J' => out.offload(|| -> u8 { std::panic::resume_unwind(Box::new("")) }).unwrap(),
                b'm' => Self::mailbox(out).send(Some("self")).unwrap(),
                b'd' => {
                    let dial: Dial = "127.0.0.1:9".parse().unwrap();
                    out.dial(dial.tag(at as u64 + 1), Duration::from_secs(1), Obeys::default()).unwrap();
                }
                b't' => out.dial("unix:/run/app.sock", Duration::from_secs(1), Obeys::default()).unwrap(),
                b'n' => {
                    let refused = out.dial("localhost:9", Duration::from_secs(1), Obeys::default());
                    out.write(refused.unwrap_err().to_string().as_bytes());
                }
                b'W' => {
                    out.set_activity(Activity::Work);
                    out.wake_at(out.now() + Duration::from_secs(1));
                    return Consumed::bytes(at + 1);
                }
                b'c' => flow = Flow::Close,
                b'l' => flow = Flow::Linger,
                b's' => flow = Flow::Shutdown,
                b'a' => flow = Flow::Abort,
                b'p' => std::panic::resume_unwind(Box::new("as the test says")),
                b'f' => drop(Self::mailbox(out).send(None)),
                other => out.write(&[*other]),
            }
        }
        Consumed::all(input).then(flow)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let text = match mail {
            Mail::Timer => {
                out.set_activity(Activity::Nothing);
                "timer;".into()
            }
            Mail::KeyedTimer(key) => format!("key {key};"),
            Mail::Done(value) => format!("done {};", value.downcast::<u8>().unwrap()),
            Mail::JobPanicked => "job panicked;".into(),
            Mail::Message(message) => match Self::unpack(message) {
                None => {
                    let _ = Self::mailbox(out).send(None); // for ever
                    return Flow::Continue;
                }
                Some(text) => format!("mail {text};"),
            },
            Mail::Dialled(Dialled { tag, result: Ok(()) }) => format!("{tag} connected;"),
            Mail::Dialled(Dialled { tag, result: Err(e) }) => format!("{tag} {e};"),
            other => format!("{other:?};"),
        };
        self.log += &text;
        out.write(text.as_bytes());
        Flow::Continue
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"draining;");
        Flow::Continue
    }
}

fn conn() -> TestConnection {
    TestConnection::of_session(Obeys::default(), Policy { first_byte_timeout: None, ..Policy::default() })
}

fn text(conn: &mut TestConnection) -> String {
    String::from_utf8(conn.take_output()).unwrap()
}

#[test]
fn every_way_to_cut_is_there_once_and_whole() {
    let all: Vec<_> = splits(b"abcd").collect();
    assert_eq!(all.len(), 8);
    assert!(all.contains(&vec![&b"abcd"[..]]) && all.contains(&vec![&b"a"[..], b"bc", b"d"]));
    assert!(all.iter().all(|pieces| pieces.concat() == b"abcd" && pieces.iter().all(|p| !p.is_empty())));
    let long = [7; 100];
    let all: Vec<_> = splits(&long).collect();
    assert_eq!(all.len(), 100 + 99);
    assert!(all.iter().all(|pieces| pieces.concat() == long));
    assert_eq!(splits(b"").collect::<Vec<_>>(), [Vec::<&[u8]>::new()]);
    assert_eq!(splits(b"x").collect::<Vec<_>>(), [[b"x"]]);
}

#[test]
fn timers_fire_at_their_time_and_in_order() {
    let mut conn = conn();
    conn.receive(b"kw");
    conn.advance(Duration::from_micros(999_999));
    assert_eq!(text(&mut conn), "");
    conn.advance(Duration::from_micros(1));
    assert_eq!(text(&mut conn), "timer;");
    conn.receive(b"w");
    conn.advance(Duration::from_secs(10));
    assert_eq!(text(&mut conn), "key 7;timer;");
}

#[test]
fn mail_and_jobs_arrive_and_jobs_may_be_held() {
    let mut conn = conn();
    conn.receive(b"mjJ");
    assert_eq!(text(&mut conn), "mail self;done 42;job panicked;");
    conn.deliver(Some("me")).unwrap();
    assert_eq!(text(&mut conn), "mail me;");
    conn.hold_jobs();
    conn.receive(b"jj");
    conn.drain();
    assert_eq!(
        (text(&mut conn).as_str(), conn.state()),
        ("draining;", TestState::Open),
        "a stop waits for jobs"
    );
    assert_eq!((conn.run_jobs(), text(&mut conn).as_str()), (2, "done 42;done 42;"));
    conn.advance(Duration::from_secs(2));
    assert_eq!(conn.close_reason(), Some(CloseReason::Finished));
}

#[test]
fn a_full_outbox_and_work_hold_input_back() {
    let policy = Policy { outbox: OutboxMarks { low: 10, high: 100 }, ..Policy::default() };
    let policy = Policy { buffer_bytes: 4096, send_timeout: None, first_byte_timeout: None, ..policy };
    let mut conn = TestConnection::of_session(Obeys::default(), policy);
    conn.stall();
    conn.receive(&[b'x'; 10_000]);
    assert!(!conn.is_receiving() && conn.queued() == 4096 && conn.unreceived() == 10_000 - 4096);
    conn.take(4000);
    assert!(!conn.is_receiving(), "96 are above the low mark");
    conn.resume();
    assert_eq!((conn.output(), conn.unreceived()), (&[b'x'; 10_000][..], 0));
    conn.take_output();
    conn.receive(b"Wa");
    conn.half_close();
    assert_eq!(conn.state(), TestState::Open, "the rest is looked at when the work has ended");
    conn.advance(Duration::from_secs(1));
    assert_eq!((conn.state(), conn.close_reason()), (TestState::Reset, Some(CloseReason::Aborted)));
}

#[test]
fn every_end_is_the_one_the_session_or_the_peer_chose() {
    let ends = |orders: &[u8]| {
        let mut conn = conn();
        conn.receive(orders);
        (conn.state(), conn.close_reason(), conn.has_finished_sending())
    };
    assert_eq!(ends(b"xc"), (TestState::Closed, Some(CloseReason::Finished), true));
    assert_eq!(ends(b"xa"), (TestState::Reset, Some(CloseReason::Aborted), false));
    assert_eq!(ends(b"xl"), (TestState::Open, None, true));
    assert_eq!(ends(b"xs"), (TestState::Open, None, true));
    let mut conn = conn();
    conn.receive(b"l");
    conn.advance(Policy::default().linger_timeout);
    assert_eq!((conn.state(), conn.close_reason()), (TestState::Closed, Some(CloseReason::Finished)));
    let mut conn = self::conn();
    conn.fail(io::ErrorKind::ConnectionReset);
    assert_eq!(conn.close_reason(), Some(CloseReason::Reset));
    assert_eq!(conn.stats().closed_by(CloseReason::Reset), 1);
    let mut conn = self::conn();
    conn.half_close();
    assert_eq!((conn.state(), conn.close_reason()), (TestState::Closed, Some(CloseReason::Finished)));
    let policy = Policy { idle_timeout: Some(Duration::from_secs(20)), ..Policy::default() };
    let mut conn = TestConnection::of_session(Obeys::default(), policy);
    conn.receive(b"x");
    conn.advance(Duration::from_millis(19_999));
    assert_eq!(conn.close_reason(), None);
    conn.advance(Duration::from_millis(1));
    assert_eq!(conn.close_reason(), Some(CloseReason::IdleTimeout));
}

#[test]
fn dials_are_answered_by_the_test() {
    let mut conn = conn();
    conn.receive(b"ddd");
    let mut upstream = conn.next_dial().unwrap().connect();
    upstream.receive(b"xyz");
    assert_eq!(upstream.output(), b"xyz");
    conn.next_dial().unwrap().fail(io::Error::other("down"));
    drop(conn.next_dial().unwrap());
    conn.settle();
    assert_eq!(text(&mut conn), "1 connected;2 down;3 the server has stopped;");
    assert!(conn.next_dial().is_none());
}

#[test]
fn a_session_dials_text_and_no_names() {
    let mut conn = conn();
    conn.receive(b"t");
    assert_eq!(conn.next_dial().unwrap().dial().to.to_string(), "unix:/run/app.sock");
    conn.settle();
    conn.receive(b"n");
    let said = text(&mut conn);
    assert!(said.contains("localhost:9") && said.contains("not looked up"), "{said}");
    assert!(conn.next_dial().is_none());
    assert_eq!(conn.state(), TestState::Open);
}

#[test]
#[should_panic(expected = "the session panicked")]
fn a_panic_fails_the_test() {
    conn().receive(b"p");
}

#[test]
fn a_panic_may_be_what_is_tested() {
    let mut conn = conn();
    conn.allow_panics();
    conn.receive(b"p");
    assert_eq!((conn.state(), conn.close_reason()), (TestState::Reset, Some(CloseReason::Panicked)));
}

#[test]
#[should_panic(expected = "never becomes idle")]
fn mail_for_ever_is_found_out() {
    conn().receive(b"f");
}

/// Refuses peers without an address.
struct Picky;

impl Service for Picky {
    type Session = Obeys;

    fn open(&self, peer: &Peer) -> Result<Obeys, Refusal> {
        peer.addr.map(|_| Obeys::default()).ok_or(Refusal)
    }
}

#[test]
fn a_service_may_refuse_and_has_an_address_only_if_it_asks() {
    let refusal: Box<dyn std::error::Error> = TestConnection::open(&Picky).err().unwrap().into();
    assert_eq!(refusal.to_string(), "the service refuses this connection");
}

/// Writes what its group is sent.
struct GroupMember(Arc<Mutex<Group>>);

impl Recipient for GroupMember {
    type Message = Infallible;
}

impl Session for GroupMember {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.lock().unwrap().join(&Self::mailbox(out));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Group(message) = mail else { return Flow::Abort };
        out.write(message.downcast_ref::<[u8; 1]>().unwrap());
        Flow::Continue
    }
}

#[test]
fn a_group_finds_the_queue_full_as_on_a_server() {
    let group = Arc::<Mutex<Group>>::default();
    let mut member = TestConnection::of_session(GroupMember(group.clone()), Policy::default().mail_queue(1));
    let send = |byte| group.lock().unwrap().send(Arc::new([byte]));
    assert_eq!(send(b'a'), Ok(()));
    assert_eq!(send(b'b'), Err(MailboxError::Full));
    member.settle();
    assert_eq!(send(b'c'), Ok(()));
    member.settle();
    assert_eq!(member.output(), b"ac");
}
