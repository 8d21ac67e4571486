//! Dials, spawned futures and halves of async code, step by step: the test plays every other part.

use std::future::{pending, poll_fn};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use tidegate::testing::{TestConnection, TestState};
use tidegate::{CloseReason, Dial, Origin, Peer, Policy};
use tidegate_async::{Connection, JoinError, ReuniteError, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};

const WITHIN: Duration = Duration::from_secs(5);

fn to(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], port))
}

/// Passes bytes on in both directions.
async fn proxy(mut conn: Connection) -> std::io::Result<(u64, u64)> {
    let mut upstream = conn.dial(to(80), WITHIN).await?;
    copy_bidirectional(&mut conn, &mut upstream).await
}

fn proxied() -> (TestConnection, TestConnection) {
    let mut conn = TestConnection::open(&service(proxy)).unwrap();
    let upstream = conn.next_dial().unwrap().connect();
    conn.settle();
    (conn, upstream)
}

/// A connection whose future lets go of it and goes on for ever.
fn outside() -> (Connection, TestConnection) {
    let slot = Arc::<Mutex<Option<Connection>>>::default();
    let to_slot = slot.clone();
    let service = service(move |conn| {
        to_slot.lock().unwrap().replace(conn);
        pending::<()>()
    });
    let conn = TestConnection::open(&service).unwrap();
    let handle = slot.lock().unwrap().take().unwrap();
    (handle, conn)
}

#[test]
fn dials_are_distinguished_however_they_end() {
    let service = service(async |mut conn: Connection| {
        let dials = [1, 2, 3].map(|n| conn.dial(Dial::to(to(n)).tag(7), WITHIN));
        let [one, two, three] = dials;
        let ((one, two), three) = join(join(one, two), three).await;
        let (one, mut two, three) = (one.unwrap_err(), two.unwrap(), three.unwrap_err());
        let (kinds, peer) = ([one.kind(), three.kind()], two.peer().clone());
        assert_eq!(kinds, [ErrorKind::TimedOut, ErrorKind::ConnectionRefused]);
        assert_eq!((peer.addr, peer.origin, peer.thread), (Some(to(2)), Origin::Dialled { tag: 7 }, 3));
        two.write_all(b"two").await.unwrap();
        conn.write_all(b"good").await.unwrap();
        pending::<()>().await;
    });
    let peer = Peer::accepted().with_thread(3);
    let mut conn = TestConnection::open_with(&service, &peer, Policy::default()).unwrap();
    let [one, two, three] = [(); 3].map(|()| conn.next_dial().unwrap());
    assert_eq!([&one, &two, &three].map(|dial| dial.dial().to.addr().unwrap().port()), [1, 2, 3]);
    three.fail(ErrorKind::ConnectionRefused.into());
    conn.settle();
    let mut upstream = two.connect();
    conn.settle();
    one.fail(ErrorKind::TimedOut.into());
    conn.settle();
    upstream.settle();
    assert_eq!((conn.output(), upstream.output()), (&b"good"[..], &b"two"[..]));
}

#[test]
fn a_dial_that_is_given_up_before_it_began_is_none() {
    let service = service(async |conn: Connection| {
        drop(conn.dial(to(1), WITHIN));
        pending::<()>().await;
    });
    let mut conn = TestConnection::open(&service).unwrap();
    assert!(conn.next_dial().is_none(), "{conn:?}");
}

#[test]
fn a_connection_that_comes_after_its_dial_was_given_up_is_closed() {
    let service = service(async |mut conn: Connection| {
        let dialling = conn.dial(to(1), WITHIN);
        assert!(matches!(select(dialling, pin!(conn.read_u8())).await, Either::Right(_)));
        pending::<()>().await;
    });
    let mut conn = TestConnection::open(&service).unwrap();
    let dial = conn.next_dial().unwrap();
    conn.receive(b"x");
    let mut upstream = dial.connect();
    assert!(upstream.has_finished_sending(), "{upstream:?}");
    upstream.half_close();
    conn.settle();
    assert_eq!((upstream.state(), conn.state()), (TestState::Closed, TestState::Open));
}

