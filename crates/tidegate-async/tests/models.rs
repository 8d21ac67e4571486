//! Async code on every model that works here, against plain sockets.
//!
//! Each case runs on all of them one after the other and names the one it failed on.

mod kit;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use kit::streams::{receive, send_all};
use kit::{
    Dropped, TIMEOUT, comes_to_rest, connect, echo, exchange, on_every_model, pattern, policy, reset, start,
    until,
};
use tidegate::policy::OutboxMarks;
use tidegate::{Client, Model, Policy};
use tidegate_async::{Connection, Elapsed, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn bytes_come_back_exactly_and_then_the_end() {
    on_every_model(|model| {
        let running = start(model, policy(model), service(echo));
        let mut stream = connect(&running);
        let sent = pattern(3_000_000);
        let expected = sent.clone();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for piece in sent.chunks(7919) {
                send_all(&mut writer, piece).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        sender.join().unwrap();
        assert!(answer == expected, "on {model}: {} bytes came back", answer.len());
    });
}

#[test]
fn code_that_does_not_read_holds_its_peer_back() {
    on_every_model(|model| {
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let gone = Arc::new(Mutex::new(Some(gone)));
        let total = 64 << 20;
        let running = start(
            model,
            policy(model),
            service(move |mut conn: Connection| {
                let gone = gone.lock().unwrap().take();
                async move {
                    if let Some(gone) = gone {
                        let _ = gone.await;
                    }
                    let mut buffer = vec![0; 1 << 16];
                    let mut sum = 0;
                    while let Ok(n @ 1..) = conn.read(&mut buffer).await {
                        sum += n;
                    }
                    conn.write_all(sum.to_string().as_bytes()).await.unwrap();
                }
            }),
        );
        let mut stream = connect(&running);
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let piece = vec![7; 1 << 16];
            while count.load(SeqCst) < total {
                send_all(&mut writer, &piece).unwrap();
                count.fetch_add(piece.len(), SeqCst);
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        // What the kernel holds for two sockets is bounded; so the sender comes to a stop.
        comes_to_rest(&sent);
        let held = running.stats().bytes_in;
        assert!((held as usize) < total / 2, "on {model}: {held} bytes were taken that nobody has read");
        go.send(()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        sender.join().unwrap();
        assert_eq!(answer, total.to_string(), "on {model}");
    });
}

#[test]
fn code_that_writes_too_much_waits_for_its_peer() {
    on_every_model(|model| {
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let total = 64 << 20;
        let outbox = OutboxMarks::default().low(16 << 10).high(64 << 10);
        let running = start(
            model,
            policy(model).outbox(outbox),
            service(move |mut conn: Connection| {
                let count = count.clone();
                async move {
                    let piece = pattern(1 << 16);
                    conn.read_u8().await.unwrap();
                    while count.load(SeqCst) < total {
                        conn.write_all(&piece).await.unwrap();
                        count.fetch_add(piece.len(), SeqCst);
                    }
                }
            }),
        );
        let mut stream = connect(&running);
        stream.write_all(b"x").unwrap();
        comes_to_rest(&written);
        let ahead = written.load(SeqCst);
        assert!(ahead < total / 2, "on {model}: {ahead} bytes were written that nobody takes");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), total, "on {model}");
        assert!(answer.chunks(1 << 16).all(|piece| piece == pattern(1 << 16)), "on {model}");
    });
}

#[test]
fn timers_are_kept_and_a_limit_ends_what_takes_too_long() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                let begun = Instant::now();
                let wait = Duration::from_millis(30);
                let (a, b) = (conn.sleep(wait), conn.sleep(wait * 2));
                a.await;
                let first = begun.elapsed();
                b.await;
                let second = begun.elapsed();
                let over = conn.timeout(wait, std::future::pending::<()>()).await;
                let in_time = conn.timeout(TIMEOUT, async { 7 }).await;
                let good = first >= wait
                    && second >= wait * 2
                    && begun.elapsed() >= wait * 3
                    && over == Err(Elapsed)
                    && in_time == Ok(7);
                conn.write_all(if good { b"good" } else { b"bad!" }).await.unwrap();
            })
            .speaks_first(),
        );
        let mut answer = String::new();
        connect(&running).read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "good", "on {model}");
    });
}

