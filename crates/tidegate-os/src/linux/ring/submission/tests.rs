use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use super::super::restrictions::tests::ring;
use super::super::restrictions::{Purpose, opcode};
use super::super::{Handle, Payload};
use super::*;

/// The ring has so many entries.
const ENTRIES: u64 = 8;

const SEND: u64 = 100;
const CLOSE: u64 = 101;

fn poll() -> squeue::Entry {
    opcode::PollAdd::new(io_uring::types::Fd(-1), 0).build()
}

/// Asks to send to a peer that is gone, and then to close.
fn failing_send_and_close(ring: &mut Ring) {
    let (near, far) = UnixStream::pair().unwrap();
    drop(far);
    let slot = ring.register(near.into());
    assert!(matches!(slot, Handle::Direct(_)));
    assert!(ring.send_and_close(&slot, Payload::One(bytes::Bytes::from_static(b"x")), SEND, CLOSE).is_ok());
}

/// What came under these keys.
fn came(ring: &mut Ring, keys: [u64; 2]) -> [Option<i32>; 2] {
    let mut came = [None; 2];
    while came.contains(&None) {
        ring.enter(Some(Duration::from_secs(10))).unwrap();
        while let Some(one) = ring.next_completion() {
            if let Some(at) = keys.iter().position(|&key| key == one.key) {
                came[at] = Some(one.result.map_or_else(|e| e.raw_os_error().unwrap(), |_| 0));
            }
        }
    }
    came
}

#[test]
fn a_chain_that_did_not_fit_is_handed_over_whole() {
    for before in 0..=2 * ENTRIES {
        let Some(mut ring) = ring(Purpose::Streams) else { return };
        for number in 0..before {
            ring.overflow.push_back(Box::new([poll().user_data(number)]));
        }
        failing_send_and_close(&mut ring);
        let came = came(&mut ring, [SEND, CLOSE]);
        assert_eq!(came, [Some(libc::EPIPE), Some(libc::ECANCELED)], "behind {before} others");
    }
}

#[test]
fn a_chain_that_the_queue_has_half_a_place_for_is_handed_over_whole() {
    for before in 0..=2 * ENTRIES {
        let Some(mut ring) = ring(Purpose::Streams) else { return };
        for number in 0..before {
            ring.push(poll().user_data(number));
        }
        failing_send_and_close(&mut ring);
        let came = came(&mut ring, [SEND, CLOSE]);
        assert_eq!(came, [Some(libc::EPIPE), Some(libc::ECANCELED)], "behind {before} others");
    }
}

/// Completions have to be taken meanwhile: they free memory.
#[test]
fn a_kernel_that_takes_nothing_now_is_asked_again_later_and_not_at_once() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if let Some(mut ring) = ring(Purpose::Streams) {
            refuse_submissions();
            for number in 0..2 * ENTRIES {
                ring.push(poll().user_data(number));
            }
            ring.enter(None).unwrap();
            ring.submit().unwrap();
            assert!(ring.has_requests());
        }
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("it returns");
}

/// From now on the kernel has no memory for what the calling thread asks for: a filter answers in its place
/// (`seccomp(2)`).
fn refuse_submissions() {
    let step =
        |code: u32, jump_unless: u8, k| libc::sock_filter { code: code as u16, jt: 0, jf: jump_unless, k };
    let enter = u32::try_from(libc::SYS_io_uring_enter).unwrap();
    let refused = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the number of the call
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, enter),
        step(libc::BPF_RET | libc::BPF_K, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: both calls read plain numbers and, the second, a program that outlives it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }
}
