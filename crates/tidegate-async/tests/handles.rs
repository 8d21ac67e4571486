//! What code outside of a connection's future holds of it: it never waits for a connection that is not served any more,
//! and its wakers may do what they like.

use std::future::{Future, pending, poll_fn};
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::policy::Offload;
use tidegate::testing::TestConnection;
use tidegate::{OffloadError, Peer, Policy};
use tidegate_async::{Connection, Draining, Elapsed, OffloadFailed, ReadHalf, Sleep, service};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn read(conn: &mut Connection, waker: &Waker) -> Poll<std::io::Result<()>> {
    Pin::new(conn).poll_read(&mut Context::from_waker(waker), &mut ReadBuf::new(&mut [0; 10]))
}

/// A connection whose future lets go of it and goes on for ever.
fn outside() -> (TestConnection, Connection) {
    outside_with(Policy::default())
}

fn outside_with(policy: Policy) -> (TestConnection, Connection) {
    let slot = Arc::<Mutex<Option<Connection>>>::default();
    let to = slot.clone();
    let service = service(move |conn| {
        to.lock().unwrap().replace(conn);
        pending::<()>()
    });
    let conn = TestConnection::open_with(&service, &Peer::accepted(), policy).unwrap();
    let handle = slot.lock().unwrap().take().unwrap();
    (conn, handle)
}

#[test]
fn nobody_waits_for_a_connection_whose_future_has_returned() {
    let slot = Arc::<Mutex<Option<Sleep>>>::default();
    let to = slot.clone();
    let service = service(move |mut conn: Connection| {
        to.lock().unwrap().replace(conn.sleep(Duration::from_secs(3600)));
        async move { conn.read_u8().await }
    });
    let mut conn = TestConnection::open(&service).unwrap();
    let mut sleep = pin!(slot.lock().unwrap().take().unwrap());
    let count = Arc::<Count>::default();
    let waker = count.clone().into();
    assert!(poll(sleep.as_mut(), &waker).is_pending());
    conn.receive(b"x");
    assert_eq!(conn.close_reason(), None, "its peer may still be sending");
    assert_eq!(count.0.load(SeqCst), 1);
    assert!(poll(sleep.as_mut(), &waker).is_ready());
}

#[test]
fn a_connection_that_is_gone_keeps_nobody() {
    let (conn, mut handle) = outside();
    let count = Arc::<Count>::default();
    let waker = count.clone().into();
    let mut sleep = pin!(handle.sleep(Duration::from_secs(3600)));
    let mut draining = pin!(handle.draining());
    assert!(poll(sleep.as_mut(), &waker).is_pending());
    assert!(poll(draining.as_mut(), &waker).is_pending());
    assert!(read(&mut handle, &waker).is_pending());
    drop(conn);
    assert_eq!(count.0.load(SeqCst), 3);
    assert!(poll(sleep, &waker).is_ready() && poll(draining, &waker).is_ready());
    assert!(poll(pin!(handle.sleep(Duration::from_secs(3600))), &waker).is_ready(), "nor who comes later");
    let timeout = pin!(handle.timeout(Duration::from_secs(3600), pending::<()>()));
    assert!(matches!(poll(timeout, &waker), Poll::Ready(Err(_))));
    assert!(
        matches!(read(&mut handle, &waker), Poll::Ready(Err(e)) if e.kind() == ErrorKind::ConnectionReset)
    );
    assert_eq!(Arc::strong_count(&count), 2, "no waker is left");
}

#[test]
fn a_flush_fails_when_the_connection_is_gone() {
    let (conn, mut handle) = outside();
    let mut flush = || Pin::new(&mut handle).poll_flush(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(flush(), Poll::Ready(Ok(()))));
    drop(conn);
    assert!(matches!(flush(), Poll::Ready(Err(e)) if e.kind() == ErrorKind::BrokenPipe));
}