#[test]
fn other_threads_and_further_futures_take_part() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |conn: Connection| {
                let (sender, mut receiver) = tokio::sync::mpsc::channel::<String>(4);
                let of_thread = sender.clone();
                let thread = std::thread::spawn(move || of_thread.blocking_send("thread ".into()).unwrap());
                let of_future = sender.clone();
                let sleep = conn.sleep(Duration::from_millis(5));
                conn.spawn(async move {
                    sleep.await;
                    of_future.send("future ".into()).await.unwrap();
                });
                drop(sender);
                let job = conn.offload(|| "job".to_owned());
                let job = conn.spawn(async move { job.await.unwrap() });
                let (mut reader, mut writer) = conn.into_split();
                let mut word = String::new();
                reader.read_to_string(&mut word).await.unwrap();
                let mut all = Vec::new();
                while let Some(part) = receiver.recv().await {
                    all.push(part);
                }
                all.push(job.await.unwrap());
                all.sort();
                thread.join().unwrap();
                let answer = format!("{word}: {}", all.concat());
                writer.write_all(answer.as_bytes()).await.unwrap();
            }),
        );
        let mut stream = connect(&running);
        stream.write_all(b"word").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "word: future jobthread ", "on {model}");
    });
}

#[test]
fn half_the_connection_may_live_on_another_thread() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |conn: Connection| {
                let (mut reader, mut writer) = conn.into_split();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let (done, ended) = tokio::sync::oneshot::channel::<()>();
                std::thread::spawn(move || {
                    runtime.block_on(async move {
                        for piece in pattern(2_000_000).chunks(10_007) {
                            writer.write_all(piece).await.unwrap();
                        }
                    });
                    let _ = done.send(());
                });
                let mut word = [0; 2];
                reader.read_exact(&mut word).await.unwrap();
                ended.await.unwrap();
            })
            .speaks_first(),
        );
        let mut stream = connect(&running);
        let mut answer = Vec::new();
        stream.write_all(b"go").unwrap();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == pattern(2_000_000), "on {model}: {} bytes came", answer.len());
    });
}

#[test]
fn a_future_that_wakes_itself_for_ever_starves_nobody() {
    on_every_model(|model| {
        let busy = Arc::new(AtomicUsize::new(0));
        let polls = busy.clone();
        let running = start(
            model,
            policy(model).drain_timeout(Duration::from_millis(100)),
            service(move |mut conn: Connection| {
                let polls = polls.clone();
                async move {
                    if conn.read_u8().await.unwrap() == b'!' {
                        std::future::poll_fn::<(), _>(|task| {
                            polls.fetch_add(1, SeqCst);
                            task.waker().wake_by_ref();
                            std::task::Poll::Pending
                        })
                        .await;
                    }
                    echo(conn).await;
                }
            }),
        );
        let mut greedy = connect(&running);
        greedy.write_all(b"!").unwrap();
        until("it is busy", || busy.load(SeqCst) > 100);
        let mut other = connect(&running);
        other.write_all(b".").unwrap();
        for _ in 0..100 {
            assert_eq!(exchange(&mut other, b"hello"), b"hello", "on {model}");
        }
        let before = busy.load(SeqCst);
        until("it is still busy", || busy.load(SeqCst) > before);
    });
}

#[test]
fn the_end_of_a_connection_drops_its_futures() {
    on_every_model(|model| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = dropped.clone();
        let running = start(
            model,
            policy(model),
            service(move |conn: Connection| {
                let (root, spawned) = (Dropped(count.clone()), Dropped(count.clone()));
                async move {
                    let _root = root;
                    conn.spawn(async move {
                        let _spawned = spawned;
                        std::future::pending::<()>().await;
                    });
                    echo(conn).await;
                    std::future::pending::<()>().await;
                }
            }),
        );
        let mut stream = connect(&running);
        assert_eq!(exchange(&mut stream, b"here"), b"here", "on {model}");
        assert_eq!(dropped.load(SeqCst), 0, "on {model}");
        reset(stream);
        until("both are dropped", || dropped.load(SeqCst) == 2);
    });
}

