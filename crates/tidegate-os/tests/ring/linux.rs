//! The tests, each ignored with its reason where the kernel lacks what it needs.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use libtest_mimic::{Arguments, Trial};
use socket2::SockRef;
use tidegate_os::pages::Residence;
use tidegate_os::ring::{
    Completion, Handle, Payload, Purpose, Ring, RingSetup, Slot, Slots, Tells, can_hand_on,
};
use tidegate_os::socket::More;
use tidegate_os::socket::{Blocking, Listener, Stream, peer_addr, raw_address};
use tidegate_os::waker::Waker;

use crate::kit::{DEADLINE, OPTIONS, listener, pair, plain};

/// What a test needs and this system lacks: it is ignored with this reason.
struct LeftOut(String);

type Ran = Result<(), LeftOut>;

fn needs(is_there: bool, what: &str) -> Ran {
    if is_there { Ok(()) } else { Err(LeftOut(format!("needs {what}"))) }
}

/// Functions as tests, each on a separate thread: the kernel's threads for a ring are those of who asked.
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        vec![$(Trial::ignorable_test(stringify!($test), || {
            let ran = std::thread::spawn($test).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(match ran {
                Ok(()) => libtest_mimic::Completion::Completed,
                Err(LeftOut(why)) => libtest_mimic::Completion::ignored_with(why),
            })
        })),*]
    };
}

pub fn main() -> ExitCode {
    let tests = tests![
        accepted_bytes_come_and_go_through_both_kinds_of_handle,
        a_receive_without_end_stops_without_buffers_and_goes_on_with_them,
        a_receive_ends_when_it_has_taken_what_it_may,
        a_look_says_whether_there_is_something_the_end_or_an_error_and_takes_nothing,
        what_is_cancelled_completes_and_gives_its_memory_back,
        a_last_send_closes_with_it,
        more_than_the_queue_holds_is_handed_over_in_order,
        a_connection_is_dialled_or_the_error_comes,
        a_peer_that_reads_slowly_costs_no_thread_of_the_kernel,
        a_ring_may_go_while_the_kernel_is_at_work,
        a_payload_advances_over_its_pieces,
        a_socket_that_is_handed_to_another_ring_lives_on_there_alone,
        a_socket_that_another_ring_has_no_slot_for_stays,
        a_slot_is_given_out_again_when_it_is_closed_and_not_before,
        slots_are_given_out_by_the_kernel_or_by_the_ring,
        what_belongs_to_another_ring_is_refused,
        a_wait_may_let_completions_gather,
        what_is_asked_for_may_be_handed_over_without_waiting,
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

const SETUP: RingSetup = RingSetup {
    purpose: Purpose::Streams,
    entries: 8,
    completions: 64,
    buffers: 4,
    buffer_bytes: 4096,
    residence: Residence::Pageable,
    table: 16,
    slots: Slots::Accepted,
    busy_poll: None,
};

/// For sockets that are made elsewhere.
const REGISTERS: RingSetup = RingSetup { slots: Slots::Registered, ..SETUP };

/// A ring and the completions that nobody asked about yet.
struct Bench {
    ring: Ring,
    came: VecDeque<Completion>,
}

impl Bench {
    /// An error where io_uring is forbidden or too old.
    fn new(setup: RingSetup) -> Result<Self, LeftOut> {
        match Ring::new(&setup) {
            Ok(ring) => Ok(Self { ring, came: VecDeque::new() }),
            Err(e) => Err(LeftOut(format!("needs io_uring: {e}"))),
        }
    }

    /// Waits for a completion with this key.
    fn wait(&mut self, key: u64) -> Completion {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.came.iter().position(|one| one.key == key) {
                return self.came.remove(at).unwrap();
            }
            assert!(Instant::now() < until, "nothing came for {key}; {:?} did", self.came);
            self.ring.enter(Some(Duration::from_millis(100))).unwrap();
            while let Some(one) = self.ring.next_completion() {
                self.came.push_back(one);
            }
        }
    }

    /// The bytes of a completed receive; the buffer goes back.
    fn take(&mut self, completion: Completion) -> Vec<u8> {
        let Some(buffer) = completion.buffer else { return Vec::new() };
        let bytes = self.ring.received(&buffer).to_vec();
        assert_eq!((bytes.len(), bytes.is_empty()), (buffer.len(), buffer.is_empty()));
        self.ring.recycle(buffer);
        bytes
    }

    /// Receives until so many bytes came.
    fn receive(&mut self, socket: &Handle, key: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            self.ring.receive_once(socket, key);
            let one = self.wait(key);
            all.extend(self.take(one));
        }
        all
    }
}

