//! Async code over a simulated kernel, in virtual time.
#![cfg(target_os = "linux")]

use std::time::Duration;

use tidegate::testing::{Simulation, TestConnection, splits};
use tidegate::{CloseReason, Peer, Policy, Service};
use tidegate_async::service;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

fn echo() -> impl Service {
    service(async |mut conn| {
        let mut buffer = [0; 1000];
        while let Ok(n @ 1..) = conn.read(&mut buffer).await {
            if conn.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    })
}

/// Answers each line by its length, after a moment, from a job.
fn lines() -> impl Service {
    service(async |conn| {
        let mut lines = BufReader::new(conn);
        let mut line = String::new();
        while let Ok(1..) = lines.read_line(&mut line).await {
            let conn = lines.get_mut();
            conn.sleep(Duration::from_millis(2)).await;
            let length = line.trim_end().len();
            let Ok(answer) = conn.offload(move || format!("{length}\n")).await else { return };
            if conn.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            line.clear();
        }
    })
}

#[test]
fn an_async_echo_gives_every_byte_back() {
    let long: Vec<u8> = (0..60_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let stats = Simulation::new(echo).client(b"hello", b"hello").client(&long, &long).connections(6).run();
    assert_eq!(stats.accepted, 200 * 6);
}

#[test]
fn lines_are_answered_after_their_time() {
    let stats = Simulation::new(lines).client("one\n\nthree\n", "3\n0\n5\n").connections(3).run();
    assert_eq!(stats.accepted, 200 * 3);
}

#[test]
fn a_test_steps_through_async_code() {
    for pieces in splits(b"a\nbcd\n\n") {
        let mut conn = TestConnection::open(&lines()).unwrap();
        pieces.iter().for_each(|piece| conn.receive(piece));
        assert_eq!(conn.output(), b"");
        conn.advance(Duration::from_secs(1));
        assert_eq!(conn.output(), b"1\n3\n0\n", "cut into {pieces:?}");
        conn.half_close();
        assert_eq!(conn.close_reason(), Some(CloseReason::Finished));
    }
}

#[test]
fn a_writer_waits_for_its_peer() {
    let policy = Policy::default().send_timeout(None);
    let mut conn = TestConnection::open_with(&echo(), &Peer::accepted(), policy).unwrap();
    conn.stall();
    let said = vec![b'x'; 4 << 20];
    conn.receive(&said);
    assert!(conn.unreceived() > 0 && conn.queued() < 1 << 20, "{conn:?}");
    conn.resume();
    assert_eq!((conn.output().len(), conn.unreceived()), (said.len(), 0));
}