#[test]
fn too_many_dials_at_once_are_refused_with_a_reason() {
    let service = service(async |mut conn: Connection| {
        let (first, second) = (conn.dial(to(1), WITHIN), conn.dial(to(2), WITHIN));
        let why = second.await.unwrap_err();
        conn.write_all(format!("{:?}: {why}", why.kind()).as_bytes()).await.unwrap();
        let _ = first.await;
    });
    let policy = Policy::default().mail_queue(1);
    let conn = TestConnection::open_with(&service, &Peer::accepted(), policy).unwrap();
    let said = String::from_utf8_lossy(conn.output());
    assert!(said.starts_with("ResourceBusy") && said.contains("mail_queue"), "{said}");
}

#[test]
fn a_dial_of_a_connection_that_is_gone_fails() {
    let (handle, conn) = outside();
    let mut before = pin!(handle.dial(to(1), WITHIN));
    let mut poll = || before.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(poll().is_pending());
    drop(conn);
    assert!(matches!(poll(), Poll::Ready(Err(e)) if e.kind() == ErrorKind::NotConnected));
    let mut after = pin!(handle.dial(to(1), WITHIN));
    let after = after.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(after, Poll::Ready(Err(e)) if e.kind() == ErrorKind::NotConnected));
}

#[test]
fn each_end_holds_the_other_back() {
    let (mut conn, mut upstream) = proxied();
    let (both, most) = (vec![7; 8 << 20], 2 << 20);
    conn.stall();
    upstream.stall();
    upstream.receive(&both);
    conn.receive(&both);
    for _ in 0..4_000 {
        conn.settle();
        upstream.settle();
    }
    for end in [&conn, &upstream] {
        assert!(end.queued() < most && end.unreceived() > both.len() - 2 * most, "{end:?}");
    }
    conn.resume();
    upstream.resume();
    for _ in 0..4_000 {
        conn.settle();
        upstream.settle();
    }
    assert!(conn.output() == both && upstream.output() == both, "{conn:?}, {upstream:?}");
}

#[test]
fn a_drain_waits_for_an_answer_and_for_nothing_else() {
    let limit = Duration::from_secs(20);
    for asks in [false, true] {
        let (mut conn, mut upstream) = proxied();
        conn.receive(b"first");
        upstream.settle();
        upstream.receive(b"answer");
        conn.settle();
        conn.drain();
        upstream.drain();
        if asks {
            conn.receive(b"last");
            upstream.settle();
            conn.advance(limit);
            upstream.advance(limit);
            assert_eq!((conn.state(), upstream.state()), (TestState::Open, TestState::Open));
            upstream.receive(b", and more");
        }
        conn.settle();
        conn.advance(Duration::from_secs(2));
        assert_eq!(conn.close_reason(), Some(CloseReason::Finished), "{conn:?}");
        assert_eq!(conn.output(), if asks { &b"answer, and more"[..] } else { b"answer" });
        upstream.settle();
        assert!(upstream.has_finished_sending(), "{upstream:?}");
    }
}

/// Another thread of the code lets go of the one that owes the answer: the connection is idle then.
#[test]
fn a_drain_does_not_wait_for_the_answer_of_a_connection_that_was_let_go_of() {
    let (lets_go, goes) = mpsc::channel();
    let service = service(move |mut conn: Connection| {
        let lets_go = lets_go.clone();
        async move {
            conn.read_u8().await.unwrap();
            let mut upstream = conn.dial(to(1), WITHIN).await.unwrap();
            upstream.write_all(b"question").await.unwrap();
            lets_go.send(upstream).unwrap();
            conn.read_u8().await
        }
    });
    let mut conn = TestConnection::open(&service).unwrap();
    conn.receive(b"x");
    let mut upstream = conn.next_dial().unwrap().connect();
    conn.settle();
    conn.drain();
    conn.advance(Duration::from_secs(20));
    assert_eq!(conn.state(), TestState::Open);
    drop(goes.recv().unwrap());
    conn.settle();
    conn.advance(Duration::from_secs(2));
    assert_eq!(conn.close_reason(), Some(CloseReason::Finished), "{conn:?}");
    upstream.settle();
    assert_eq!((upstream.output(), upstream.has_finished_sending()), (&b"question"[..], true));
}

