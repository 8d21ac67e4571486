//! The readiness calls, the waker and the sockets.
#![cfg(unix)]

mod kit;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockRef;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::poll::{PollSet, Readiness, wait_pair};
use tidegate_os::select::SelectSet;
use tidegate_os::socket::{
    Blocking, ListenOptions, Listener, More, Stream, is_exhaustion, is_lost_connection,
};
use tidegate_os::waker::Waker;
use tidegate_os::{process, socket, thread};

use kit::{DEADLINE, OPTIONS, listener, pair, plain};

const READ: Readiness = Readiness { readable: true, writable: false };
const WRITE: Readiness = Readiness { readable: false, writable: true };

#[cfg(target_os = "linux")]
#[test]
fn epoll_reports_what_changed_and_what_ended() {
    use tidegate_os::epoll::{Epoll, EpollEvent};
    let epoll = Epoll::new().unwrap();
    let listener = listener();
    let waker = Waker::new().unwrap();
    let (near, mut far) = pair();
    epoll.add_listener(&listener, 1).unwrap();
    epoll.add_level(&waker, 2).unwrap();
    epoll.add_stream(&near, 3).unwrap();
    let mut reports = [EpollEvent::EMPTY; 8];
    let wait = |reports: &mut [EpollEvent], timeout| {
        let count = epoll.wait(reports, timeout).unwrap();
        let kinds = |r: &EpollEvent| (r.key(), r.readable(), r.writable(), r.ended());
        reports.iter().take(count).map(kinds).collect::<Vec<_>>()
    };
    assert_eq!(wait(&mut reports, Some(DEADLINE)), [(3, false, true, false)]);
    // Once only; and both ways of giving a time.
    assert_eq!(wait(&mut reports, Some(Duration::from_millis(1))), []);
    assert_eq!(wait(&mut reports, Some(Duration::from_micros(100))), []);
    waker.wake();
    waker.wake();
    assert_eq!(wait(&mut reports, None), [(2, true, false, false)]);
    waker.clear();
    far.write_all(b"x").unwrap();
    assert_eq!(wait(&mut reports, None), [(3, true, true, false)]);
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(&mut reports, None), [(3, true, true, true)]);
    let _client = plain(&listener);
    // A slice of one is never overrun.
    assert_eq!(wait(&mut reports[..1], None), [(1, true, false, false)]);
    epoll.remove(&listener).unwrap();
    assert_eq!(wait(&mut reports, Some(Duration::ZERO)), []);
    assert!(epoll.remove(&listener).is_err(), "it is gone");
}

#[test]
fn poll_reports_what_is_wanted() {
    let mut set = PollSet::default();
    assert!(set.is_empty());
    let (near, mut far) = pair();
    let waker = Waker::new().unwrap();
    let socket = set.push(near.as_fd(), WRITE);
    let wake = set.push(waker.as_fd(), READ);
    assert_eq!((set.wait(Some(DEADLINE)).unwrap(), set.ready(socket), set.len()), (1, WRITE, 2));
    set.set(socket, READ);
    assert_eq!(set.wait(Some(Duration::from_millis(1))).unwrap(), 0);
    far.write_all(b"x").unwrap();
    waker.wake();
    // The second may come a moment later than the first.
    while set.wait(Some(DEADLINE)).unwrap() < 2 {}
    assert_eq!((set.ready(socket), set.ready(wake)), (READ, READ));
    set.set(socket, Readiness::default());
    assert_eq!((set.wait(None).unwrap(), set.ready(socket)), (1, Readiness::default()), "left out");
    set.swap_remove(socket);
    assert_eq!((set.len(), set.ready(0)), (1, READ), "the last took its place");

    assert_eq!(wait_pair(Some(near.as_fd()), READ, Some(waker.as_fd()), None).unwrap(), (READ, true));
    waker.clear();
    assert_eq!(wait_pair(Some(near.as_fd()), WRITE, Some(waker.as_fd()), None).unwrap(), (WRITE, false));
    near.receive(&mut [0; 8]).unwrap();
    let nothing = wait_pair(Some(near.as_fd()), READ, Some(waker.as_fd()), Some(Duration::from_millis(1)));
    assert_eq!(nothing.unwrap(), (Readiness::default(), false));
}

#[test]
fn select_goes_past_a_thousand_descriptors() {
    let _ = process::raise_descriptor_limit();
    let mut set = SelectSet::default();
    let (near, mut far) = pair();
    // As many descriptors as it takes to get a number above FD_SETSIZE, or as there are.
    let fill: Vec<_> = (0..1100).map_while(|_| Waker::new().ok()).collect();
    let high = fill.iter().max_by_key(|waker| waker.as_fd().as_raw_fd()).unwrap();
    set.set(near.as_fd(), READ.or(WRITE));
    set.set(high.as_fd(), READ);
    assert_eq!(set.wait(Some(DEADLINE)).unwrap(), 1);
    assert_eq!(set.writable.iter().collect::<Vec<_>>(), [near.as_fd().as_raw_fd()]);
    set.set(near.as_fd(), READ);
    assert_eq!(set.wait(Some(Duration::from_millis(1))).unwrap(), 0);
    assert_eq!((set.readable.iter().count(), set.writable.iter().count()), (0, 0));
    high.wake();
    assert_eq!(set.wait(None).unwrap(), 1);
    assert_eq!(set.readable.iter().collect::<Vec<_>>(), [high.as_fd().as_raw_fd()]);
    high.clear();
    set.set(high.as_fd(), Readiness::default());
    far.write_all(b"x").unwrap();
    assert_eq!(set.wait(None).unwrap(), 1);
    assert_eq!(set.readable.iter().collect::<Vec<_>>(), [near.as_fd().as_raw_fd()]);
}

