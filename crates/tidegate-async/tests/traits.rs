//! The traits of tokio, futures-io and hyper, each used by code that knows nothing else, and a tokio runtime that is
//! entered; on every model that works here.

mod kit;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use kit::{connect, exchange, on_every_model, pattern, policy, start};
use tidegate::{Model, Service};
use tidegate_async::{Connection, service};

/// Sends all of it from a thread, and finishes.
fn send_and_finish(stream: &TcpStream, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut writer = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        kit::streams::send_all(&mut writer, &bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    })
}

/// Sends a line and much more: the line comes back behind `said`, and the rest as it is.
fn answers_a_line_and_gives_the_rest_back(model: Model, service: impl Service) {
    let running = start(model, policy(model), service);
    let mut stream = connect(&running);
    let long = pattern(500_000);
    let sender = send_and_finish(&stream, [b"line\n", &long[..]].concat());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    sender.join().unwrap();
    assert!(answer == [b"said line\n", &long[..]].concat(), "on {model}: {} bytes", answer.len());
}

mod tokio_io {
    use std::io::IoSlice;

    use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

    use super::*;

    /// A line that says how long its answer is to be; then all that comes is sent back, then the end.
    async fn talk(
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        let mut lines = BufReader::new(&mut reader);
        let mut line = String::new();
        lines.read_line(&mut line).await?;
        assert!(writer.is_write_vectored());
        let pieces = [IoSlice::new(b"said "), IoSlice::new(&[]), IoSlice::new(line.as_bytes())];
        assert_eq!(writer.write_vectored(&pieces).await?, 5 + line.len());
        writer.flush().await?;
        tokio::io::copy_buf(&mut lines, &mut writer).await?;
        writer.shutdown().await?;
        assert_eq!(reader.read(&mut [0]).await?, 0, "the end is there for ever");
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        Ok(())
    }

    #[test]
    fn halves_and_the_whole_are_readers_and_writers_of_tokio() {
        on_every_model(|model| {
            for whole in [false, true] {
                let service = service(move |conn: Connection| async move {
                    let (reader, writer) = if whole {
                        let (reader, writer) = tokio::io::split(conn);
                        return talk(reader, writer).await.unwrap();
                    } else {
                        conn.into_split()
                    };
                    talk(reader, writer).await.unwrap();
                });
                answers_a_line_and_gives_the_rest_back(model, service);
            }
        });
    }
}

#[cfg(feature = "futures-io")]
mod futures_io {
    use std::io::IoSlice;

    use futures_util::io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_buf,
    };

    use super::*;

    async fn talk(
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        let mut lines = BufReader::new(&mut reader);
        let mut line = String::new();
        lines.read_line(&mut line).await?;
        let pieces = [IoSlice::new(b"said "), IoSlice::new(&[]), IoSlice::new(line.as_bytes())];
        assert_eq!(writer.write_vectored(&pieces).await?, 5 + line.len());
        writer.flush().await?;
        copy_buf(&mut lines, &mut writer).await?;
        writer.close().await?;
        assert_eq!(reader.read(&mut [0]).await?, 0, "the end is there for ever");
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        Ok(())
    }

    #[test]
    fn halves_and_the_whole_are_readers_and_writers_of_futures_io() {
        on_every_model(|model| {
            for whole in [false, true] {
                let service = service(move |conn: Connection| async move {
                    if whole {
                        let (reader, writer) = AsyncReadExt::split(conn);
                        talk(reader, writer).await.unwrap();
                    } else {
                        let (reader, writer) = conn.into_split();
                        talk(reader, writer).await.unwrap();
                    }
                });
                answers_a_line_and_gives_the_rest_back(model, service);
            }
        });
    }
}

#[cfg(feature = "hyper")]
mod hyper_rt {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::io::IoSlice;
    use std::pin::Pin;
    use std::time::{Duration, Instant};

    use hyper::body::Incoming;
    use hyper::rt::{self, Executor, Timer};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use tidegate::testing::{TestConnection, TestState};

    use super::*;