/// Code that has the waker of the connection's own task can wait with it outside of that.
#[test]
fn who_waited_for_the_drain_in_the_own_task_waits_no_longer_when_the_connection_is_gone() {
    let slot = Arc::<Mutex<Option<(Draining, Waker)>>>::default();
    let to = slot.clone();
    let service = service(move |conn: Connection| {
        let to = to.clone();
        async move {
            let waker = poll_fn(|task| Poll::Ready(task.waker().clone())).await;
            to.lock().unwrap().replace((conn.draining(), waker));
            pending::<()>().await;
        }
    });
    let conn = TestConnection::open(&service).unwrap();
    let (mut draining, waker) = slot.lock().unwrap().take().unwrap();
    assert!(poll(Pin::new(&mut draining), &waker).is_pending());
    assert!(poll(Pin::new(&mut draining), &waker).is_pending());
    drop(conn);
    assert!(poll(Pin::new(&mut draining), &waker).is_ready());
}

#[test]
fn a_wait_that_is_given_up_is_let_go_of() {
    let (_conn, handle) = outside();
    let count = Arc::<Count>::default();
    let waker = count.clone().into();
    {
        let mut sleeps = [2, 1, 3].map(|hours| handle.sleep(Duration::from_secs(3600 * hours)));
        let mut draining = [handle.draining(), handle.draining()];
        assert!(sleeps.iter_mut().all(|sleep| poll(Pin::new(sleep), &waker).is_pending()));
        assert!(draining.iter_mut().all(|draining| poll(Pin::new(draining), &waker).is_pending()));
        assert_eq!(Arc::strong_count(&count), 2 + 5);
    }
    assert_eq!(Arc::strong_count(&count), 2, "no waker is left");
}

