//! What the session inside sees, and what it does not.

use std::time::Duration;

use tidegate::proto::Event;
use tidegate::{CloseReason, Flow, Origin, Policy, Recipient};
use tidegate_services::layers::{HeaderFault, ProxyLimits, ProxyProtocol};

use crate::diary::{Diary, Entry};
use crate::headers::{CLIENT4, headers, v2};
use crate::wire::{SOCKET, TestConnection, WireState};

const V1: &str = "PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\n";

fn layer(diary: &Diary) -> ProxyProtocol<Diary> {
    ProxyProtocol::new(diary.clone(), ProxyLimits::default())
}

/// What a session sees of a whole connection whose client is at `addr` and says `text`.
fn whole(addr: Option<&str>, text: &str) -> Vec<Entry> {
    let mut entries = vec![Entry::Peer(addr.map(Into::into)), Entry::Open];
    if !text.is_empty() {
        entries.push(Entry::Bytes(text.into()));
    }
    entries.extend([Entry::End, Entry::Close(CloseReason::Finished)]);
    entries
}

fn play<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Entry>, String, WireState) {
    let diary = Diary::new();
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    for piece in pieces {
        wire.send(piece);
    }
    wire.end();
    (diary.read(), wire.text(), wire.state)
}

#[test]
fn every_header_wherever_it_is_cut_leaves_the_service_the_client_and_its_bytes() {
    for (header, addr) in headers() {
        for text in ["", "x", "hello\r\nPROXY "] {
            let stream = [&header[..], text.as_bytes()].concat();
            let expected = (whole(addr, text), text.to_owned(), WireState::Closed);
            for cut in 0..=stream.len() {
                let (a, b) = stream.split_at(cut);
                let pieces = [a, b].into_iter().filter(|piece| !piece.is_empty());
                assert_eq!(play(pieces), expected, "{header:?} cut at {cut}");
            }
            assert_eq!(play(stream.chunks(1)), expected, "{header:?} byte by byte");
        }
    }
}

#[test]
fn bytes_behind_the_header_are_shown_where_they_lie() {
    let diary = Diary::new();
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    let first = format!("{V1}hello");
    wire.send(&first);
    assert_eq!(*diary.shown_at.lock().unwrap(), first.as_ptr().addr() + V1.len());
    let second = "again";
    wire.send(second);
    assert_eq!(*diary.shown_at.lock().unwrap(), second.as_ptr().addr());
}

#[test]
fn a_session_may_speak_first_and_does_so_behind_the_header() {
    let diary = Diary::that(|out| {
        out.write(b"220 ready\r\n");
        Flow::Continue
    });
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    assert_eq!((wire.text().as_str(), diary.read()), ("", vec![]));
    wire.send(V1);
    assert_eq!(wire.text(), "220 ready\r\n");
}

#[test]
fn timers_mail_and_drains_reach_the_session() {
    let diary = Diary::that(|out| {
        out.wake_at(out.now() + Duration::from_secs(1));
        Diary::mailbox(out).send("a letter").unwrap();
        Flow::Continue
    });
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    let (a, b) = V1.split_at(9);
    wire.send(a); // starts the timer of the header, which the session's own then replaces
    wire.send(b);
    wire.deliver();
    wire.wait(Duration::from_secs(1));
    wire.reads = false;
    wire.send(vec![b'x'; Policy::default().outbox.high]);
    assert!(!wire.wants_input());
    wire.read();
    wire.wait(Duration::from_secs(60));
    assert_eq!(wire.state, WireState::Open, "the time for the header is over and done with");
    let text = vec![b'x'; Policy::default().outbox.high];
    let expected =
        [Entry::Open, Entry::Message("a letter"), Entry::Timer, Entry::Bytes(text), Entry::Drained];
    assert_eq!(diary.read()[1..], expected);
}

#[test]
fn input_waits_for_an_outbox_that_a_session_filled_when_it_was_opened() {
    let diary = Diary::that(|out| {
        out.share(vec![b'x'; 1 << 20].into());
        Flow::Continue
    });
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    wire.reads = false;
    wire.send(format!("{V1}hello"));
    assert_eq!(diary.read()[1..], [Entry::Open]);
    wire.read();
    assert_eq!(diary.read()[1..], [Entry::Open, Entry::Drained, Entry::Bytes("hello".into())]);
    assert!(wire.text().ends_with("xhello"));
}

#[test]
fn a_stop_is_passed_on_also_to_who_opens_later() {
    let diary = Diary::new();
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    wire.send(format!("{V1}hello"));
    wire.happens(Event::Drain);
    assert_eq!(diary.read()[1..], [Entry::Open, Entry::Bytes("hello".into()), Entry::Drain]);
    let diary = Diary::new();
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    wire.happens(Event::Drain);
    wire.send(format!("{V1}hello"));
    assert_eq!(diary.read()[1..4], [Entry::Open, Entry::Drain, Entry::Bytes("hello".into())]);
}