/// Both kinds of handle to one connection each, where the ring has a table.
fn handles(bench: &mut Bench) -> Vec<(Handle, TcpStream)> {
    let (plain, far) = pair();
    let mut all = vec![(OwnedFd::from(plain).into(), far)];
    if bench.ring.features().direct {
        let (plain, far) = pair();
        match bench.ring.register(OwnedFd::from(plain)) {
            Handle::Direct(slot) => all.push((Handle::Direct(slot), far)),
            other => panic!("no free slot was taken: {other:?}"),
        }
    }
    all
}

fn accepted_bytes_come_and_go_through_both_kinds_of_handle() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    let listener = Arc::new(listener());
    let directs = if bench.ring.features().direct { vec![false, true] } else { vec![false] };
    for direct in directs {
        for endless in [false, true] {
            match endless {
                true => bench.ring.accept_multi(&listener, 1, direct),
                false => bench.ring.accept_one(&listener, 1, direct),
            }
            let mut far = plain(&listener);
            let accepted = bench.wait(1);
            assert_eq!(accepted.more, endless);
            let near = accepted.made.unwrap();
            assert_eq!(matches!(near, Handle::Direct(_)), direct);
            if let Handle::Plain(fd) = &near {
                assert_eq!(peer_addr(fd).unwrap(), far.local_addr().unwrap());
            }
            far.write_all(b"hello").unwrap();
            assert_eq!(bench.receive(&near, 2, 5), b"hello");
            let pieces = ["one ", "two ", "three"].map(Bytes::from).to_vec();
            bench.ring.send(&near, Payload::Many(pieces), More::No, 3);
            bench.ring.send(&near, Payload::One(Bytes::from(vec![b'x'; 9])), More::No, 4);
            let (many, one) = (bench.wait(3), bench.wait(4));
            assert_eq!((many.result.unwrap(), one.result.unwrap()), (13, 9));
            assert!(matches!(many.payload, Some(Payload::Many(pieces)) if pieces.len() == 3));
            assert!(matches!(one.payload, Some(Payload::One(bytes)) if bytes.len() == 9));
            bench.ring.shutdown(&near, Shutdown::Write, 5);
            assert_eq!(bench.wait(5).result.unwrap(), 0);
            let mut heard = String::new();
            far.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "one two threexxxxxxxxx");
            bench.ring.close(near, 6, Tells::Failure);
            if endless {
                bench.ring.cancel_accepts(1, direct, 7, Tells::Failure);
                assert!(!bench.wait(1).more, "the accept has ended");
            }
        }
    }
    Ok(())
}

fn a_receive_without_end_stops_without_buffers_and_goes_on_with_them() -> Ran {
    let mut bench = Bench::new(REGISTERS)?;
    for (near, mut far) in handles(&mut bench) {
        let sent: Vec<u8> = (0..64 * 1024).map(|n: u32| (n % 251) as u8).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || {
            far.write_all(&copy).unwrap();
            far.shutdown(Shutdown::Write).unwrap();
            far
        });
        let (mut held, mut heard, mut starved) = (Vec::new(), Vec::new(), 0);
        bench.ring.receive_multi(&near, None, 1);
        loop {
            let one = bench.wait(1);
            match &one.result {
                Ok(0) => break,
                Ok(_) => held.extend(one.buffer),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc_enobufs()), "{e}"),
            }
            // Hold all buffers until there is none, then give them back and ask again.
            if !one.more {
                starved += 1;
                for buffer in held.drain(..) {
                    heard.extend_from_slice(bench.ring.received(&buffer));
                    bench.ring.recycle(buffer);
                }
                bench.ring.receive_multi(&near, None, 1);
            }
        }
        for buffer in held.drain(..) {
            heard.extend_from_slice(bench.ring.received(&buffer));
            bench.ring.recycle(buffer);
        }
        assert!(heard == sent, "{} bytes of {}", heard.len(), sent.len());
        assert!(starved > 0, "four buffers never ran out");
        writer.join().unwrap();
        bench.ring.close(near, 2, Tells::Failure);
    }
    Ok(())
}