#[test]
fn a_panic_costs_its_own_connection() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                assert_ne!(conn.read_u8().await.unwrap(), b'!', "on purpose, in a test");
                echo(conn).await;
            }),
        );
        let mut good = connect(&running);
        good.write_all(b".").unwrap();
        assert_eq!(exchange(&mut good, b"before"), b"before", "on {model}");
        let mut bad = connect(&running);
        bad.write_all(b"!").unwrap();
        assert!(receive(&mut bad, &mut [0]).is_err(), "on {model}: no clean end");
        assert_eq!(exchange(&mut good, b"after"), b"after", "on {model}");
    });
}

#[test]
fn an_answer_that_breaks_off_ends_by_a_reset() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                conn.write_all(b"begun").await.unwrap();
                let returns = conn.read_u8().await.unwrap() == b'r';
                conn.abort();
                assert_eq!(conn.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
                if !returns {
                    std::future::pending::<()>().await;
                }
            })
            .speaks_first(),
        );
        for word in [b"r", b"w"] {
            let mut stream = connect(&running);
            let mut begun = [0; 5];
            stream.read_exact(&mut begun).unwrap();
            stream.write_all(word).unwrap();
            let end = receive(&mut stream, &mut [0]).map_err(|e| e.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "on {model}");
        }
        until("both are counted", || running.stats().closed_by(tidegate::CloseReason::Aborted) == 2);
    });
}

#[test]
fn a_drain_closes_the_idle_and_tells_those_who_ask() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                let word = conn.read_u8().await.unwrap();
                conn.write_all(&[word]).await.unwrap();
                if word == b'?' {
                    conn.draining().await;
                    conn.write_all(b"bye").await.unwrap();
                    return;
                }
                echo(conn).await;
            }),
        );
        let (mut idle, mut asks) = (connect(&running), connect(&running));
        assert_eq!(exchange(&mut idle, b"."), b".", "on {model}");
        assert_eq!(exchange(&mut asks, b"?"), b"?", "on {model}");
        running.stop();
        let mut last = Vec::new();
        idle.read_to_end(&mut last).unwrap();
        assert!(last.is_empty(), "on {model}");
        asks.read_to_end(&mut last).unwrap();
        assert_eq!(last, b"bye", "on {model}");
        let (ended, all) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = ended.send(running.join()); // nobody waits any more if the case has failed
        });
        let stats = all.recv_timeout(TIMEOUT).expect("it stops");
        assert_eq!(stats.accepted, 2, "on {model}");
        assert_eq!(stats.closed_by(tidegate::CloseReason::Finished), 2, "on {model}: {stats:?}");
    });
}

#[test]
fn a_future_at_work_is_waited_for_at_a_stop() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                conn.read_u8().await.unwrap();
                conn.write_all(b"begun").await.unwrap();
                conn.sleep(Duration::from_millis(200)).await;
                conn.write_all(b" done").await.unwrap();
            }),
        );
        let mut stream = connect(&running);
        stream.write_all(b"x").unwrap();
        let mut begun = [0; 5];
        stream.read_exact(&mut begun).unwrap();
        running.stop();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, " done", "on {model}");
    });
}

/// Longer than a stop waits for the next request of an idle connection.
const LONG_WORK: Duration = Duration::from_millis(1500);

#[test]
fn work_after_a_read_that_was_given_up_is_waited_for_at_a_stop() {
    on_every_model(|model| {
        let running = start(model, policy(model), service(works_after_a_pause));
        let mut stream = connect(&running);
        stream.write_all(b"x").unwrap();
        let mut begun = [0; 5];
        stream.read_exact(&mut begun).unwrap();
        running.stop();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, " done", "on {model}");
    });
}