    /// How long the head of a request may take to come from somebody slow.
    const HEAD: Duration = Duration::from_millis(200);

    /// Answers each request by its own body. `limit` is for the head of a request, and for the pause before it.
    async fn serve(conn: Connection, limit: Duration) {
        let timer = conn.timer();
        let mut builder = http1::Builder::new();
        let http = builder.timer(timer).header_read_timeout(limit);
        let _ = http.serve_connection(conn, service_fn(mirror)).await;
    }

    async fn mirror(request: Request<Incoming>) -> Result<Response<Incoming>, Infallible> {
        Ok(Response::new(request.into_body()))
    }

    /// The head of the next response, and as much of the body as it promises.
    fn response(stream: &mut TcpStream) -> (String, Vec<u8>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        (head, body)
    }

    #[test]
    fn a_server_of_hyper_runs_unchanged() {
        on_every_model(|model| {
            let running = start(model, policy(model), service(|conn| serve(conn, kit::TIMEOUT)));
            let mut stream = connect(&running);
            for length in [0, 5, 300_000] {
                let body = pattern(length);
                let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
                let mut writer = stream.try_clone().unwrap();
                let sent = body.clone();
                let sender =
                    std::thread::spawn(move || writer.write_all(&[head.as_bytes(), &sent].concat()).unwrap());
                let (head, back) = response(&mut stream);
                sender.join().unwrap();
                assert!(head.starts_with("http/1.1 200 ok"), "on {model}: {head}");
                assert!(back == body, "on {model}: {} of {length} bytes", back.len());
            }
            // Its time limit is kept by the connection's own timers.
            let hasty = start(model, policy(model), service(|conn| serve(conn, HEAD)));
            let begun = Instant::now();
            let mut slow = connect(&hasty);
            slow.write_all(b"GET / HT").unwrap();
            let mut rest = Vec::new();
            let _ = slow.read_to_end(&mut rest);
            assert!(begun.elapsed() >= HEAD, "on {model}: after {:?}", begun.elapsed());
        });
    }

    /// Sends back what comes, then the end.
    async fn copy(
        mut reader: impl rt::Read + Unpin,
        mut writer: impl rt::Write + Unpin,
    ) -> std::io::Result<()> {
        assert!(writer.is_write_vectored());
        loop {
            let mut space = [0; 1000];
            let mut buffer = rt::ReadBuf::new(&mut space);
            poll_fn(|task| Pin::new(&mut reader).poll_read(task, buffer.unfilled())).await?;
            let mut rest = buffer.filled();
            if rest.is_empty() {
                return poll_fn(|task| Pin::new(&mut writer).poll_shutdown(task)).await;
            }
            while !rest.is_empty() {
                let pieces = [IoSlice::new(rest)];
                let n = poll_fn(|task| Pin::new(&mut writer).poll_write_vectored(task, &pieces)).await?;
                rest = &rest[n..];
            }
        }
    }

    #[test]
    fn halves_are_readers_and_writers_of_hyper() {
        on_every_model(|model| {
            let service = service(async |conn: Connection| {
                let (reader, writer) = conn.into_split();
                copy(reader, writer).await.unwrap();
            });
            let running = start(model, policy(model), service);
            let mut stream = connect(&running);
            let sender = send_and_finish(&stream, pattern(500_000));
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            sender.join().unwrap();
            assert!(answer == pattern(500_000), "on {model}: {} bytes", answer.len());
        });
    }