fn a_receive_ends_when_it_has_taken_what_it_may() -> Ran {
    let mut bench = Bench::new(REGISTERS)?;
    needs(bench.ring.features().receive_limit, "receives that end by themselves (Linux 6.17)")?;
    for (near, mut far) in handles(&mut bench) {
        for most in [4, 5] {
            bench.ring.receive_multi(&near, NonZeroU32::new(most), 1);
            for (sent, more) in [("abc", true), ("de", false)] {
                far.write_all(sent.as_bytes()).unwrap();
                let one = bench.wait(1);
                let buffer = one.buffer.unwrap();
                assert_eq!((bench.ring.received(&buffer), one.more), (sent.as_bytes(), more), "{most}");
                bench.ring.recycle(buffer);
            }
        }
        bench.ring.close(near, 3, Tells::Failure);
    }
    Ok(())
}

fn a_look_says_whether_there_is_something_the_end_or_an_error_and_takes_nothing() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    let (near, mut far) = UnixStream::pair().unwrap();
    let near: Handle = OwnedFd::from(near).into();
    let looks = |bench: &mut Bench| {
        bench.ring.look_for_end(&near, 7);
        bench.wait(7).result
    };
    assert_eq!(looks(&mut bench).unwrap_err().kind(), ErrorKind::WouldBlock);
    far.write_all(b"more").unwrap();
    assert_eq!(looks(&mut bench).unwrap(), 1);
    assert_eq!(bench.receive(&near, 8, 4), b"more");
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(looks(&mut bench).unwrap(), 0);

    let (near, far) = pair();
    let near: Handle = OwnedFd::from(near).into();
    bench.ring.look_for_error(&near, 9);
    assert!(!matches!(bench.wait(9).result, Err(e) if e.kind() == ErrorKind::ConnectionReset));
    SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
    drop(far);
    bench.ring.look_for_error(&near, 9);
    assert_eq!(bench.wait(9).result.unwrap_err().kind(), ErrorKind::ConnectionReset);
    Ok(())
}

/// `ENOBUFS` of Linux.
fn libc_enobufs() -> i32 {
    rustix::io::Errno::NOBUFS.raw_os_error()
}

fn what_is_cancelled_completes_and_gives_its_memory_back() -> Ran {
    let mut bench = Bench::new(REGISTERS)?;
    for (near, far) in handles(&mut bench) {
        bench.ring.receive_multi(&near, None, 1);
        bench.ring.send(&near, Payload::One(Bytes::from(vec![7; 32 << 20])), More::No, 2);
        bench.ring.enter(Some(Duration::ZERO)).unwrap();
        bench.ring.cancel_all(&near, 3, Tells::Failure);
        let receive = bench.wait(1);
        assert!(receive.result.is_err() && !receive.more, "{receive:?}");
        let send = bench.wait(2);
        assert!(matches!(send.payload, Some(Payload::One(bytes)) if bytes.len() == 32 << 20));
        bench.ring.cancel_all(&near, 4, Tells::Failure); // nothing is left; that is no failure, and nothing completes
        bench.ring.reset_on_close(&near, 5, Tells::Failure);
        bench.ring.close(near, 6, Tells::Failure);
        drop(far);
    }
    Ok(())
}

fn a_last_send_closes_with_it() -> Ran {
    let mut bench = Bench::new(REGISTERS)?;
    needs(bench.ring.features().direct, "direct descriptors")?;
    let (near, mut far) = pair();
    let near = bench.ring.register(OwnedFd::from(near));
    let last = |bench: &mut Bench, bytes, key| {
        bench.ring.send_and_close(&near, Payload::One(Bytes::from_static(bytes)), key, key + 1).unwrap();
    };
    last(&mut bench, b"bye", 1);
    assert_eq!(bench.wait(1).result.unwrap(), 3);
    let mut heard = String::new();
    far.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "bye");
    // The slot is free: a send to it fails, and what was chained to the send does not happen.
    last(&mut bench, b"nobody", 3);
    assert!(bench.wait(3).result.is_err());
    assert!(bench.wait(4).result.is_err());
    Ok(())
}