/// Reads until nothing has come for a moment, then works.
async fn works_after_a_pause(mut conn: Connection) {
    conn.read_u8().await.unwrap();
    let pause = conn.sleep(Duration::from_millis(20));
    match select(pin!(conn.read_u8()), pause).await {
        Either::Left(_) => panic!("nothing more was sent"),
        Either::Right(_) => {}
    }
    conn.write_all(b"begun").await.unwrap();
    conn.sleep(LONG_WORK).await;
    conn.write_all(b" done").await.unwrap();
}

#[test]
fn an_answer_before_the_end_of_the_input_survives() {
    on_every_model(|model| {
        let running = start(
            model,
            policy(model),
            service(async |mut conn: Connection| {
                conn.read_u8().await.unwrap();
                conn.write_all(b"too much").await.unwrap();
            }),
        );
        let mut stream = connect(&running);
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for _ in 0..64 {
                if writer.write_all(&[7; 4096]).is_err() {
                    return;
                }
            }
            let _ = writer.shutdown(Shutdown::Write);
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        sender.join().unwrap();
        assert_eq!(answer, b"too much", "on {model}");
    });
}

#[test]
fn a_refused_job_that_owns_half_of_its_connection_hangs_nothing() {
    on_every_model(|model| {
        let offload = tidegate::policy::Offload::default().threads(1).queue(1);
        let running = start(
            model,
            policy(model).offload(offload),
            service(async |mut conn: Connection| {
                conn.read_u8().await.unwrap();
                let (release, wait) = mpsc::channel::<()>();
                let first = conn.offload(move || {
                    let _ = wait.recv();
                });
                let sleeps: Vec<_> = (0..8).map(|_| conn.sleep(TIMEOUT)).collect();
                let refused: Vec<_> =
                    sleeps.into_iter().map(|sleep| conn.offload(move || drop(sleep))).collect();
                let mut failed = 0;
                let mut left = Vec::new();
                for job in refused {
                    match conn.timeout(Duration::from_millis(50), job).await {
                        Ok(Err(_)) => failed += 1,
                        outcome => left.push(outcome),
                    }
                }
                drop(release);
                first.await.unwrap();
                conn.write_all(if failed > 0 { b"refused" } else { b"all ran" }).await.unwrap();
            }),
        );
        let mut stream = connect(&running);
        stream.write_all(b"x").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "refused", "on {model}");
    });
}

/// Both ends are async code; the dialling one writes and reads side by side, more than all buffers hold. Returns the
/// connections of both ends on the fast path.
fn talk_both_ways(model: Model, policy: Policy, length: usize) -> (u64, u64) {
    let running = start(model, policy.clone(), service(echo));
    let (hears, heard) = mpsc::channel();
    let caller = service(move |conn: Connection| {
        let hears = hears.clone();
        async move {
            let handle = conn.handle();
            let (mut reader, mut writer) = conn.into_split();
            handle.spawn(async move {
                writer.write_all(&pattern(length)).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut back = Vec::new();
            reader.read_to_end(&mut back).await.unwrap();
            hears.send(back).unwrap();
        }
    });
    let client = Client::new(caller.speaks_first()).model(model).policy(policy).start().unwrap();
    client.dial(running.local_addr()).unwrap();
    let back = heard.recv_timeout(TIMEOUT).unwrap();
    assert!(back == pattern(length), "on {model}: {} bytes came back", back.len());
    client.stop();
    let there = client.join();
    running.stop();
    let here = running.join();
    assert_eq!((here.bytes_in, here.bytes_out), (length as u64, length as u64), "on {model}");
    (here.fast_paths, there.fast_paths)
}

#[test]
fn code_that_writes_too_much_still_reads() {
    on_every_model(|model| _ = talk_both_ways(model, policy(model), 48 << 20));
}

/// On a model whose loop can watch shared memory.
#[cfg(target_os = "linux")]
#[test]
fn connections_of_async_code_leave_tcp_for_shared_memory() {
    for model in [Model::Epoll, Model::Uring].into_iter().filter(|model| model.availability().is_available())
    {
        let fast = policy(model).fast_path(Some(tidegate::policy::FastPath::default()));
        assert_eq!(talk_both_ways(model, fast, 3_000_000), (1, 1), "{model}");
    }
}
