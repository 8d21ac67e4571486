//! Limits of connections through shared memory between two processes on one host.

use std::time::Duration;

use super::Policy;
use super::limit::Effect::{self, Kept, NoEffect, Refused};
use super::table::{WINDOWS, limits};
use crate::model::Model::{self, Blocking, Epoll, Poll, Pool, Select, Tokio, Uring};

const NO_RINGS: Effect = Refused(
    "choose epoll, uring or another: threads of this model sleep in the system call that receives, and shared memory has \
     none",
);

/// The effect of the fast path per model on Linux; on Windows, where it is a socket option, every model supports it.
pub(super) const FAST_PATH: &[(&[Model], Effect)] =
    &[(&[Select, Poll, Epoll, Uring, Pool, Tokio], Kept), (&[Blocking], NO_RINGS), (WINDOWS, Kept)];

/// The same for the limits of shared memory.
const ON_RINGS: &[(&[Model], Effect)] = &[
    (&[Select, Poll, Epoll, Uring, Pool, Tokio], Kept),
    (&[Blocking], NO_RINGS),
    (WINDOWS, NoEffect("the fast path of Windows uses no shared memory")),
];

const NEEDS: Option<(&str, &str)> = Some(("fast_path", "true"));

limits! {
/// How connections to another tidegate on the same host move from TCP to shared memory; see `docs/fastpath.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FastPath, as "fast_path." of Policy, at |policy| policy.fast_path.as_mut();
    parts {}

    /// The dialler's value applies; a listener accepts none larger than its own. Pages use memory once they are
    /// touched, and both sides share them.
    ring_bytes: usize = 256 * 1024 => {
        what: "Bytes of shared memory for each direction of a connection on the fast path, a power of two",
        cost: "two rings for each such connection; only touched pages use memory",
        option: "ring-bytes",
        unit: Bytes,
        range: PowerOfTwo(4096, 1 << 30, "positions in the ring wrap around"),
        change: Fixed,
        on: ON_RINGS,
        needs: NEEDS,
    }
    also_user: Option<u32> = None => {
        what: "User id, besides this process's own, that may be at the other end of the fast path",
        cost: "that user's programs share memory with this one",
        option: "fast-path-user",
        unit: Other("UID"),
        range: Any,
        change: Fixed,
        on: &[
            (&[Select, Poll, Epoll, Uring, Pool, Tokio], Kept),
            (&[Blocking], NO_RINGS),
            (WINDOWS, Refused("TCP between two users of one host needs no permission on Windows: leave it out")),
        ],
        default_note: Some("nobody"),
        needs: NEEDS,
    }
    /// A listener answers when it accepts, and drops offers whose connection has not arrived within the same time.
    handshake_timeout: Duration = Duration::from_secs(1) => {
        what: "How long a dialler waits for the listener's answer before the connection stays on TCP",
        cost: "adds this delay to a connection if the listener never answers",
        option: "fast-path-handshake-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: ON_RINGS,
        needs: NEEDS,
    }
}