    #[test]
    fn its_time_limits_follow_the_virtual_time_of_a_test() {
        let limit = Duration::from_secs(30);
        let mut conn = TestConnection::open(&service(move |conn| serve(conn, limit))).unwrap();
        for _ in 0..4 {
            conn.receive(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            assert!(conn.take_output().starts_with(b"HTTP/1.1 200 OK"), "{conn:?}");
            conn.advance(limit * 2 / 3);
        }
        conn.receive(b"GET / HT");
        assert_eq!(conn.state(), TestState::Open);
        conn.advance(limit * 2);
        assert_ne!(conn.state(), TestState::Open);
    }

    #[test]
    fn it_answers_the_request_at_hand_when_the_server_drains() {
        let service = service(async |conn: Connection| {
            let (handle, timer) = (conn.handle(), conn.timer());
            let served = http1::Builder::new().timer(timer).serve_connection(conn, service_fn(mirror));
            handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
        });
        let mut conn = TestConnection::open(&service).unwrap();
        conn.receive(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
        conn.drain();
        conn.advance(Duration::from_secs(5));
        assert!(!conn.has_finished_sending(), "the request has not ended");
        conn.receive(b"cd");
        assert!(conn.output().ends_with(b"abcd") && conn.has_finished_sending(), "{conn:?}");
    }

    #[test]
    fn its_executor_and_its_timer_are_those_of_the_connection() {
        on_every_model(|model| {
            let service = service(async |conn: Connection| {
                let (timer, executor) = (conn.timer(), conn.executor());
                let (done, result) = tokio::sync::oneshot::channel();
                executor.execute(async move {
                    let begun = Instant::now();
                    timer.sleep(HEAD / 10).await;
                    timer.sleep_until(begun + HEAD / 5).await;
                    done.send(begun.elapsed()).unwrap();
                });
                let took = result.await.unwrap();
                let (_, mut writer) = conn.into_split();
                let word: &[u8] = if took >= HEAD / 5 { b"good" } else { b"early" };
                tokio::io::AsyncWriteExt::write_all(&mut writer, word).await.unwrap();
            });
            let running = start(model, policy(model), service.speaks_first());
            let mut answer = String::new();
            connect(&running).read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "good", "on {model}");
        });
    }
}

mod entered {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::Handle;

    use super::*;
    use crate::kit::until;

    /// Counts, when it is dropped, whether the runtime is entered.
    struct AtTheEnd(Arc<AtomicUsize>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            if Handle::try_current().is_ok() {
                self.0.fetch_add(1, SeqCst);
            }
        }
    }

    #[test]
    fn a_runtime_of_tokio_is_there_for_code_that_needs_one() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let id = runtime.handle().id();
        on_every_model(|model| {
            let ends = Arc::new(AtomicUsize::new(0));
            let counts = ends.clone();
            let service = service(move |mut conn: Connection| {
                // Before the first poll, too.
                let early = tokio::spawn(async { 1 });
                let (root, spawned) = (AtTheEnd(counts.clone()), AtTheEnd(counts.clone()));
                async move {
                    let _root = root;
                    conn.spawn(async move {
                        let _spawned = spawned;
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                    });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    let mut word = [0; 4];
                    while conn.read_exact(&mut word).await.is_ok() {
                        assert_eq!(Handle::current().id(), id);
                        let answer = tokio::spawn(async move { word.map(|byte| byte.to_ascii_uppercase()) });
                        conn.write_all(&answer.await.unwrap()).await.unwrap();
                    }
                    assert_eq!(early.await.unwrap(), 1);
                    std::future::pending::<()>().await;
                }
            });
            let running = start(model, policy(model), service.enter(runtime.handle().clone()));
            let mut stream = connect(&running);
            assert_eq!(exchange(&mut stream, b"word"), b"WORD", "on {model}");
            assert_eq!(exchange(&mut stream, b"more"), b"MORE", "on {model}");
            kit::reset(stream);
            until("both futures are dropped where the runtime is", || ends.load(SeqCst) == 2);
        });
    }

    #[test]
    fn without_it_there_is_none() {
        on_every_model(|model| {
            let service = service(async move |mut conn: Connection| {
                let there = Handle::try_current().is_ok();
                conn.write_all(if there { b"some" } else { b"none" }).await.unwrap();
            });
            let running = start(model, policy(model), service.speaks_first());
            let mut answer = String::new();
            connect(&running).read_to_string(&mut answer).unwrap();
            // The model `tokio` has a runtime of its own, under everything.
            let expected = if model == tidegate::Model::Tokio { "some" } else { "none" };
            assert_eq!(answer, expected, "on {model}");
        });
    }
}