#[test]
fn sockets_send_in_pieces_end_and_reset() {
    let (near, mut far) = pair();
    assert_eq!(near.receive(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let slices = [b"one ", b"two "].map(|text| IoSlice::new(text));
    assert_eq!(near.send_vectored(&slices, More::CloseFollows).unwrap(), 8);
    assert_eq!(near.send_vectored(&[IoSlice::new(b"three")], More::No).unwrap(), 5);
    near.shutdown_send().unwrap();
    let mut heard = String::new();
    far.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "one two three");
    assert_eq!(near.send(b"late").unwrap_err().kind(), ErrorKind::BrokenPipe, "and no signal");
    near.set_blocking(Blocking::Waits).unwrap();
    near.shutdown_receive().unwrap();
    assert_eq!(near.receive(&mut [0; 8]).unwrap(), 0, "woken");

    let (near, mut far) = pair();
    near.reset_on_close().unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (near, mut far) = pair();
    let near = near.into_std();
    socket::reset_on_close(&near).unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// Sizes that no system has by itself.
const SEND_BUFFER: usize = 40_960;
const RECEIVE_BUFFER: usize = 53_248;

#[test]
fn listeners_have_their_options_and_stop() {
    let options = ListenOptions {
        defer_accept: Some(DEADLINE),
        send_buffer: Some(SEND_BUFFER),
        receive_buffer: Some(RECEIVE_BUFFER),
        busy_poll: None,
        ..OPTIONS
    };
    // On Linux where no other test gets the port when it is free again.
    let at = if cfg!(target_os = "linux") { "127.0.201.1:0" } else { "127.0.0.1:0" };
    let listener = Listener::bind(&at.parse().unwrap(), &options).unwrap();
    let addr = listener.local_addr().unwrap();
    let same = listener.to_std().unwrap();
    assert_eq!(Endpoint::from(same.local_addr().unwrap()), addr);
    let buffers = SockRef::from(&same);
    let buffers = (buffers.send_buffer_size().unwrap(), buffers.recv_buffer_size().unwrap());
    let twice = if cfg!(target_os = "linux") { 2 } else { 1 }; // socket(7): for what it keeps beside the bytes
    assert_eq!(buffers, (twice * SEND_BUFFER, twice * RECEIVE_BUFFER));
    drop(same);
    listener.set_blocking(Blocking::Never).unwrap();
    let empty = listener.accept(Blocking::Never).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    assert!(!is_exhaustion(&empty) && !is_lost_connection(&empty) && !socket::is_out_of_descriptors(&empty));
    let from = "127.0.0.2:0".parse().unwrap();
    let dialled = Stream::dial(&addr, Some(from), Blocking::Waits).unwrap();
    if cfg!(target_os = "linux") {
        let silent = listener.accept(Blocking::Never).map(drop);
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::WouldBlock, "accepts wait for data");
    }
    listener.set_blocking(Blocking::Waits).unwrap();
    dialled.set_send_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(dialled.send(b"x").unwrap(), 1);
    let (near, peer) = listener.accept(Blocking::Waits).unwrap();
    assert_eq!(near.peer_addr().unwrap(), peer.unwrap());
    assert_eq!(peer.unwrap().ip(), from.ip());
    assert!(!listener.has_waiting());
    let shared = Listener::adopt(listener.share().unwrap(), &options).unwrap();
    drop(listener);
    let again = Stream::dial(&addr, None, Blocking::Waits).unwrap();
    assert_eq!(again.send(b"x").unwrap(), 1);
    assert!(shared.accept(Blocking::Waits).is_ok(), "one holder is enough");
    drop(shared);
    let refused = match Stream::dial(&addr, None, Blocking::Never) {
        Err(e) => e,
        Ok(stream) => {
            let mut set = PollSet::default();
            set.push(stream.as_fd(), WRITE);
            assert_eq!(set.wait(Some(DEADLINE)).unwrap(), 1);
            stream.take_error().unwrap().expect("nobody listens")
        }
    };
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn the_system_has_processors_pages_and_limits() {
    let cpus = process::allowed_cpus();
    assert!(!cpus.is_empty() && process::page_bytes() >= 4096 && process::clock_ticks_per_s() > 0);
    assert!(process::descriptor_limit().0 <= process::descriptor_limit().1);
    assert!(!process::system_name().is_empty() && thread::most_threads() != Some(0));
    let _ = process::locked_memory_limit();
    // On a thread of its own, which ends with its place.
    #[cfg(target_os = "linux")]
    std::thread::spawn(move || {
        process::pin_to_cpus(&cpus[..1]).unwrap();
        assert_eq!(process::allowed_cpus(), cpus[..1]);
        assert!(process::pin_to_cpus(&[1 << 20]).is_err());
    })
    .join()
    .unwrap();
}
