//! Whether io_uring works here, found out with a small ring.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidegate_os::descriptor::OwnedFd;
use tidegate_os::process::locked_memory_limit;
use tidegate_os::ring::{Completion as Raw, Features, Handle, Purpose, Ring, RingSetup, SetupError, Slots};

use super::{Kind, NOBODY, key};
use crate::engine::Availability;

pub(super) fn make_one() -> Availability {
    let mut ring = match Ring::new(&RingSetup::trial(Purpose::Streams, Slots::Accepted)) {
        Ok(ring) => ring,
        Err(e) => return Availability::Unavailable(format!("{e}; {}", remedy(&e))),
    };
    match try_receive(&mut ring).and_then(stays_armed) {
        Ok(()) => Availability::Available(describe(ring.features())),
        Err(why) => Availability::Unavailable(why),
    }
}

/// How long a receive is tried that has its data.
const TRIAL: Duration = Duration::from_secs(1);

/// Receives one byte in the way connections do. No flag of a ring says whether the kernel can; it refuses, or does not
/// stay armed.
fn try_receive(ring: &mut Ring) -> Result<Raw, String> {
    let failed = |e: io::Error| format!("a receive could not be tried: {e}; use epoll");
    let (near, mut far) = UnixStream::pair().map_err(failed)?;
    far.write_all(b"?").map_err(failed)?;
    let near = Handle::from(OwnedFd::from(near));
    ring.receive_multi(&near, None, key(Kind::Receive, NOBODY));
    ring.enter(Some(TRIAL)).map_err(failed)?;
    ring.next_completion().ok_or_else(|| "a receive that has data did not complete; use epoll".into())
}

pub(super) fn stays_armed(received: Raw) -> Result<(), String> {
    let since = "multishot receive (IORING_RECV_MULTISHOT) needs Linux 6.0: use epoll";
    match received.result {
        Ok(_) if received.more => Ok(()),
        Ok(_) => Err(format!("a receive does not stay armed; {since}")),
        Err(e) => Err(format!("{e}; {since}")),
    }
}

fn describe(features: Features) -> String {
    let names = [
        (features.defer_taskrun, "SINGLE_ISSUER + DEFER_TASKRUN"),
        (features.no_sqarray, "NO_SQARRAY"),
        (features.registered_ring, "registered ring"),
        (features.direct, "direct descriptors"),
        (features.min_wait, "minimum wait"),
    ];
    let used = names.iter().filter(|(on, _)| *on).map(|(_, name)| *name);
    std::iter::once("multishot accept and receive, provided buffers, restricted to the operations in use")
        .chain(used)
        .collect::<Vec<_>>()
        .join(", ")
}

fn remedy(e: &io::Error) -> String {
    match SetupError::of(e) {
        SetupError::Forbidden => {
            "io_uring is forbidden here (kernel.io_uring_disabled, or a container's seccomp \
                               profile): allow it or use epoll"
                .into()
        }
        SetupError::Missing => "this kernel has no io_uring: use epoll".into(),
        SetupError::LockedMemory => format!(
            "too little memory may be locked (RLIMIT_MEMLOCK {:?}): raise it with ulimit -l, or use epoll",
            locked_memory_limit()
        ),
        SetupError::TooOld => {
            "provided buffer rings need Linux 5.19, and receives that stay armed 6.0: use epoll".into()
        }
        SetupError::Other => "use epoll".into(),
    }
}