#[test]
fn what_a_session_answers_when_it_is_opened_is_followed() {
    let opened = |flow, input: &str| {
        let diary = Diary::that(move |out| {
            out.write(b"bye");
            flow
        });
        let mut wire = TestConnection::to(&layer(&diary), Policy::default());
        wire.send(format!("{V1}{input}"));
        (wire.text(), wire.state, wire.finished, diary.read().contains(&Entry::Bytes("in".into())))
    };
    assert_eq!(opened(Flow::Close, ""), ("bye".into(), WireState::Closed, false, false));
    // Closing with unread input would destroy the answer: the connection lingers, as it does without a layer.
    assert_eq!(opened(Flow::Close, "in"), ("bye".into(), WireState::Open, true, false));
    assert_eq!(opened(Flow::Linger, "in"), ("bye".into(), WireState::Open, true, false));
    assert_eq!(opened(Flow::Abort, "in"), ("".into(), WireState::Reset, false, false));
    assert_eq!(opened(Flow::Shutdown, ""), ("bye".into(), WireState::Open, true, false));
    let (_, state, finished, shown) = opened(Flow::Shutdown, "in");
    assert_eq!((state, finished, shown), (WireState::Open, true, true), "receiving goes on");
}

#[test]
fn a_refusal_closes() {
    let diary = Diary::new().refusing();
    let mut wire = TestConnection::to(&layer(&diary), Policy::default());
    wire.send(format!("{V1}hello"));
    assert_eq!((wire.state, diary.read()), (WireState::Closed, vec![Entry::Peer(Some(CLIENT4.into()))]));
}

#[test]
fn a_dialled_connection_has_no_header() {
    let diary = Diary::new();
    let mut wire = TestConnection::of(&layer(&diary), Policy::default(), Origin::Dialled { tag: 1 });
    wire.send("hello");
    wire.end();
    assert_eq!(diary.read(), whole(Some(SOCKET), "hello"));
}

#[test]
fn no_header_no_session_and_every_fault_is_counted() {
    let long = v2(0x21, 0x11, &[0; 5000]);
    for (fault, state, pieces) in [
        (HeaderFault::Missing, WireState::Reset, vec![&b"GET / HTTP/1.1\r\n\r\n"[..]]),
        (HeaderFault::Missing, WireState::Reset, vec![b"PRO", b"XYZ"]),
        (HeaderFault::Malformed, WireState::Reset, vec![b"PROXY TCP4 1 2 3 4\r\n"]),
        (HeaderFault::TooLong, WireState::Reset, vec![&long[..16]]),
        (HeaderFault::TooLong, WireState::Reset, vec![b"PROXY TCP4 ", &[b'1'; 100]]),
        (HeaderFault::Truncated, WireState::Closed, vec![b"PROXY TCP4 "]),
    ] {
        let diary = Diary::new();
        let service = layer(&diary);
        let mut wire = TestConnection::to(&service, Policy::default());
        for piece in &pieces {
            wire.send(piece);
        }
        wire.end();
        assert_eq!((wire.state, wire.text().as_str()), (state, ""), "{pieces:?}");
        assert_eq!(diary.read(), [], "{pieces:?}");
        for &one in HeaderFault::ALL {
            assert_eq!(service.faults().of(one), u64::from(one == fault), "{one} in {pieces:?}");
        }
    }
}

#[test]
fn a_header_has_its_time_from_its_first_byte_and_silence_is_the_policys() {
    let diary = Diary::new();
    let service = layer(&diary);
    let mut wire = TestConnection::to(&service, Policy::default());
    wire.wait(Duration::from_secs(6));
    for byte in V1.bytes().take(5) {
        wire.send([byte]);
        wire.wait(Duration::from_millis(999));
    }
    assert_eq!(wire.state, WireState::Open);
    wire.wait(Duration::from_millis(5));
    assert_eq!((wire.state, diary.read()), (WireState::Reset, vec![]));
    assert_eq!(service.faults().of(HeaderFault::TooLate), 1);
}

#[test]
fn a_port_check_is_no_fault() {
    let diary = Diary::new();
    let service = layer(&diary);
    let mut wire = TestConnection::to(&service, Policy::default());
    wire.end();
    assert_eq!((wire.state, diary.read()), (WireState::Closed, vec![]));
    assert!(HeaderFault::ALL.iter().all(|&fault| service.faults().of(fault) == 0));
}

#[test]
fn limits_that_contradict_are_refused() {
    let policy = Policy::default().input_bytes(4096);
    let limits = ProxyLimits::default();
    assert_eq!(limits.check(&policy), Ok(()));
    let above = limits.header_bytes(4097);
    let error = |limits: ProxyLimits| limits.check(&policy).unwrap_err().to_string();
    assert!(error(above).contains("raise `input_bytes`"), "{}", error(above));
    let small = limits.header_bytes(231);
    assert_eq!(error(small), "`proxy_protocol.header_bytes` is 231; it must be between 232 and 1MiB");
    let none = limits.header_timeout(Some(Duration::ZERO));
    assert!(error(none).starts_with("`proxy_protocol.header_timeout` is 0s; it must be longer than zero"));
}
