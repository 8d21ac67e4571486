//! Connections between two processes of one host through shared memory.

use std::time::Duration;

use super::Policy;
use super::limit::Effect::{self, Kept, NoEffect, Refused};
use super::table::{WINDOWS, limits};
use crate::model::Model::{self, Blocking, Epoll, Poll, Pool, Select, Tokio, Uring};

const NO_RINGS: Effect = Refused(
    "choose epoll, poll, select or pool: shared memory has no readiness and no completion of the system's own, so the loop \
     itself has to look at it",
);

/// What becomes of the fast path on Linux; on Windows, where it is an option of sockets, every model keeps it.
pub(super) const FAST_PATH: &[(&[Model], Effect)] =
    &[(&[Select, Poll, Epoll, Pool], Kept), (&[Blocking, Uring, Tokio], NO_RINGS), (WINDOWS, Kept)];

/// The same for what belongs to shared memory.
const ON_RINGS: &[(&[Model], Effect)] = &[
    (&[Select, Poll, Epoll, Pool], Kept),
    (&[Blocking, Uring, Tokio], NO_RINGS),
    (WINDOWS, NoEffect("the fast path of Windows has no memory of its own")),
];

const NEEDS: Option<(&str, &str)> = Some(("fast_path", "true"));

limits! {
/// How a connection to another tidegate on the same host leaves TCP for shared memory; see `docs/fastpath.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPath, as "fast_path." of Policy, at |policy| policy.fast_path.as_mut();
    parts {}

    /// The dialler's counts; a listener takes none that are larger than its own. Pages cost memory once they are
    /// touched, on both sides together once.
    ring_bytes: usize = 256 * 1024 => {
        what: "Bytes of shared memory for each direction of a connection on the fast path, a power of two",
        cost: "two rings for each such connection, of which touched pages are memory",
        option: Some("ring-bytes"),
        unit: Bytes,
        range: PowerOfTwo(4096, 1 << 30, "positions in the ring wrap around"),
        change: Fixed,
        on: ON_RINGS,
        needs: NEEDS,
    }
    also_user: Option<u32> = None => {
        what: "The number of a user, besides one's own, who may be at the other end of the fast path",
        cost: "that user's programs share memory with this one",
        option: Some("fast-path-user"),
        unit: Other("UID"),
        range: Any,
        change: Fixed,
        on: &[
            (&[Select, Poll, Epoll, Pool], Kept),
            (&[Blocking, Uring, Tokio], NO_RINGS),
            (WINDOWS, Refused("TCP between two users of one host needs no leave here: leave it out")),
        ],
        default_note: Some("nobody"),
        needs: NEEDS,
    }
    /// A listener answers when it accepts, and hangs up on offers whose connection has not come for as long.
    patience: Duration = Duration::from_secs(1) => {
        what: "How long a dialler waits for the listener to take the offer before the connection stays with TCP",
        cost: "a connection is that much later if the listener never answers",
        option: None,
        unit: Time,
        range: TIME,
        change: Fixed,
        on: ON_RINGS,
        needs: NEEDS,
    }
}
