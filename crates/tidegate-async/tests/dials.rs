//! Connections that async code dials, on every model that works here: what is read and written on them, how they end,
//! and what a stop does with them.

mod kit;

use std::future::{pending, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use kit::streams::{receive, send_all};
use kit::{
    TIMEOUT, comes_to_rest, connect, echo, exchange, on_every_model, pattern, policy, reset, start, until,
};
use tidegate::policy::OutboxMarks;
use tidegate::{CloseReason, Running, Service, Stats};
use tidegate_async::{Connection, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};

/// A server of the test itself, on a thread for each of its connections.
fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// The next connection that was dialled.
fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn addr_of(running: &Running) -> SocketAddr {
    running.local_addr().addr().unwrap()
}

/// Passes bytes on in both directions.
fn proxy(to: SocketAddr) -> impl Service {
    service(move |mut conn: Connection| async move {
        let mut upstream = conn.dial(to, TIMEOUT).await?;
        copy_bidirectional(&mut conn, &mut upstream).await
    })
    .speaks_first()
    .dials(1)
}

/// Waits until a server that stops has ended.
fn joined(running: Running) -> Stats {
    let (ended, stats) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = ended.send(running.join()); // nobody waits any more if the case has failed
    });
    stats.recv_timeout(TIMEOUT).expect("it stops")
}

#[test]
fn bytes_go_to_the_upstream_and_back_exactly_and_then_the_end() {
    const LENGTH: usize = 16 << 20;
    on_every_model(|model| {
        let policy = policy(model).outbox(OutboxMarks::default().low(16 << 10).high(64 << 10));
        let upstream = start(model, policy.clone(), service(echo));
        let running = start(model, policy, proxy(addr_of(&upstream)));
        let mut stream = connect(&running);
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for piece in pattern(LENGTH).chunks(7919) {
                send_all(&mut writer, piece).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        sender.join().unwrap();
        assert!(answer == pattern(LENGTH), "on {model}: {} bytes came back", answer.len());
        until("both connections are closed", || running.stats().open() == 0);
        running.stop();
        let stats = joined(running);
        assert_eq!(stats.closed_by(CloseReason::Finished), 2, "on {model}: {stats:?}");
    });
}

#[test]
fn a_dial_that_fails_says_why() {
    on_every_model(|model| {
        // Bound, so that nobody else listens there either.
        let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        nobody.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let to = nobody.local_addr().unwrap().as_socket().unwrap();
        let dials = || {
            service(move |mut conn: Connection| async move {
                let why = conn.dial(to, TIMEOUT).await.expect_err("nobody listens there");
                conn.write_all(format!("{:?}: {why}", why.kind()).as_bytes()).await
            })
            .speaks_first()
        };
        let answer_of = |service| {
            let running = start(model, policy(model), service);
            let mut answer = String::new();
            connect(&running).read_to_string(&mut answer).unwrap();
            answer
        };
        let refused = answer_of(dials().dials(1));
        assert!(refused.starts_with("ConnectionRefused"), "on {model}: {refused}");
        let undeclared = answer_of(dials());
        assert!(undeclared.starts_with("Unsupported"), "on {model}: {undeclared}");
        assert!(undeclared.contains("set ServiceOptions::dials"), "on {model}: {undeclared}");
    });
}

#[test]
fn either_side_of_an_upstream_may_finish_first() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let running = start(
            model,
            policy(model),
            service(move |mut conn: Connection| async move {
                let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
                let mut first = String::new();
                upstream.read_to_string(&mut first).await.unwrap();
                upstream.write_all(b"after your end").await.unwrap();
                drop(upstream); // sends that first
                conn.write_all(first.as_bytes()).await.unwrap();
                let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
                upstream.write_all(b"before mine").await.unwrap();
                upstream.shutdown().await.unwrap();
                let mut last = String::new();
                upstream.read_to_string(&mut last).await.unwrap();
                conn.write_all(last.as_bytes()).await.unwrap();
            })
            .speaks_first()
            .dials(1),
        );
        let mut stream = connect(&running);
        let mut rest = String::new();
        let mut first = accept(&listener);
        first.write_all(b"one ").unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        first.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "after your end", "on {model}");
        let mut second = accept(&listener);
        second.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "after your endbefore mine", "on {model}");
        second.write_all(b"two").unwrap();
        drop(second);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "one two", "on {model}");
    });
}