fn more_than_the_queue_holds_is_handed_over_in_order() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    let (near, mut far) = pair();
    let near = Handle::from(OwnedFd::from(near));
    let wakers: Vec<_> = (0..40).map(|_| Arc::new(Waker::new().unwrap())).collect();
    for (key, waker) in wakers.iter().enumerate() {
        bench.ring.poll_multi(waker, key as u64);
    }
    bench.ring.send(&near, Payload::One(Bytes::from_static(b"x")), More::No, 100);
    assert_eq!(bench.wait(100).result.unwrap(), 1);
    far.read_exact(&mut [0]).unwrap();
    for (key, waker) in wakers.iter().enumerate() {
        waker.wake();
        assert!(bench.wait(key as u64).more, "it stays armed");
        waker.clear();
    }
    Ok(())
}

fn a_connection_is_dialled_or_the_error_comes() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    // Where no other test gets the port when it is free again.
    let listener = Listener::bind(&"127.0.201.2:0".parse().unwrap(), &OPTIONS).unwrap();
    let to = listener.local_addr().unwrap();
    let near =
        Handle::from(OwnedFd::from(Stream::unconnected(&to, Some("127.0.0.1:0".parse().unwrap())).unwrap()));
    bench.ring.connect(&near, raw_address(&to).unwrap(), 1);
    assert_eq!(bench.wait(1).result.unwrap(), 0);
    let (far, _) = listener.accept(Blocking::Waits).unwrap();
    assert_eq!(far.send(b"hi").unwrap(), 2);
    assert_eq!(bench.receive(&near, 2, 2), b"hi");
    drop(listener);
    let late = Handle::from(OwnedFd::from(Stream::unconnected(&to, None).unwrap()));
    bench.ring.connect(&late, raw_address(&to).unwrap(), 3);
    assert!(bench.wait(3).result.is_err());
    Ok(())
}

/// Threads that the kernel has started for the rings of this thread.
fn workers() -> usize {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
    names.filter(|one| one.trim_end() == name).count()
}

fn a_peer_that_reads_slowly_costs_no_thread_of_the_kernel() -> Ran {
    const ALL: usize = 10 << 20;
    let mut bench = Bench::new(SETUP)?;
    let listener = listener();
    let mut far = plain(&listener);
    let (near, _) = listener.accept(Blocking::Waits).unwrap();
    let near = OwnedFd::from(near);
    socket2::SockRef::from(&near).set_send_buffer_size(16 << 10).unwrap();
    let near = Handle::from(near);
    let reader = std::thread::spawn(move || {
        let (mut piece, mut heard) = (vec![0; 8 << 10], 0);
        while heard < ALL {
            far.read_exact(&mut piece).unwrap();
            heard += piece.len();
        }
    });
    let (mut rest, mut steps) = (Some(Payload::One(Bytes::from(vec![7; ALL]))), 0);
    while let Some(payload) = rest.take() {
        bench.ring.send(&near, payload, More::No, 1);
        let sent = bench.wait(1);
        rest = sent.payload.and_then(|payload| payload.advance(sent.result.unwrap() as usize));
        assert_eq!(workers(), 0, "after {steps} sends");
        steps += 1;
    }
    reader.join().unwrap();
    assert!(steps > 1, "one send took all of it");
    Ok(())
}

fn a_ring_may_go_while_the_kernel_is_at_work() -> Ran {
    for entered in [false, true] {
        let mut bench = Bench::new(REGISTERS)?;
        let listener = Arc::new(listener());
        let (mut far, mut kept) = (Vec::new(), Vec::new());
        bench.ring.accept_multi(&listener, 1, false);
        for (near, other) in handles(&mut bench) {
            bench.ring.receive_multi(&near, None, 2);
            bench.ring.send(&near, Payload::One(Bytes::from(vec![7; 8 << 20])), More::No, 3);
            let pieces = (0..Payload::MAX_PIECES).map(|_| Bytes::from(vec![8; 1 << 16])).collect();
            bench.ring.send(&near, Payload::Many(pieces), More::No, 4);
            kept.push(near); // the descriptor outlives the ring
            far.push(other);
        }
        if entered {
            bench.ring.enter(Some(Duration::ZERO)).unwrap();
            far.iter_mut().for_each(|far| far.write_all(b"into the buffers").unwrap());
            bench.ring.enter(Some(Duration::from_millis(10))).unwrap();
        }
        drop(bench);
        // Memory that the ring gave back is used for something else now; a late write would be seen.
        let fresh = vec![0u8; 16 << 20];
        assert!(fresh.iter().all(|&byte| byte == 0));
        drop(kept);
    }
    Ok(())
}

