//! A peer that breaks off in mid-stream, at whatever moment, ends its session once and as [`CloseReason::Reset`].

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use tidegate::{CloseReason, Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit::{self, Echo, Producer, Tape, Witness};

on_every_model!(case);

/// How many resets may stay unseen, and end by a timeout. Wine forgets one that arrives between an accept and the
/// request for the events of its connection: `sock_poll_event` of its server marks the socket as aborted while nobody
/// asks, and does not poll it again. Only models that ask for events are concerned.
fn most_unseen(model: Model) -> u64 {
    if [Model::AsyncSelect, Model::EventSelect].contains(&model) { 2 } else { 0 }
}

fn case(model: Model) {
    while_nothing_moves(model);
    while_the_server_sends(model);
    after_the_peer_has_sent_much(model);
    while_the_server_begins_to_receive(model);
}

fn while_nothing_moves(model: Model) {
    let (service, witness) = Echo::service();
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
    streams.into_iter().for_each(kit::reset);
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 10);
    assert_eq!(server.stats().open(), 0);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 10]);
    assert_eq!(witness.ends.load(SeqCst), 0, "a reset is not an end");
}

/// The outbox is full, and the connection only waits for the peer to take something.
fn while_the_server_sends(model: Model) {
    let (service, witness) = Producer::service(&Tape::new(1), 64 << 20);
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..4).map(|_| kit::connect_narrow(server.local_addr())).collect();
    for stream in &mut streams {
        stream.write_all(b"go").expect("send");
        kit::hear(stream, 1000);
    }
    streams.into_iter().for_each(kit::reset);
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 4);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 4]);
    assert_eq!(witness.ends.load(SeqCst), 0, "a reset is not an end");
}

/// The server may still find bytes to read in front of the reset.
fn after_the_peer_has_sent_much(model: Model) {
    let (service, witness) = Restless::service();
    let server = kit::serve(model, kit::tight(model), service);
    for _ in 0..10 {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"hello");
        stream.write_all(&[7; 20_000]).expect("send");
        kit::reset(stream);
    }
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 10);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 10]);
    assert_eq!(witness.ends.load(SeqCst), 0, "a reset is not an end");
}

/// Right behind the first data, at any moment while the server gets ready for it. It answers nothing, so only the reset
/// ends the session.
fn while_the_server_begins_to_receive(model: Model) {
    const CONNECTIONS: u64 = if cfg!(windows) { 200 } else { 2000 };
    let witness = Arc::new(Witness::default());
    let seen = witness.clone();
    let service = kit::sessions(move || Listening(Echo { witness: seen.clone() }));
    // One that stays unseen ends before the wait for all of them does.
    let mut policy = kit::policy(model).first_byte_timeout(Some(kit::timeout() / 4));
    policy.accept.defer = None; // it receives before there is data
    let server = kit::serve(model, policy, service);
    let progress = kit::progress();
    for turn in 0..CONNECTIONS {
        progress.step();
        let mut stream = kit::connect(server.local_addr());
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("linger");
        while server.stats().accepted == turn {
            thread::yield_now();
        }
        (0..turn % 100).for_each(|_| std::hint::spin_loop());
        stream.write_all(b"the beginning of a request").expect("send");
        drop(stream);
    }
    kit::until("every reset is counted", || server.stats().open() == 0);
    let stats = server.stats();
    let unseen = stats.accepted - stats.closed_by(CloseReason::Reset);
    assert_eq!(unseen, stats.closed_by(CloseReason::FirstByteTimeout), "{stats:?}");
    assert!((0..=most_unseen(model)).contains(&unseen), "{stats:?}");
    kit::finish(server);
    assert_eq!(witness.ends.load(SeqCst), 0, "a reset is not an end");
}

/// Takes all that comes, and says nothing.
struct Listening(Echo);

impl Session for Listening {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_end(out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.0.on_close(why);
    }
}

/// Echoes, and sends something by itself now and then.
///
/// A reset may be lost on the loopback, too: where bytes in front of it found no room, its sequence number is not the
/// next one expected. The kernel then asks the sender with a challenge ACK (RFC 5961, 3.2), but leaves that out if it
/// has answered the same connection within half a second (`tcp_invalid_ratelimit`). Only a server that sends again
/// learns then that nobody is there.
struct Restless(Echo);

impl Restless {
    const PAUSE: Duration = Duration::from_millis(50);

    fn service() -> (kit::Sessions<impl Fn() -> Self + Send + Sync + 'static>, Arc<Witness>) {
        let witness = Arc::new(Witness::default());
        let seen = witness.clone();
        (kit::sessions(move || Self(Echo { witness: seen.clone() })), witness)
    }
}

impl Session for Restless {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.wake_at(out.now() + Self::PAUSE);
        self.0.on_bytes(input, out)
    }

    fn on_mail(&mut self, _timer: Mail, out: &mut Outbox<'_>) -> Flow {
        out.write(b".");
        out.wake_at(out.now() + Self::PAUSE);
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        self.0.on_close(why);
    }
}