#[test]
fn a_reset_on_one_side_is_one_on_the_other() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let running = start(
            model,
            policy(model),
            service(move |mut conn: Connection| async move {
                let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
                upstream.write_all(b"reset me").await.unwrap();
                let kind = upstream.read_u8().await.unwrap_err().kind();
                conn.write_all(format!("{kind:?}").as_bytes()).await.unwrap();
                let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
                assert_eq!(upstream.read_u8().await.unwrap(), b'x');
                upstream.abort();
                assert_eq!(upstream.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            })
            .speaks_first()
            .dials(1),
        );
        let mut stream = connect(&running);
        let mut resets = accept(&listener);
        resets.read_exact(&mut [0; 8]).unwrap();
        reset(resets);
        let mut is_reset = accept(&listener);
        is_reset.write_all(b"x").unwrap();
        let end = receive(&mut is_reset, &mut [0]).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "on {model}");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "ConnectionReset", "on {model}");
    });
}

#[test]
fn an_upstream_and_its_user_hold_each_other_back() {
    const TOTAL: usize = 64 << 20;
    on_every_model(|model| {
        let (listener, to) = listen();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (gone, written) = (Arc::new(Mutex::new(Some(gone))), Arc::new(AtomicUsize::new(0)));
        let count = written.clone();
        let service = service(move |mut conn: Connection| {
            let (gone, count) = (gone.lock().unwrap().take().unwrap(), count.clone());
            async move {
                let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
                let piece = pattern(1 << 16);
                while count.load(SeqCst) < TOTAL {
                    upstream.write_all(&piece).await.unwrap();
                    count.fetch_add(piece.len(), SeqCst);
                }
                upstream.shutdown().await.unwrap();
                gone.await.unwrap();
                let mut buffer = vec![0; 1 << 16];
                let mut sum = 0;
                while let Ok(n @ 1..) = upstream.read(&mut buffer).await {
                    sum += n;
                }
                conn.write_all(sum.to_string().as_bytes()).await.unwrap();
            }
        });
        let running = start(model, policy(model), service.speaks_first().dials(1));
        let mut stream = connect(&running);
        let mut upstream = accept(&listener);
        comes_to_rest(&written);
        let ahead = written.load(SeqCst);
        assert!(ahead < TOTAL / 2, "on {model}: {ahead} bytes were written that nobody takes");
        let mut all = Vec::new();
        upstream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), TOTAL, "on {model}");
        assert!(all.chunks(1 << 16).all(|piece| piece == pattern(1 << 16)), "on {model}");
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let sender = std::thread::spawn(move || {
            let piece = vec![7; 1 << 16];
            while count.load(SeqCst) < TOTAL {
                send_all(&mut upstream, &piece).unwrap();
                count.fetch_add(piece.len(), SeqCst);
            }
        });
        comes_to_rest(&sent);
        let held = running.stats().bytes_in as usize;
        assert!(held < TOTAL / 2, "on {model}: {held} bytes were taken that nobody has read");
        go.send(()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        sender.join().unwrap();
        assert_eq!(answer, TOTAL.to_string(), "on {model}");
    });
}

/// It is polled once, and given up when a byte has come.
#[test]
fn a_dial_that_is_given_up_leaves_no_connection() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let service = service(move |mut conn: Connection| async move {
            let mut dialling = conn.dial(to, TIMEOUT);
            poll_fn(|task| {
                let _ = Pin::new(&mut dialling).poll(task);
                Poll::Ready(())
            })
            .await;
            conn.read_u8().await.unwrap();
            drop(dialling);
            echo(conn).await;
        });
        let running = start(model, policy(model), service.speaks_first().dials(1));
        let mut stream = connect(&running);
        let mut upstream = accept(&listener);
        stream.write_all(b"x").unwrap();
        assert_eq!(upstream.read(&mut [0]).unwrap(), 0, "on {model}");
        drop(upstream);
        assert_eq!(exchange(&mut stream, b"here"), b"here", "on {model}");
        until("one connection is open", || running.stats().open() == 1);
    });
}