fn a_payload_advances_over_its_pieces() -> Ran {
    let pieces = || Payload::Many(["ab", "", "cde"].map(Bytes::from).to_vec());
    let text = |payload: Option<Payload>| match payload {
        None => String::new(),
        Some(Payload::One(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
        Some(Payload::Many(pieces)) => String::from_utf8(pieces.concat()).unwrap(),
        Some(Payload::File { .. }) => panic!("no file was sent"),
    };
    for n in 0..=5 {
        assert_eq!(text(pieces().advance(n)), "abcde"[n..]);
        assert_eq!(text(Payload::One(Bytes::from_static(b"abcde")).advance(n)), "abcde"[n..]);
    }
    assert!(pieces().advance(9).is_none() && Payload::One(Bytes::from_static(b"a")).advance(9).is_none());
    Ok(())
}

/// Two rings that can hand each other sockets, the second with a table of so many slots, all but `free` of which are
/// taken; and a socket in a slot of the first ring.
fn two_rings(table: u32, free: u32) -> Result<(Bench, Bench, Slot, TcpStream), LeftOut> {
    let (mut from, mut to) = (Bench::new(REGISTERS)?, Bench::new(RingSetup { table, ..SETUP })?);
    needs(can_hand_on(), "rings that can hand each other sockets")?;
    let place = |from: &mut Bench| {
        let (near, far) = pair();
        let Handle::Direct(slot) = from.ring.register(near.into()) else { panic!("there is no slot") };
        (slot, far)
    };
    for _ in free..table {
        let (slot, _) = place(&mut from);
        from.ring.hand_on(slot, &to.ring.address().unwrap(), 1, 2, 9);
        from.ring.enter(Some(Duration::ZERO)).unwrap();
        assert!(to.wait(9).made.is_some());
        assert!(from.wait(1).result.is_ok() && from.wait(2).result.is_ok());
    }
    let (slot, far) = place(&mut from);
    Ok((from, to, slot, far))
}

fn a_socket_that_is_handed_to_another_ring_lives_on_there_alone() -> Ran {
    let (mut from, mut to, slot, mut far) = two_rings(2, 1)?;
    from.ring.hand_on(slot, &to.ring.address().unwrap(), 1, 2, 9);
    from.ring.enter(Some(Duration::ZERO)).unwrap();
    let near = to.wait(9).made.expect("a socket");
    assert!(matches!(&near, Handle::Direct(slot) if slot.index() != 0), "that one is taken");
    assert!(from.wait(1).result.is_ok() && from.wait(2).result.is_ok(), "its slot is free here");
    far.write_all(b"hello").unwrap();
    assert_eq!(to.receive(&near, 4, 5), b"hello");
    to.ring.close(near, 5, Tells::Always);
    to.ring.enter(Some(Duration::ZERO)).unwrap();
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0, "nobody else keeps it open");
    Ok(())
}

fn a_socket_that_another_ring_has_no_slot_for_stays() -> Ran {
    let (mut from, mut to, slot, mut far) = two_rings(1, 0)?;
    from.ring.hand_on(slot, &to.ring.address().unwrap(), 1, 2, 9);
    from.ring.enter(Some(Duration::ZERO)).unwrap();
    to.ring.enter(Some(Duration::ZERO)).unwrap();
    let near = from.wait(1).made.expect("it comes back");
    assert_eq!(from.wait(2).result.unwrap_err().raw_os_error(), Some(125), "ECANCELED: the chain is broken");
    far.write_all(b"hello").unwrap();
    assert_eq!(from.receive(&near, 4, 5), b"hello");
    Ok(())
}

fn a_slot_is_given_out_again_when_it_is_closed_and_not_before() -> Ran {
    let mut bench = Bench::new(RingSetup { table: 1, ..REGISTERS })?;
    needs(bench.ring.features().direct, "direct descriptors")?;
    for tells in [Tells::Failure, Tells::Always, Tells::Failure] {
        let Handle::Direct(slot) = bench.ring.register(pair().0.into()) else { panic!("the slot is free") };
        assert!(matches!(bench.ring.register(pair().0.into()), Handle::Plain(_)), "there is one slot");
        bench.ring.close(Handle::Direct(slot), 1, tells);
        assert!(matches!(bench.ring.register(pair().0.into()), Handle::Plain(_)), "it is not closed yet");
        if tells == Tells::Always {
            assert!(bench.wait(1).result.is_ok());
        } else {
            bench.ring.enter(Some(DEADLINE)).unwrap();
            assert!(bench.ring.next_completion().is_none(), "nobody asked");
        }
    }
    Ok(())
}

fn slots_are_given_out_by_the_kernel_or_by_the_ring() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    assert!(matches!(bench.ring.register(pair().0.into()), Handle::Plain(_)));
    let mut bench = Bench::new(REGISTERS)?;
    assert!(bench.ring.address().is_err());
    let listener = Arc::new(listener());
    bench.ring.accept_one(&listener, 1, true);
    let _far = plain(&listener);
    assert!(matches!(bench.wait(1).made, Some(Handle::Plain(_))));
    Ok(())
}

