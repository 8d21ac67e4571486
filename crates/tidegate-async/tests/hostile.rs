//! Futures that do what they should not, and peers that leave in the middle, on every model that works here: the others
//! are served, and nothing stays behind.

mod kit;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kit::{
    Dropped, TIMEOUT, comes_to_rest, connect, echo, exchange, on_every_model, policy, reset, start, until,
};
use tidegate::{CloseReason, Model, Policy, Running};
use tidegate_async::{Connection, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Whether the connections of this model stay on the thread that `Peer::thread` names.
fn has_loops(model: Model) -> bool {
    !matches!(model, Model::Blocking | Model::Pool | Model::Tokio)
}

/// Connections that go on beside the one whose future does not yield.
const OTHERS: usize = 8;

/// A connection, and the I/O thread that it says it is on.
fn connect_and_ask(running: &Running) -> (TcpStream, u8) {
    let mut stream = connect(running);
    let mut thread = [0];
    stream.write_all(b".").unwrap();
    stream.read_exact(&mut thread).unwrap();
    (stream, thread[0])
}

#[test]
fn a_future_that_never_yields_costs_its_own_thread_only() {
    on_every_model(|model| {
        let (spins, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begun, ends) = (spins.clone(), may_end.clone());
        let running = start(
            model,
            policy(model).threads(NonZeroUsize::new(2).filter(|_| model != Model::Blocking)),
            service(move |mut conn: Connection| {
                let (begun, ends) = (begun.clone(), ends.clone());
                async move {
                    conn.read_u8().await.unwrap();
                    conn.write_u8(conn.peer().thread as u8).await.unwrap();
                    let Ok(word) = conn.read_u8().await else { return };
                    if word == b'!' {
                        let since = Instant::now();
                        begun.store(true, SeqCst);
                        while !ends.load(SeqCst) && since.elapsed() < TIMEOUT {
                            std::thread::yield_now(); // of the processor; the future does not
                        }
                        begun.store(false, SeqCst);
                    }
                    echo(conn).await;
                }
            }),
        );
        let (mut busy, its_thread) = connect_and_ask(&running);
        // One thread may be well ahead of the other before it leaves connections to it.
        let (mut others, mut beside_it) = (Vec::new(), Vec::new());
        while others.len() < OTHERS {
            assert!(beside_it.len() < 1_000, "on {model}: only {} connections are elsewhere", others.len());
            let (other, thread) = connect_and_ask(&running);
            let elsewhere = !has_loops(model) || thread != its_thread;
            if elsewhere { &mut others } else { &mut beside_it }.push(other);
        }
        others.iter_mut().for_each(|other| other.write_all(b".").unwrap());
        busy.write_all(b"!").unwrap();
        until("it spins", || spins.load(SeqCst));
        let mut others_are_served = |times| {
            for other in &mut others {
                for _ in 0..times {
                    assert_eq!(exchange(other, b"hello"), b"hello", "on {model}");
                }
            }
        };
        // On tokio the worker that runs it may be the one that waits for events: then nobody does (tokio issue 4730).
        if model != Model::Tokio {
            others_are_served(20);
            assert!(spins.load(SeqCst), "on {model}: nothing was shown");
        }
        may_end.store(true, SeqCst);
        others_are_served(1);
        assert_eq!(exchange(&mut busy, b"back"), b"back", "on {model}: it was only late");
    });
}

/// After that much time without traffic a connection is closed.
const IDLE: Duration = Duration::from_secs(3);

/// A server for the cases below, and what they count.
struct Watched {
    running: Running,
    dropped: Arc<AtomicUsize>,
    written: Arc<AtomicUsize>,
    went_on: Arc<AtomicUsize>,
}

/// With `w` the code writes without an end, with `n` it reads no more; with anything else it is an echo.
fn watched(model: Model, policy: Policy) -> Watched {
    let [dropped, written, went_on] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = (dropped.clone(), written.clone(), went_on.clone());
    let running = start(
        model,
        policy,
        service(move |mut conn: Connection| {
            let (dropped, written, went_on) = counts.clone();
            async move {
                match conn.read_u8().await.unwrap() {
                    b'w' => {
                        let _dropped = Dropped(dropped);
                        let piece = vec![7; 1 << 16];
                        while conn.write_all(&piece).await.is_ok() {
                            written.fetch_add(piece.len(), SeqCst);
                        }
                        went_on.fetch_add(1, SeqCst);
                    }
                    b'n' => {
                        let _dropped = Dropped(dropped);
                        written.fetch_add(1, SeqCst);
                        std::future::pending::<()>().await;
                        went_on.fetch_add(1, SeqCst);
                    }
                    _ => echo(conn).await,
                }
            }
        }),
    );
    Watched { running, dropped, written, went_on }
}

impl Watched {
    /// The connection of `stream` is reset: its future is dropped, nothing of it is open, and another one answers.
    fn ends_by_reset(self, model: Model, stream: TcpStream, mut other: TcpStream) {
        assert_eq!((self.dropped.load(SeqCst), self.running.stats().open()), (0, 2), "on {model}");
        reset(stream);
        until("the future is dropped", || self.dropped.load(SeqCst) == 1);
        until("one connection is open", || self.running.stats().open() == 1);
        assert_eq!(self.went_on.load(SeqCst), 0, "on {model}: it was dropped, not woken");
        assert_eq!(exchange(&mut other, b"still"), b"still", "on {model}");
        drop(other);
        until("nothing is open", || self.running.stats().open() == 0);
        self.running.stop();
        let stats = self.running.join();
        assert_eq!(stats.closed_by(CloseReason::Reset), 1, "on {model}: {stats:?}");
        assert_eq!(stats.closed_by(CloseReason::Finished), 1, "on {model}: {stats:?}");
    }
}

fn say(running: &Running, word: &[u8]) -> TcpStream {
    let mut stream = connect(running);
    stream.write_all(word).unwrap();
    stream
}

#[test]
fn a_reset_drops_a_future_in_the_middle_of_a_write() {
    on_every_model(|model| {
        let watched = watched(model, policy(model));
        let mut other = say(&watched.running, b".");
        assert_eq!(exchange(&mut other, b"there"), b"there", "on {model}");
        let stream = say(&watched.running, b"w");
        comes_to_rest(&watched.written); // the sockets are full
        watched.ends_by_reset(model, stream, other);
    });
}

#[test]
fn a_reset_drops_a_future_that_never_reads() {
    on_every_model(|model| {
        let watched = watched(model, policy(model));
        let mut other = say(&watched.running, b".");
        assert_eq!(exchange(&mut other, b"there"), b"there", "on {model}");
        let stream = say(&watched.running, b"n");
        until("it runs", || watched.written.load(SeqCst) == 1);
        watched.ends_by_reset(model, stream, other);
    });
}

/// Where receiving has paused, not every model hears of a reset: the idle timeout ends the connection then.
#[test]
fn nothing_stays_of_a_future_that_never_reads_what_has_come() {
    for unread in [3, 32 << 20] {
        on_every_model(|model| {
            let watched =
                watched(model, policy(model).first_byte_timeout(Some(IDLE)).idle_timeout(Some(IDLE)));
            let mut stream = say(&watched.running, b"n");
            until("it runs", || watched.written.load(SeqCst) == 1);
            // As much of it as the sockets take.
            stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            let all = stream.write_all(&vec![7; unread]);
            assert_eq!(all.is_ok(), unread < 1 << 20, "on {model}: receiving goes on without a reader");
            reset(stream);
            until("the future is dropped", || watched.dropped.load(SeqCst) == 1);
            until("nothing is open", || watched.running.stats().open() == 0);
            let mut other = say(&watched.running, b".");
            assert_eq!(exchange(&mut other, b"there"), b"there", "on {model}");
            let stats = watched.running.stats();
            let ends = [CloseReason::Reset, CloseReason::IdleTimeout].map(|why| stats.closed_by(why));
            eprintln!("with {unread} bytes unread: {ends:?} ended by a reset, by the time limit");
            assert_eq!(ends.iter().sum::<u64>(), 1, "on {model}: {stats:?}");
            assert_eq!(watched.went_on.load(SeqCst), 0, "on {model}");
        });
    }
}
