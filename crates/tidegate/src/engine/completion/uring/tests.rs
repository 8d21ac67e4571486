use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use tidegate_os::file::FileRange;
use tidegate_os::ring::{Completion as Raw, SetupError};
use tidegate_os::socket::ListenOptions;

use super::probe::stays_armed;
use super::*;
use crate::fastpath::Transports;
use crate::policy::Policy;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn who_asks_whether_it_works_is_not_interrupted_later() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let interrupted = || {
        probe();
        silent.recv(&mut [0; 16]).is_err_and(|e| e.kind() == io::ErrorKind::Interrupted)
    };
    // Made on this thread, each one interrupts.
    let times = (0..20).filter(|_| interrupted()).count();
    assert!(times < 3, "{times} of 20");
}

/// A ring that accepts. `None` where io_uring is forbidden or missing, and for no other reason, which is said: a unit
/// test cannot be ignored once it runs, and `.ci/run` collects the line beside the tests that are. Not `eprintln!`,
/// whose text is shown only when a test fails; one write, so that nothing gets in between.
fn port() -> Option<Uring> {
    let setup = Setup {
        policy: &Policy::default(),
        share: 16,
        dials_each: 0,
        addresses: false,
        partners: false,
        dials: false,
        first_data: false,
        transports: &Arc::new(Transports::new(None)),
        descriptors: 16,
    };
    let not_tested = |e: &io::Error| {
        assert!(matches!(SetupError::of(e), SetupError::Forbidden | SetupError::Missing), "{e}");
        let test = std::thread::current();
        let test = test.name().unwrap_or_default();
        let line = format!("\nNOT TESTED: {test}: needs io_uring: {e}\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
    };
    Uring::new(&setup).inspect_err(not_tested).ok().map(|(port, _)| port)
}

/// Any sequence number: a ring has one send of a connection in flight.
fn sequence() -> Sequence {
    crate::proto::InOrder::<()>::default().begin()
}

fn until<T>(port: &mut Uring, mut wanted: impl FnMut(Completion<Uring>) -> Option<T>) -> T {
    loop {
        while let Some(completion) = port.next() {
            if let Some(found) = wanted(completion) {
                return found;
            }
        }
        port.wait(Some(DEADLINE)).unwrap();
    }
}

fn accepted(port: &mut Uring) -> RingSocket {
    until(port, |completion| match completion {
        Completion::Accepted { outcome, .. } => Some(outcome.unwrap().0),
        _ => None,
    })
}

/// What is left of a file when its socket may be sent to.
fn may_send(port: &mut Uring, token: Token, socket: &RingSocket, range: FileRange) -> Payload {
    port.send(
        token,
        sequence(),
        socket,
        Pieces::File { head: Vec::new(), range, tail: Vec::new() },
        More::No,
    );
    until(port, |completion| match completion {
        Completion::MayGoOn { token: about, outcome: Ok(()), unsent } => {
            assert_eq!(about, token);
            Some(unsent)
        }
        _ => None,
    })
}

#[test]
fn the_descriptor_of_a_connection_that_is_gone_goes_to_nobody_else() {
    let Some(mut port) = port() else { return };
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"for the one who stays").unwrap();
    let range = FileRange::new(file.into(), 0, 21);
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(16)).unwrap();
    let addr = listener.local_addr().unwrap().addr().unwrap();
    let listener = open(Arc::new(listener), None).unwrap();
    port.accept_all(&listener);
    let (mut stays, mut leaves) = (TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap());
    let (one, other) = (accepted(&mut port), accepted(&mut port));
    let [first, second] = [0, 1].map(|index| Token { index, generation: 0 });

    let unsent = may_send(&mut port, first, &one, range.clone());
    assert!(matches!(port.go_on(&one, unsent, More::No), (Ok(21), None)));
    drop(may_send(&mut port, second, &other, range.clone())); // its connection is gone
    port.close(second, other, Close::default());
    let unsent = may_send(&mut port, first, &one, range);
    assert!(matches!(port.go_on(&one, unsent, More::No), (Ok(21), None)));
    port.close(first, one, Close::default());
    port.wait(Some(Duration::ZERO)).unwrap();

    let mut heard = [String::new(), String::new()];
    stays.read_to_string(&mut heard[0]).unwrap();
    leaves.read_to_string(&mut heard[1]).unwrap();
    assert_eq!(heard, ["for the one who stays".repeat(2), String::new()]);
}

#[test]
fn the_end_of_a_unix_socket_is_found_and_distinguished_from_data() {
    let Some(mut port) = port() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = RingSocket::Kernel(OwnedFd::from(near).into());
    let token = Token { index: 3, generation: 5 };
    let ended = |port: &mut Uring| {
        port.look_for_end(token, &near);
        until(port, |completion| match completion {
            Completion::Ended { token: about } => Some(about == token),
            Completion::Ignored => Some(false),
            _ => None,
        })
    };
    assert!(!ended(&mut port), "nothing has come");
    far.write_all(b"x").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert!(!ended(&mut port), "data comes first");
    port.receive_once(token, sequence(), &near);
    let buffer = until(&mut port, |completion| match completion {
        Completion::Received { outcome, .. } => outcome.unwrap(),
        _ => None,
    });
    port.recycle(buffer);
    assert!(ended(&mut port));
}

#[test]
fn a_listener_is_known_by_what_it_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}", folder.path().join("socket").display());
    let abstract_name = format!("unix:@tidegate-test-{}", std::process::id());
    for (at, is_unix) in [("127.0.0.1:0", false), (&path, true), (&abstract_name, true)] {
        let listener = Listener::bind(&at.parse().unwrap(), &ListenOptions::new(16)).unwrap();
        assert_eq!(Uring::is_unix(&open(Arc::new(listener), None).unwrap()), is_unix, "{at}");
    }
}

#[test]
fn a_kernel_without_multishot_receives_is_recognised() {
    let received = |result, more| Raw { key: 0, result, made: None, more, buffer: None, payload: None };
    assert_eq!(stays_armed(received(Ok(1), true)), Ok(()));
    let refused = io::Error::from_raw_os_error(22); // EINVAL, as Linux 5.19 answers
    for other in [received(Err(refused), false), received(Ok(1), false)] {
        let why = stays_armed(other).unwrap_err();
        assert!(why.contains("needs Linux 6.0: use epoll"), "{why}");
    }
}

#[test]
fn nothing_is_chained_to_more_than_one_send_takes() {
    const PIECE: usize = Ring::MOST_AT_ONCE;
    const PIECES: usize = 33;
    let Some(mut port) = port() else { return };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(16)).unwrap();
    let addr = listener.local_addr().unwrap().addr().unwrap();
    let listener = open(Arc::new(listener), None).unwrap();
    port.accept_one(&listener);
    let mut far = TcpStream::connect(addr).unwrap();
    let near = accepted(&mut port);
    let hears = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
    let token = Token { index: 0, generation: 0 };
    let pieces = Pieces::Many(vec![Bytes::from(vec![7; PIECE]); PIECES]);
    assert_eq!(port.send_last(token, sequence(), &near, pieces), Chained::No);
    let mut sent = 0;
    while sent < PIECE * PIECES {
        let (n, unsent) = until(&mut port, |completion| match completion {
            Completion::Sent { outcome, unsent, .. } => Some((outcome.unwrap(), unsent)),
            _ => None,
        });
        sent += n;
        if let Some(rest) = unsent {
            port.send_rest(token, sequence(), &near, rest);
        }
    }
    port.close(token, near, Close::default());
    port.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!(hears.join().unwrap(), (PIECE * PIECES) as u64);
}