fn what_belongs_to_another_ring_is_refused() -> Ran {
    let (mut bench, mut other) = (Bench::new(REGISTERS)?, Bench::new(REGISTERS)?);
    let mut refuses = |asked: &mut dyn FnMut(&mut Ring)| {
        std::panic::catch_unwind(AssertUnwindSafe(|| asked(&mut other.ring))).is_err()
    };
    let (near, mut far) = pair();
    let near = bench.ring.register(near.into());
    far.write_all(b"x").unwrap();
    bench.ring.receive_once(&near, 1);
    let buffer = bench.wait(1).buffer.unwrap();
    assert!(refuses(&mut |ring| _ = ring.received(&buffer)));
    let mut buffer = Some(buffer);
    assert!(refuses(&mut |ring| ring.recycle(buffer.take().unwrap())));
    if matches!(near, Handle::Direct(_)) {
        assert!(refuses(&mut |ring| ring.receive_multi(&near, None, 1)));
        let mut near = Some(near);
        assert!(refuses(&mut |ring| ring.close(near.take().unwrap(), 1, Tells::Always)));
    }
    Ok(())
}

fn a_wait_may_let_completions_gather() -> Ran {
    let buffers = SETUP.entries as u16;
    let mut bench = Bench::new(RingSetup { buffers, ..SETUP })?;
    needs(bench.ring.features().min_wait, "a minimum wait (Linux 6.12)")?;
    let pairs: Vec<_> = (0..SETUP.entries).map(|_| pair()).collect();
    let (near, mut far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let handles: Vec<Handle> = near.into_iter().map(|stream| OwnedFd::from(stream).into()).collect();
    let taken = |bench: &mut Bench| {
        let mut count = 0;
        while let Some(completion) = bench.ring.next_completion() {
            count += 1;
            completion.buffer.into_iter().for_each(|buffer| bench.ring.recycle(buffer));
        }
        count
    };

    let (pause, limit) = (Duration::from_millis(20), Duration::from_millis(50));
    let start = Instant::now();
    bench.ring.enter_later(pause, Some(limit)).unwrap();
    assert!(start.elapsed() >= limit && taken(&mut bench) == 0, "nothing comes: it waits on");

    handles.iter().for_each(|handle| bench.ring.receive_once(handle, 1));
    let start = Instant::now();
    far[0].write_all(b"?").unwrap();
    bench.ring.enter_later(pause, None).unwrap();
    assert!(start.elapsed() >= pause && taken(&mut bench) == 1, "one does not end the pause");

    bench.ring.receive_once(&handles[0], 1);
    let writer = std::thread::spawn(move || {
        far.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
        far
    });
    let start = Instant::now();
    let mut came = 0;
    while came < handles.len() {
        bench.ring.enter_later(DEADLINE, None).unwrap();
        while let Some(completion) = bench.ring.next_completion() {
            came += 1;
            bench.ring.recycle(completion.buffer.expect("as many buffers as sockets"));
        }
    }
    assert!(start.elapsed() < DEADLINE, "a queue full of completions ends it");
    writer.join().unwrap();
    Ok(())
}

fn what_is_asked_for_may_be_handed_over_without_waiting() -> Ran {
    let mut bench = Bench::new(SETUP)?;
    let (near, mut far) = pair();
    let near = Handle::from(OwnedFd::from(near));
    bench.ring.send(&near, Payload::One(Bytes::from_static(b"at once")), More::No, 1);
    bench.ring.submit().unwrap();
    let mut heard = [0; 7];
    far.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"at once");
    assert_eq!(bench.wait(1).result.unwrap(), 7);
    bench.ring.submit().unwrap(); // nothing to hand over
    Ok(())
}
