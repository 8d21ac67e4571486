//! Bytes in bulk between linked connections arrive exactly, on some models without a copy in user space: to a slow
//! reader, before an end and a reset, in more pairs than there are pipes, and through a session that looks at them.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tidegate::link::{self, Link};
use tidegate::{
    CloseReason, Consumed, Flow, Mail, Model, Outbox, Peer, Refusal, Running, Service, ServiceOptions,
    Session, Stats,
};

use super::connections_may_be_linked::{FLOOD, LINK_BYTES, flood, upstream};
use crate::kit::{self, Ending, Tape};

on_every_model!(case, and over Unix sockets);

/// What each end sends.
const BULK: usize = 8 << 20;

/// What is sent in each of many pairs: more than the buffers of the kernel and the link have room for.
const SHARE: usize = 1 << 20;

/// Each of them has several pipes while its reader waits for its turn, and a thread has 64.
const PAIRS: usize = 40;

/// Where nothing is spliced.
const FEW_PAIRS: usize = 4;

fn case(model: Model) {
    bulk_goes_both_ways_and_ends(model);
    bulk_waits_for_a_slow_reader(model);
    a_reset_ends_it(model);
    more_pairs_than_pipes(model);
    who_looks_at_the_bytes_sees_all(model);
    #[cfg(target_os = "linux")]
    an_urgent_byte_is_not_the_end(model);
}

/// Links each connection to one that it dials: the session is what `wrap` makes of its link.
struct Pass<F>(SocketAddr, F);

impl<S: Session, F: Fn(Link) -> S + Send + Sync + 'static> Service for Pass<F> {
    type Session = S;

    fn open(&self, _: &Peer) -> Result<S, Refusal> {
        let Ok(link) = link::dialling(self.0, kit::slow(Duration::from_secs(45)), LINK_BYTES);
        Ok((self.1)(link))
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

/// A server, a caller, and what the server has dialled for it.
fn linked<S: Session>(model: Model, wrap: fn(Link) -> S) -> (Running, TcpStream, TcpStream) {
    let (addr, come) = upstream();
    let server = kit::serve(model, kit::policy(model), Pass(addr, wrap));
    let near = kit::connect(server.local_addr().clone());
    let far = come.recv_timeout(kit::timeout()).expect("the server dials");
    (server, near, far)
}

fn send_part(stream: &mut TcpStream, part: Range<usize>) {
    let (tape, mut at) = (Tape::new(7), part.start);
    while at < part.end {
        let piece = tape.piece(at as u64, (64 * 1024).min(part.end - at));
        kit::send_all(stream, &piece).expect("send");
        at += piece.len();
    }
}

fn send_all(stream: &mut TcpStream, bytes: usize) {
    send_part(stream, 0..bytes);
    stream.shutdown(Shutdown::Write).expect("shutdown");
}

/// Receives up to the end of the stream; returns how much it was.
fn hear_tape(stream: &mut TcpStream) -> usize {
    let (tape, mut at, mut buffer) = (Tape::new(7), 0, vec![0; 64 * 1024]);
    while let n @ 1.. = kit::hear_some(stream, &mut buffer).expect("receive") {
        tape.check(at, &buffer[..n]);
        at += n as u64;
    }
    at as usize
}

/// Whether bytes between these are spliced: plain sockets of a readiness loop of Linux.
fn splices(model: Model, server: &Running) -> bool {
    let is_plain = !kit::is_fast() || server.local_addr().is_unix();
    cfg!(target_os = "linux") && is_plain && [Model::Epoll, Model::Poll, Model::Select].contains(&model)
}

fn finish(server: Running) -> Stats {
    kit::until("the pairs are gone", || server.stats().open() == 0);
    kit::finish(server)
}

fn bulk_goes_both_ways_and_ends(model: Model) {
    let (server, mut near, mut far) = linked(model, |link: Link| link);
    let ends = [(near.try_clone(), &mut near), (far.try_clone(), &mut far)];
    std::thread::scope(|scope| {
        for (sender, receiver) in ends {
            let mut sender = sender.expect("clone");
            scope.spawn(move || send_all(&mut sender, BULK));
            scope.spawn(move || assert_eq!(hear_tape(receiver), BULK));
        }
    });
    let stats = finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), (2 * BULK as u64, 2 * BULK as u64));
    assert_eq!(stats.closed_by(CloseReason::Finished), 2);
    assert!(stats.bytes_spliced <= stats.bytes_in);
}