/// Comes back to the connection when it is dropped, as one does that owns a task with a connection in it.
struct ComesBack(#[allow(dead_code, reason = "for its destructor")] Mutex<Sleep>);

impl Wake for ComesBack {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_come_back_to_the_connection_when_it_is_dropped() {
    let (done, finished) = mpsc::channel();
    // On a separate thread: what locks itself out does not end.
    std::thread::spawn(move || {
        let (_conn, mut handle) = outside();
        let hour = Duration::from_secs(3600);
        let comes_back =
            |handle: &Connection| Waker::from(Arc::new(ComesBack(Mutex::new(handle.sleep(hour)))));
        {
            let mut sleep = pin!(handle.sleep(hour));
            assert!(poll(sleep.as_mut(), &comes_back(&handle)).is_pending());
            assert!(poll(sleep.as_mut(), &comes_back(&handle)).is_pending());
        }
        {
            let mut draining = pin!(handle.draining());
            assert!(poll(draining.as_mut(), &comes_back(&handle)).is_pending());
            assert!(poll(draining.as_mut(), &comes_back(&handle)).is_pending());
        }
        for _ in 0..2 {
            let waker = comes_back(&handle);
            assert!(read(&mut handle, &waker).is_pending());
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("it comes to an end");
}

/// What one connection lends to its code is not for a handle of another, though it is used in the middle of it.
#[test]
fn a_handle_used_within_another_connection_reads_and_writes_its_own() {
    let (mut other, handle) = outside();
    let handle = Arc::new(Mutex::new(handle));
    let within = handle.clone();
    let copies = service(move |mut conn: Connection| {
        let within = within.clone();
        async move {
            let mut first = [0; 2];
            conn.read_exact(&mut first).await.unwrap();
            let mut of_other = [0; 10];
            let n = std::future::poll_fn(|task| {
                let mut handle = within.lock().unwrap();
                let mut buffer = ReadBuf::new(&mut of_other);
                assert!(Pin::new(&mut *handle).poll_write(task, b"to other").is_ready());
                Pin::new(&mut *handle).poll_read(task, &mut buffer).map_ok(|()| buffer.filled().len())
            })
            .await
            .unwrap();
            conn.write_all(&of_other[..n]).await.unwrap();
            let mut rest = Vec::new();
            conn.read_to_end(&mut rest).await.unwrap();
            conn.write_all(&rest).await.unwrap();
        }
    });
    let mut conn = TestConnection::open(&copies).unwrap();
    other.receive(b"for other");
    conn.receive(b"12345");
    other.settle();
    conn.half_close();
    assert_eq!(conn.output(), b"for other345");
    assert_eq!(other.output(), b"to other");
}

/// What another thread has written before is sent before what the connection's own code writes now.
#[test]
fn writes_of_several_threads_keep_their_order() {
    let (go, wait) = mpsc::channel::<Connection>();
    let helper = std::thread::spawn(move || {
        let mut conn = wait.recv().unwrap();
        let waker = Waker::noop();
        assert!(Pin::new(&mut conn).poll_write(&mut Context::from_waker(waker), b"1").is_ready());
        conn
    });
    let helper = Mutex::new(Some((go, helper)));
    let writes = service(move |conn: Connection| {
        let (go, helper) = helper.lock().unwrap().take().unwrap();
        async move {
            go.send(conn).unwrap();
            let mut conn = helper.join().unwrap();
            conn.write_all(b"2").await.unwrap();
            conn.write_all(b"3").await.unwrap();
        }
    });
    let conn = TestConnection::open(&writes.speaks_first()).unwrap();
    assert_eq!(conn.output(), b"123");
}

/// Echoes what comes within a second each time, also while its halves are borrowed; then says how many came in time.
async fn echoes_in_time(conn: Connection) {
    let (mut reader, mut writer) = conn.into_split();
    let (of_reader, of_writer) = (reader.handle(), writer.handle());
    assert_eq!([of_reader.peer().thread, of_writer.peer().thread], [3, 3]);
    let mut words = 0;
    while let Ok(word) = of_reader.timeout(Duration::from_secs(1), reader.read_u8()).await {
        of_writer.timeout(Duration::from_secs(1), writer.write_u8(word.unwrap())).await.unwrap().unwrap();
        words += 1;
    }
    let job = of_writer.offload(move || words);
    writer.write_u8(job.await.unwrap()).await.unwrap();
    of_reader.draining().await;
    writer.write_all(b"end").await.unwrap();
}

#[test]
fn handles_time_the_halves_that_they_are_of() {
    let peer = Peer::accepted().with_thread(3);
    let mut conn = TestConnection::open_with(&service(echoes_in_time), &peer, Policy::default()).unwrap();
    for word in [b"a", b"b"] {
        conn.receive(word);
        conn.advance(Duration::from_millis(700));
    }
    conn.advance(Duration::from_secs(1));
    assert_eq!(conn.output(), b"ab\x02");
    conn.drain();
    assert_eq!(conn.output(), b"ab\x02end");
}

type Outcome = Result<(), OffloadFailed>;

/// The outcome of a job, once it has one.
fn outcome_of(conn: &mut TestConnection, job: impl Future<Output = Outcome>) -> Outcome {
    let mut job = pin!(job);
    conn.settle();
    match poll(job.as_mut(), Waker::noop()) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("the job has no outcome: {conn:?}"),
    }
}

#[test]
fn a_job_without_a_result_says_why() {
    let (mut conn, handle) = outside_with(Policy::default().offload(Offload::default().queue(1)));
    let job = handle.offload(|| {});
    assert_eq!(outcome_of(&mut conn, job), Ok(()));
    let job = handle.offload(|| panic!("on purpose, in a test"));
    assert_eq!(outcome_of(&mut conn, job), Err(OffloadFailed::Panicked));
    conn.hold_jobs();
    let [queued, refused] = [(); 2].map(|()| handle.offload(|| {}));
    assert_eq!(outcome_of(&mut conn, refused), Err(OffloadFailed::Refused(OffloadError::Full)));
    conn.run_jobs();
    assert_eq!(outcome_of(&mut conn, queued), Ok(()));
    let unqueued = handle.offload(|| {});
    drop(conn);
    for late in [poll(pin!(unqueued), Waker::noop()), poll(pin!(handle.offload(|| {})), Waker::noop())] {
        assert_eq!(late, Poll::Ready(Err(OffloadFailed::Closed)));
    }
}

#[test]
fn failures_are_errors_of_io() {
    let errors = [
        (Elapsed.into(), ErrorKind::TimedOut),
        (OffloadFailed::Refused(OffloadError::Full).into(), ErrorKind::ResourceBusy),
        (OffloadFailed::Closed.into(), ErrorKind::NotConnected),
    ];
    for (error, kind) in errors {
        let error: std::io::Error = error;
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// Reads until nothing has come for a moment, then works for long.
async fn works_after_a_pause(mut conn: Connection) {
    let pause = conn.sleep(Duration::from_millis(100));
    assert!(matches!(select(pin!(conn.read_u8()), pause).await, Either::Right(_)), "nothing was sent");
    conn.sleep(Duration::from_secs(5)).await;
    conn.write_all(b"done").await.unwrap();
}

#[test]
fn a_drain_waits_for_work_that_begins_during_it_or_has_begun_before() {
    for before in [Duration::ZERO, Duration::from_secs(2)] {
        let mut conn = TestConnection::open(&service(works_after_a_pause)).unwrap();
        conn.advance(before);
        conn.drain();
        conn.advance(Duration::from_secs(6));
        assert_eq!(conn.output(), b"done", "drained {before:?} after it was opened: {conn:?}");
    }
}

/// What another thread has written meanwhile takes room of the outbox, though it is not there yet.
#[test]
fn writers_of_all_threads_together_keep_to_the_outbox() {
    let high = Policy::default().outbox.high;
    let shared = Arc::<Mutex<Option<Connection>>>::default();
    let writes = {
        let shared = shared.clone();
        service(move |conn| {
            shared.lock().unwrap().replace(conn);
            let shared = shared.clone();
            let mut polls = 0;
            poll_fn(move |task| {
                polls += 1;
                if polls > 1 {
                    let _ = write(shared.lock().unwrap().as_mut().unwrap(), task, high);
                }
                Poll::<()>::Pending
            })
        })
    };
    let mut conn = TestConnection::open(&writes).unwrap();
    conn.stall();
    let elsewhere = &mut Context::from_waker(Waker::noop());
    let written = write(shared.lock().unwrap().as_mut().unwrap(), elsewhere, high);
    assert!(matches!(written, Poll::Ready(Ok(n)) if n == high));
    conn.settle();
    assert_eq!(conn.queued(), high);
    conn.resume();
    assert_eq!(conn.output().len(), 2 * high, "the waiting writer has gone on");
}

fn write(conn: &mut Connection, task: &mut Context<'_>, bytes: usize) -> Poll<std::io::Result<usize>> {
    Pin::new(conn).poll_write(task, &vec![7; bytes])
}

/// Polls `reader` in the task that calls it: nothing has arrived yet.
async fn waits(reader: &mut ReadHalf) {
    poll_fn(|task| {
        let read = Pin::new(&mut *reader).poll_read(task, &mut ReadBuf::new(&mut [0; 10]));
        assert!(read.is_pending(), "nothing was sent yet");
        Poll::Ready(())
    })
    .await;
}

#[test]
fn a_reader_that_moves_to_another_task_is_woken_there() {
    let (say, heard) = mpsc::channel();
    let service = service(move |conn: Connection| {
        let say = say.clone();
        async move {
            let handle = conn.handle();
            let (mut reader, _writer) = conn.into_split();
            waits(&mut reader).await;
            handle.spawn(async move { say.send(reader.read_u8().await.unwrap()).unwrap() });
            pending::<()>().await;
        }
    });
    let mut conn = TestConnection::open(&service).unwrap();
    conn.receive(b"x");
    assert_eq!(heard.try_recv(), Ok(b'x'));
}

#[test]
fn a_reader_is_woken_on_the_thread_where_it_has_waited_last() {
    for comes_back in [false, true] {
        let count = Arc::<Count>::default();
        let elsewhere = Waker::from(count.clone());
        let (say, heard) = mpsc::channel();
        let service = service(move |conn: Connection| {
            let (elsewhere, say) = (elsewhere.clone(), say.clone());
            async move {
                let (mut reader, _writer) = conn.into_split();
                waits(&mut reader).await;
                let thread = std::thread::spawn(move || {
                    assert!(poll(pin!(waits(&mut reader)), &elsewhere).is_ready());
                    reader
                });
                let mut reader = thread.join().unwrap();
                if comes_back {
                    say.send(reader.read_u8().await.unwrap()).unwrap();
                }
                pending::<()>().await;
            }
        });
        let mut conn = TestConnection::open(&service).unwrap();
        conn.receive(b"x");
        let here = if comes_back { Ok(b'x') } else { Err(TryRecvError::Empty) };
        assert_eq!((heard.try_recv(), count.0.load(SeqCst)), (here, usize::from(!comes_back)));
    }
}
