//! What a stop waits for in code that dials, step by step: the test plays every other part.

use std::future::{pending, poll_fn};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::testing::{TestConnection, TestState};
use tidegate::{CloseReason, Service};
use tidegate_async::{Connection, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};

const WITHIN: Duration = Duration::from_secs(5);
/// Longer than a connection that has not answered yet waits for a last request.
const LAST_WORD: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);

fn to(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], port))
}

/// One connection of the service, and the one that it has dialled.
fn opened(service: &impl Service) -> (TestConnection, TestConnection) {
    let mut conn = TestConnection::open(service).unwrap();
    let upstream = conn.next_dial().unwrap().connect();
    conn.settle();
    (conn, upstream)
}

#[test]
fn an_upstream_that_has_ended_owes_no_answer() {
    let service = service(async |mut conn: Connection| {
        let mut upstream = conn.dial(to(80), WITHIN).await?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer).await?;
        conn.write_all(&answer).await?;
        copy(&mut conn, &mut upstream).await
    });
    let (mut conn, mut upstream) = opened(&service);
    upstream.receive(b"answer");
    upstream.half_close();
    conn.settle();
    conn.receive(b"more");
    upstream.settle();
    assert_eq!((conn.output(), upstream.output()), (&b"answer"[..], &b"more"[..]));
    conn.drain();
    conn.advance(LAST_WORD);
    assert_eq!(conn.close_reason(), Some(CloseReason::Finished), "{conn:?}");
}

#[test]
fn a_write_that_takes_nothing_asks_nothing() {
    let service = service(async |mut conn: Connection| {
        let mut upstream = conn.dial(to(80), WITHIN).await.unwrap();
        assert_eq!(upstream.write(b"").await.unwrap(), 0);
        upstream.shutdown().await.unwrap();
        assert_eq!(upstream.write(b"late").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        conn.read_u8().await
    });
    let (mut conn, mut upstream) = opened(&service);
    upstream.settle();
    conn.drain();
    conn.advance(LAST_WORD);
    assert_eq!(conn.close_reason(), Some(CloseReason::Finished), "{conn:?}");
}

#[test]
fn a_dial_that_succeeds_while_the_server_drains_is_used() {
    let service = service(async |mut conn: Connection| {
        conn.write_u8(b'>').await.unwrap(); // one that has spoken is closed as soon as it is idle
        let dialling = conn.dial(to(80), WITHIN);
        let Either::Right((upstream, _)) = select(pin!(conn.read_u8()), dialling).await else { return };
        let mut upstream = upstream.unwrap();
        upstream.write_all(b"question").await.unwrap();
        conn.write_u8(upstream.read_u8().await.unwrap()).await.unwrap();
    });
    let mut conn = TestConnection::open(&service).unwrap();
    let dial = conn.next_dial().unwrap();
    conn.drain();
    conn.advance(LAST_WORD);
    let mut upstream = dial.connect();
    conn.settle();
    upstream.settle();
    assert_eq!((upstream.output(), conn.state()), (&b"question"[..], TestState::Open), "{conn:?}");
    upstream.receive(b"a");
    conn.settle();
    assert_eq!(conn.output(), b">a");
}

#[test]
fn a_future_that_is_to_be_polled_again_is_not_idle() {
    let service = service(async |mut conn: Connection| {
        let first = conn_byte(&mut conn).await;
        conn.write_u8(first).await.unwrap();
        let mut rest = 50;
        let yields = poll_fn(|task| {
            rest -= 1;
            task.waker().wake_by_ref();
            if rest > 0 { Poll::Pending } else { Poll::Ready(()) }
        });
        select(pin!(conn_byte(&mut conn)), yields).await;
        conn.write_all(b"done").await
    });
    let mut conn = TestConnection::open(&service).unwrap();
    conn.drain();
    conn.receive(b"x");
    conn.settle();
    assert_eq!(conn.output(), b"xdone", "{conn:?}");
}

async fn conn_byte(conn: &mut Connection) -> u8 {
    conn.read_u8().await.unwrap()
}

#[test]
fn what_a_dialled_connection_has_dialled_owes_its_answer_to_the_accepted_one() {
    let service = service(async |mut conn: Connection| {
        let first = conn.dial(to(1), WITHIN).await?;
        let mut second = first.dial(to(2), WITHIN).await?;
        copy_bidirectional(&mut conn, &mut second).await
    });
    let (mut conn, mut first) = opened(&service);
    first.settle();
    let mut second = first.next_dial().unwrap().connect();
    first.settle();
    conn.settle();
    conn.receive(b"question");
    second.settle();
    assert_eq!(second.output(), b"question");
    for end in [&mut conn, &mut first, &mut second] {
        end.drain();
    }
    conn.advance(LONG);
    assert_eq!(conn.state(), TestState::Open);
    second.receive(b"answer");
    conn.settle();
    conn.advance(LAST_WORD);
    assert_eq!((conn.output(), conn.close_reason()), (&b"answer"[..], Some(CloseReason::Finished)));
}

#[test]
fn a_dialled_connection_that_outlives_the_accepted_one_is_idle_unless_it_owes_an_answer() {
    for asks in [false, true] {
        let (lets_go, goes) = mpsc::channel();
        let service = service(move |conn: Connection| {
            let lets_go = lets_go.clone();
            async move {
                let mut upstream = conn.dial(to(1), WITHIN).await.unwrap();
                if asks {
                    upstream.write_all(b"question").await.unwrap();
                }
                lets_go.send(upstream).unwrap();
            }
        });
        let (mut conn, mut upstream) = opened(&service);
        conn.half_close();
        upstream.settle();
        let pooled = goes.recv().unwrap();
        assert_eq!((conn.state(), upstream.state()), (TestState::Closed, TestState::Open));
        upstream.drain();
        upstream.advance(LONG);
        if asks {
            assert_eq!(upstream.state(), TestState::Open);
            upstream.receive(b"answer");
            upstream.advance(LAST_WORD);
        }
        upstream.half_close();
        assert_eq!(upstream.close_reason(), Some(CloseReason::Finished), "asks: {asks}");
        drop(pooled);
    }
}

#[test]
fn a_dial_that_cannot_be_has_an_error_with_its_kind() {
    let service = service(async |mut conn: Connection| {
        let nonsense = conn.dial("nonsense", WITHIN).await.unwrap_err();
        let dropped = conn.dial("127.0.0.1:80", WITHIN).await.unwrap_err();
        conn.write_all(format!("{:?} {:?}", nonsense.kind(), dropped.kind()).as_bytes()).await.unwrap();
        pending::<()>().await;
    });
    let mut conn = TestConnection::open(&service).unwrap();
    drop(conn.next_dial().unwrap()); // as a server that stops does
    conn.settle();
    assert_eq!(String::from_utf8_lossy(conn.output()), "InvalidInput NotConnected");
}