/// When all buffers are full, more is there after each receive.
fn bulk_waits_for_a_slow_reader(model: Model) {
    let (server, mut near, mut far) = linked(model, |link: Link| link);
    let sent = flood(&mut near, FLOOD);
    assert!(sent < FLOOD, "nothing held it back");
    near.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(hear_tape(&mut far), sent);
    far.write_all(b"all of it").expect("send");
    drop(far);
    assert_eq!(kit::hear_all(&mut near), (b"all of it".to_vec(), Ending::EndOfStream));
    let splices = splices(model, &server);
    let stats = finish(server);
    assert_eq!(stats.bytes_in, sent as u64 + 9);
    assert_eq!(stats.bytes_spliced > 0, splices, "{} bytes were spliced", stats.bytes_spliced);
}

fn a_reset_ends_it(model: Model) {
    let (server, mut near, mut far) = linked(model, |link: Link| link);
    if server.local_addr().is_unix() {
        return drop((near, far, kit::finish(server))); // there is no reset
    }
    flood(&mut near, FLOOD);
    kit::reset(near);
    let (heard, ending) = kit::hear_all(&mut far);
    Tape::new(7).check(0, &heard);
    assert_eq!(ending, Ending::Reset);
    finish(server);
}

fn more_pairs_than_pipes(model: Model) {
    let (addr, come) = upstream();
    let server = kit::serve(model, kit::policy(model), Pass(addr, |link: Link| link));
    let pairs = if splices(model, &server) { PAIRS } else { FEW_PAIRS };
    std::thread::scope(|scope| {
        for _ in 0..pairs {
            let mut near = kit::connect(server.local_addr().clone());
            scope.spawn(move || send_all(&mut near, SHARE));
        }
        for _ in 0..pairs {
            let mut far = come.recv_timeout(kit::timeout()).expect("the server dials");
            assert_eq!(hear_tape(&mut far), SHARE);
        }
    });
    let stats = finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), ((pairs * SHARE) as u64, (pairs * SHARE) as u64));
}

/// A receive steps over it, and a splice stops in front of it.
#[cfg(target_os = "linux")]
fn an_urgent_byte_is_not_the_end(model: Model) {
    let (server, mut near, mut far) = linked(model, |link: Link| link);
    // Of TCP only; and tokio takes a short read for the last one.
    if server.local_addr().is_unix() || kit::is_fast() || model == Model::Tokio {
        return drop((near, far, kit::finish(server)));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_part(&mut near, 0..BULK / 2);
            assert_eq!(socket2::SockRef::from(&near).send_out_of_band(b"!").expect("send"), 1);
            send_part(&mut near, BULK / 2..BULK);
            near.shutdown(Shutdown::Write).expect("shutdown");
        });
        assert_eq!(hear_tape(&mut far), BULK);
    });
    drop((near, far));
    finish(server);
}

/// Looks at all that the caller sends.
struct Onlooker {
    link: Link,
    tape: Tape,
    seen: Arc<AtomicUsize>,
}

impl Session for Onlooker {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let consumed = self.link.on_bytes(input, out);
        let at = self.seen.fetch_add(consumed.bytes, SeqCst);
        self.tape.check(at as u64, &input[..consumed.bytes]);
        consumed
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.link.on_mail(mail, out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.link.on_close(why);
    }
}

fn who_looks_at_the_bytes_sees_all(model: Model) {
    let (addr, come) = upstream();
    let seen = Arc::new(AtomicUsize::new(0));
    let wrap = {
        let seen = seen.clone();
        move |link: Link| Onlooker { link, tape: Tape::new(7), seen: seen.clone() }
    };
    let server = kit::serve(model, kit::policy(model), Pass(addr, wrap));
    let mut near = kit::connect(server.local_addr().clone());
    let mut far = come.recv_timeout(kit::timeout()).expect("the server dials");
    let sent = flood(&mut near, FLOOD);
    near.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(hear_tape(&mut far), sent);
    drop((near, far));
    finish(server);
    assert_eq!(seen.load(SeqCst), sent);
}
