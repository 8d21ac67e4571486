//! Building a ring with all that this kernel has. It begins disabled (`IORING_SETUP_R_DISABLED`).

use std::io;
use std::time::Duration;

use io_uring::IoUring;
use io_uring::types::Napi;

use super::restrictions::Purpose;
use crate::pages::Residence;

/// Who gives out the slots of a ring's table. Nobody knows which ones the other has given, so it is one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The kernel: to sockets that are accepted, or that other rings send.
    Accepted,
    /// The ring: to sockets that are [registered](super::Ring::register).
    Registered,
}

/// Sizes of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// What it is for: nothing else can be done with it.
    pub purpose: Purpose,
    /// Submissions that fit before they are handed to the kernel; a power of two.
    pub entries: u32,
    /// Completions that fit before the kernel has to keep them aside; a power of two.
    pub completions: u32,
    /// Provided buffers, a power of two, at most 32,768.
    pub buffers: u16,
    /// Bytes of each provided buffer.
    pub buffer_bytes: u32,
    /// Whether the buffers may be paged out.
    pub residence: Residence,
    /// Slots of the table of direct descriptors; 0 for none. Capped by RLIMIT_NOFILE.
    pub table: u32,
    /// What allocates them.
    pub slots: Slots,
    /// How long a wait polls the queues of the network cards that its sockets are behind (`IORING_REGISTER_NAPI`);
    /// `None` for never.
    pub busy_poll: Option<Duration>,
}

impl RingSetup {
    /// A small ring with one buffer, to find out what the kernel can do.
    #[must_use]
    pub const fn trial(purpose: Purpose, slots: Slots) -> Self {
        Self {
            purpose,
            entries: 8,
            completions: 16,
            buffers: 1,
            buffer_bytes: 4096,
            residence: Residence::Pageable,
            table: 8,
            slots,
            busy_poll: None,
        }
    }
}

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// Nobody, or not this process, may make one (`EPERM`).
    Forbidden,
    /// The kernel has no io_uring (`ENOSYS`).
    Missing,
    /// It takes more locked memory than is allowed (`ENOMEM`).
    LockedMemory,
    /// The kernel does not know something that is needed (`EINVAL`).
    TooOld,
    /// Something else, which the error says.
    Other,
}

impl SetupError {
    /// What an error of [`Ring::new`](super::Ring::new) means.
    pub fn of(e: &io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::EPERM) => Self::Forbidden,
            Some(libc::ENOSYS) => Self::Missing,
            Some(libc::ENOMEM) => Self::LockedMemory,
            Some(libc::EINVAL) => Self::TooOld,
            _ => Self::Other,
        }
    }
}

/// What a ring uses of what the kernel may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Completions are made on the loop's own thread and only when it asks (`SINGLE_ISSUER` +
    /// `DEFER_TASKRUN`, Linux 6.1).
    pub defer_taskrun: bool,
    /// No submission index array (`NO_SQARRAY`, Linux 6.6).
    pub no_sqarray: bool,
    /// The ring is named by its place in a table of the thread rather than by its descriptor (Linux 5.18).
    pub registered_ring: bool,
    /// A table of direct descriptors (Linux 5.19 for accepting into it).
    pub direct: bool,
    /// A wait may let completions gather first (`IORING_FEAT_MIN_TIMEOUT`, Linux 6.12).
    pub min_wait: bool,
    /// A receive may end after a number of bytes (`optlen` of a multishot receive, Linux 6.17).
    pub receive_limit: bool,
}

/// Has waits poll network cards (Linux 6.9).
pub(super) fn busy_poll(ring: &IoUring, time: Duration) -> io::Result<()> {
    let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let mut napi = Napi::new().set_busy_poll_timeout(micros);
    ring.submitter().register_napi(&mut napi).map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL) => io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring polls network cards (IORING_REGISTER_NAPI) since Linux 6.9: leave busy_poll out",
        ),
        _ => e,
    })
}

pub(super) fn build(setup: &RingSetup) -> io::Result<(IoUring, Features)> {
    let tries = [
        Features { defer_taskrun: true, no_sqarray: true, ..Features::default() },
        Features { defer_taskrun: true, ..Features::default() },
        Features::default(),
    ];
    let mut last = None;
    for features in tries {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(setup.completions).setup_clamp().setup_r_disabled();
        if features.defer_taskrun {
            builder.setup_single_issuer().setup_defer_taskrun();
        } else {
            builder.setup_coop_taskrun();
        }
        if features.no_sqarray {
            builder.setup_no_sqarray();
        }
        match builder.build(setup.entries) {
            Ok(ring) => return Ok((ring, features)),
            // The kernel does not know one of the flags: ask for less.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL)))
}