#[test]
fn the_end_of_a_connection_ends_what_it_has_dialled() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let service = service(move |mut conn: Connection| async move {
            let mut upstream = conn.dial(to, TIMEOUT).await.unwrap();
            upstream.write_all(b"last").await.unwrap();
            match conn.read_u8().await.unwrap() {
                b'r' => {}
                b'p' => panic!("on purpose, in a test"),
                b'h' => {
                    // A half of it is enough, wherever that is.
                    let (reader, writer) = upstream.into_split();
                    conn.spawn(async move {
                        let _reader = reader;
                        pending::<()>().await;
                    });
                    drop(writer);
                }
                _ => pending().await,
            }
        });
        let running = start(model, policy(model), service.speaks_first().dials(1));
        for word in [b"r", b"p", b"h", b"w"] {
            let mut stream = connect(&running);
            let mut upstream = accept(&listener);
            stream.write_all(word).unwrap();
            if word == b"w" {
                reset(stream);
            }
            let mut all = String::new();
            upstream.read_to_string(&mut all).unwrap();
            assert_eq!(all, "last", "on {model}");
        }
        until("nothing is open", || running.stats().open() == 0);
    });
}

/// Longer than a stop waits for the next request of an idle connection.
const LONG_WORK: Duration = Duration::from_millis(1500);

#[test]
fn a_stop_waits_for_the_answer_of_an_upstream_and_ends_what_is_idle() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let running = start(model, policy(model), proxy(to));
        let mut idle = connect(&running);
        let mut idle_upstream = accept(&listener);
        idle.write_all(b"a").unwrap();
        idle_upstream.read_exact(&mut [0]).unwrap();
        idle_upstream.write_all(b"b").unwrap();
        idle.read_exact(&mut [0]).unwrap();
        let mut busy = connect(&running);
        let mut busy_upstream = accept(&listener);
        busy.write_all(b"question").unwrap();
        busy_upstream.read_exact(&mut [0; 8]).unwrap();
        running.stop();
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).unwrap();
        idle_upstream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "on {model}");
        drop((idle, idle_upstream));
        std::thread::sleep(LONG_WORK);
        busy_upstream.write_all(b"answer").unwrap();
        busy.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"answer", "on {model}");
        rest.clear();
        busy_upstream.read_to_end(&mut rest).unwrap();
        drop((busy, busy_upstream));
        let stats = joined(running);
        assert_eq!(stats.closed_by(CloseReason::Finished), 4, "on {model}: {stats:?}");
    });
}

#[test]
fn the_time_of_a_stop_bounds_an_upstream_too() {
    on_every_model(|model| {
        let (listener, to) = listen();
        let policy = policy(model).drain_timeout(Duration::from_millis(100));
        let running = start(model, policy, proxy(to));
        let mut stream = connect(&running);
        let mut upstream = accept(&listener);
        stream.write_all(b"question").unwrap();
        upstream.read_exact(&mut [0; 8]).unwrap();
        running.stop();
        assert!(receive(&mut stream, &mut [0]).is_err(), "on {model}: it is reset");
        let _ = upstream.read(&mut [0]); // so is this, unless its user was faster
        let stats = joined(running);
        assert_eq!(
            (stats.open(), stats.closed_by(CloseReason::Stopped) > 0),
            (0, true),
            "on {model}: {stats:?}"
        );
    });
}

/// Another thread reads and writes the upstream, and dials one itself.
#[test]
fn an_upstream_may_be_used_on_another_thread() {
    on_every_model(|model| {
        let upstream = start(model, policy(model), service(echo));
        let to = addr_of(&upstream);
        let service = service(move |mut conn: Connection| async move {
            let upstream = conn.dial(to, TIMEOUT).await.unwrap();
            let handle = conn.handle();
            let (done, result) = tokio::sync::oneshot::channel();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async move {
                    let mut sum = 0;
                    for mut upstream in [upstream, handle.dial(to, TIMEOUT).await.unwrap()] {
                        upstream.write_all(&pattern(100_000)).await.unwrap();
                        upstream.shutdown().await.unwrap();
                        let mut back = Vec::new();
                        upstream.read_to_end(&mut back).await.unwrap();
                        sum += usize::from(back == pattern(100_000));
                    }
                    done.send(sum).unwrap();
                });
            });
            let sum = result.await.unwrap();
            thread.join().unwrap();
            conn.write_all(&[sum as u8]).await.unwrap();
        });
        let running = start(model, policy(model), service.speaks_first().dials(2));
        let mut answer = Vec::new();
        connect(&running).read_to_end(&mut answer).unwrap();
        assert_eq!(answer, [2], "on {model}");
    });
}