#[test]
fn the_output_of_a_future_may_be_waited_for() {
    let service = service(async |mut conn: Connection| {
        let sleep = conn.sleep(WITHIN);
        let slow = conn.spawn(async move {
            sleep.await;
            "slow"
        });
        let aborted = conn.spawn(pending::<u8>());
        let early = conn.spawn(async { "early" });
        aborted.abort();
        assert_eq!(aborted.await, Err(JoinError));
        drop(conn.spawn(async {})); // goes on
        let words = [early.await.unwrap(), slow.await.unwrap()];
        conn.write_all(words.concat().as_bytes()).await
    });
    let mut conn = TestConnection::open(&service).unwrap();
    assert_eq!(conn.output(), b"");
    conn.advance(2 * WITHIN); // the clock is ahead of the virtual time
    assert_eq!(conn.output(), b"earlyslow");
}

#[test]
fn the_output_of_a_future_whose_connection_has_ended_does_not_come() {
    let (handle, mut conn) = outside();
    let noop = || std::task::Context::from_waker(std::task::Waker::noop());
    let mut before = handle.spawn(pending::<u8>());
    conn.settle();
    assert!(Pin::new(&mut before).poll(&mut noop()).is_pending());
    drop(conn);
    let mut after = handle.spawn(async { 1 });
    for handle in [&mut before, &mut after] {
        assert_eq!(Pin::new(handle).poll(&mut noop()), Poll::Ready(Err(JoinError)));
    }
    let error: std::io::Error = JoinError.into();
    assert!(error.to_string().contains("aborted"), "{error}");
}

#[test]
fn halves_become_a_connection_again_that_is_not_shut_down() {
    let (conns, mut ends): (Vec<_>, Vec<_>) = [(); 2].map(|()| outside()).into_iter().unzip();
    let [(one_reader, one_writer), (two_reader, two_writer)] =
        <[Connection; 2]>::try_from(conns).unwrap().map(Connection::into_split);
    let ReuniteError(one_reader, two_writer) = one_reader.reunite(two_writer).unwrap_err();
    let (one, two) = (one_reader.reunite(one_writer).unwrap(), two_reader.reunite(two_writer).unwrap());
    for (end, mut conn) in ends.iter_mut().zip([one, two]) {
        let mut write = pin!(conn.write_all(b"still"));
        let written = write.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(written, Poll::Ready(Ok(()))));
        end.settle();
        assert_eq!((end.output(), end.has_finished_sending()), (&b"still"[..], false));
    }
}

#[test]
fn a_dialled_connection_lives_as_long_as_the_one_that_was_reunited_or_a_half() {
    let service = service(async |mut conn: Connection| {
        let upstream = conn.dial(to(1), WITHIN).await.unwrap();
        let (reader, writer) = upstream.into_split();
        let (mut reader, writer) = reader.reunite(writer).unwrap().into_split();
        conn.write_u8(reader.read_u8().await.unwrap()).await.unwrap();
        drop(writer);
        conn.write_u8(reader.read_u8().await.unwrap()).await.unwrap();
        drop(reader);
        poll_fn::<(), _>(|_| Poll::Pending).await;
    });
    let mut conn = TestConnection::open(&service).unwrap();
    let mut upstream = conn.next_dial().unwrap().connect();
    conn.settle();
    upstream.settle();
    assert!(!upstream.has_finished_sending(), "{upstream:?}");
    upstream.receive(b"a");
    conn.settle();
    upstream.settle();
    assert!(upstream.has_finished_sending() && upstream.is_receiving(), "{upstream:?}");
    upstream.receive(b"b");
    conn.settle();
    upstream.half_close();
    assert_eq!((conn.output(), upstream.state()), (&b"ab"[..], TestState::Closed));
}
