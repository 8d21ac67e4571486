use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use io_uring::{opcode as any, squeue, types};

use super::*;
use crate::ring::{Ring, RingSetup, SetupError, Slots};

const KEY: u64 = 7;

/// `None` where io_uring is forbidden or missing, and for no other reason: then there is nothing to test, which is
/// said.
pub(in crate::linux::ring) fn ring(purpose: Purpose) -> Option<Ring> {
    Ring::new(&RingSetup::trial(purpose, Slots::Registered)).inspect_err(not_tested).ok()
}

/// A unit test cannot be ignored once it runs: `.ci/run` collects this line beside the tests that are. Not `eprintln!`,
/// whose text is shown only when a test fails; one write, so that nothing gets in between.
fn not_tested(e: &std::io::Error) {
    assert!(matches!(SetupError::of(e), SetupError::Forbidden | SetupError::Missing), "{e}");
    assert!(IoUring::new(2).is_err(), "there are rings, but for this one: {e}");
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    let line = format!("\nNOT TESTED: {test}: needs io_uring: {e}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// What the kernel answers to an entry.
fn answer(ring: &mut Ring, entry: squeue::Entry) -> Option<i32> {
    ring.push(entry.user_data(KEY));
    ring.enter(Some(Duration::from_secs(10))).unwrap();
    let completion = ring.next_completion().expect("an answer");
    assert_eq!(completion.key, KEY);
    completion.result.err().and_then(|e| e.raw_os_error())
}

const REFUSED: Option<i32> = Some(libc::EACCES);

/// Entries that do nothing, or fail, wherever they are allowed.
fn unlisted() -> Vec<(&'static str, squeue::Entry)> {
    let (none, here) = (types::Fd(-1), types::Fd(libc::AT_FDCWD));
    let (path, nowhere) = (c"/".as_ptr(), std::ptr::null_mut());
    vec![
        ("NOP", any::Nop::new().build()),
        ("OPENAT", any::OpenAt::new(here, path).build()),
        ("OPENAT2", any::OpenAt2::new(here, path, std::ptr::null()).build()),
        ("READ", any::Read::new(none, nowhere, 0).build()),
        ("WRITE", any::Write::new(none, nowhere, 0).build()),
        ("SPLICE", any::Splice::new(none, -1, none, -1, 0).build()),
        ("UNLINKAT", any::UnlinkAt::new(here, c"".as_ptr()).build()),
        ("SOCKET", any::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build()),
        ("PROVIDE_BUFFERS", any::ProvideBuffers::new(nowhere, 0, 0, 1, 0).build()),
        ("TIMEOUT_REMOVE", any::TimeoutRemove::new(0).build()),
        ("POLL_REMOVE", any::PollRemove::new(0).build()),
    ]
}

#[test]
fn an_operation_that_is_not_listed_is_refused() {
    for purpose in [Purpose::Streams, Purpose::Datagrams] {
        let Some(mut ring) = ring(purpose) else { return };
        for (name, entry) in unlisted() {
            assert_eq!(answer(&mut ring, entry), REFUSED, "{name} on a ring for {purpose:?}");
        }
    }
}

#[test]
fn a_ring_for_datagrams_cannot_make_connections() {
    let Some(mut ring) = ring(Purpose::Datagrams) else { return };
    let none = types::Fd(-1);
    for (name, entry) in [
        ("ACCEPT", any::AcceptMulti::new(none).build()),
        ("CONNECT", any::Connect::new(none, std::ptr::null(), 0).build()),
        ("CLOSE", any::Close::new(none).build()),
    ] {
        assert_eq!(answer(&mut ring, entry), REFUSED, "{name}");
    }
}

/// A flag that is not in use is refused even with a listed operation, which without it gets another answer.
#[test]
fn a_flag_that_is_not_listed_is_refused() {
    let Some(mut ring) = ring(Purpose::Streams) else { return };
    let close = || opcode::Close::new(types::Fixed(3)).build();
    for flags in [squeue::Flags::IO_DRAIN, squeue::Flags::ASYNC, squeue::Flags::IO_HARDLINK] {
        assert_eq!(answer(&mut ring, close().flags(flags)), REFUSED, "{flags:?}");
    }
    assert_eq!(answer(&mut ring, close()), Some(libc::EBADF), "the slot is empty");
}

#[test]
fn nothing_more_is_registered_with_a_ring_that_is_in_use() {
    let Some(ring) = ring(Purpose::Streams) else { return };
    let submitter = ring.ring.submitter();
    let null = std::fs::File::open("/dev/null").unwrap();
    let outcomes = [
        ("EVENTFD", submitter.register_eventfd(null.as_raw_fd())),
        ("PERSONALITY", submitter.register_personality().map(drop)),
        ("BUFFERS2", submitter.register_buffers_sparse(1)),
        ("FILES", submitter.register_files(&[null.as_raw_fd()])),
        ("UNREGISTER_FILES", submitter.unregister_files()),
        ("RESTRICTIONS", submitter.register_restrictions(&mut [Restriction::sqe_op(0)])),
        ("IOWQ_MAX_WORKERS", submitter.register_iowq_max_workers(&mut [1000, 1000])),
    ];
    for (name, outcome) in outcomes {
        let error = outcome.expect_err(name).raw_os_error();
        assert_eq!(error, REFUSED, "IORING_REGISTER_{name}");
    }
    // What is listed goes on.
    assert_eq!(submitter.register_files_update(0, &[null.as_fd().as_raw_fd()]).unwrap(), 1);
}

/// Everything that a ring may be asked for; what is missing in the table does not get here, it does not compile.
#[test]
fn what_is_listed_is_not_refused() {
    let Some(mut ring) = ring(Purpose::Streams) else { return };
    let (none, slot, nowhere) = (types::Fd(-1), types::Fixed(3), std::ptr::null_mut());
    let target = types::DestinationSlot::auto_target();
    for (name, entry) in [
        ("ACCEPT", opcode::Accept::new(none, nowhere, std::ptr::null_mut()).build()),
        ("CONNECT", opcode::Connect::new(none, std::ptr::null(), 0).build()),
        ("SETSOCKOPT", opcode::SetSockOpt::new(slot, 0, 0, std::ptr::null(), 0).build()),
        ("INSTALL", opcode::FixedFdInstall::new(slot, 0).build()),
        ("MSG_RING", opcode::MsgRingSendFd::new(none, slot, target, 0).build()),
        ("SHUTDOWN", opcode::Shutdown::new(none, 0).build()),
        ("POLL_ADD", opcode::PollAdd::new(none, 0).build()),
    ] {
        let answer = answer(&mut ring, entry);
        assert!(answer.is_some() && answer != REFUSED, "{name}: {answer:?}");
    }
}

/// The kernel starts no more workers than this for the thread, however much there is to shut down.
#[test]
fn workers_are_bounded_before_a_ring_is_enabled() {
    let mut builder = IoUring::builder();
    let built = builder.setup_r_disabled().setup_single_issuer().build(8);
    let Ok(ring) = built.inspect_err(not_tested) else { return };
    enable(&ring, Purpose::Datagrams).unwrap();
    drop(ring);
    // The limit belongs to the thread: a ring that asks without setting one gets it as the answer.
    let other = IoUring::new(8).unwrap();
    let mut limits = [0, 0];
    other.submitter().register_iowq_max_workers(&mut limits).unwrap();
    assert_eq!(limits, MOST_WORKERS);
}
