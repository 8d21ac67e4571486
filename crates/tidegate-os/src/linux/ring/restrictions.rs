//! What a ring may do at all (`io_uring_register_restrictions(3)`): the operations of this table, and nothing else.
//!
//! A ring begins disabled. It is set up, given its restrictions and the limit of its worker threads, and then enabled,
//! all by the thread that it belongs to (with `SINGLE_ISSUER` the one that enables it). From then on the kernel
//! refuses everything that is not listed here with `EACCES`.

use std::io;

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::{IoUring, Probe};

/// What a ring is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Stream sockets: accept, dial, receive, send, close.
    Streams,
    /// Datagram sockets that are made elsewhere.
    Datagrams,
}

/// Declares the operations. Entries are built with this `opcode`, so one that is not listed does not compile.
macro_rules! operations {
    ($($name:ident for $first:ident $(and $other:ident)?;)*) => {
        /// The operations that this crate builds entries of.
        pub(super) mod opcode {
            pub use io_uring::opcode::{$($name),*};
        }

        /// Each operation's number, and what rings have it.
        const OPERATIONS: &[(u8, &[Purpose])] =
            &[$((opcode::$name::CODE, &[Purpose::$first $(, Purpose::$other)?])),*];
    };
}

operations! {
    Accept for Streams;
    AcceptMulti for Streams;
    AsyncCancel2 for Streams and Datagrams;
    Close for Streams;
    Connect for Streams;
    FixedFdInstall for Streams;
    MsgRingSendFd for Streams;
    PollAdd for Streams and Datagrams;
    Recv for Streams;
    RecvMsgMulti for Datagrams;
    RecvMulti for Streams;
    Send for Streams;
    SendMsg for Streams and Datagrams;
    // A command to the socket (`IORING_OP_URING_CMD`). The kernel cannot restrict which commands; there are only
    // sockets to send them to.
    SetSockOpt for Streams;
    Shutdown for Streams;
}

/// What may be registered once the ring is enabled; everything else was before. The crate that builds entries keeps
/// these numbers to itself: `enum io_uring_register_op`, `linux/io_uring.h`.
const REGISTRATIONS: [(u8, &[Purpose]); 3] = [
    (FILES_UPDATE, &[Purpose::Streams]),
    (UNREGISTER_RING_FDS, &[Purpose::Streams, Purpose::Datagrams]),
    (SYNC_CANCEL, &[Purpose::Streams, Purpose::Datagrams]),
];
/// Puts a dialled socket into the table.
const FILES_UPDATE: u8 = 6;
/// Both at the end of the ring.
const UNREGISTER_RING_FDS: u8 = 21;
const SYNC_CANCEL: u8 = 24;

/// Direct descriptors, provided buffers, chains of two, and no completion where nobody asked for one.
const FLAGS: Flags =
    Flags::FIXED_FILE.union(Flags::BUFFER_SELECT).union(Flags::IO_LINK).union(Flags::SKIP_SUCCESS);

/// Most worker threads that the kernel starts for one thread with rings: for work that ends soon, and for work that may
/// wait.
///
/// Only a shutdown of one direction needs such a thread, and ends soon. An accept gets one if it was woken in vain 127
/// times (`APOLL_MAX_RETRY` in the kernel's `io_uring/poll.c`); the next connection ends it.
pub const MOST_WORKERS: [u32; 2] = [4, 4];

/// Restricts a disabled ring for good, and enables it.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the kernel refuses: a ring without its wall is not what was asked for.
pub(super) fn enable(ring: &IoUring, purpose: Purpose) -> io::Result<()> {
    let submitter = ring.submitter();
    let refused = |step: &'static str| {
        move |e: io::Error| {
            let why = format!("the kernel refuses to restrict a ring ({step}: {e})");
            io::Error::new(io::ErrorKind::Unsupported, why)
        }
    };
    // A kernel takes no restriction to an operation that it does not know.
    let mut known = Probe::new();
    submitter.register_probe(&mut known).map_err(refused("IORING_REGISTER_PROBE"))?;
    let has = |purposes: &[Purpose]| purposes.contains(&purpose);
    let operations = OPERATIONS.iter().filter(|(code, purposes)| has(purposes) && known.is_supported(*code));
    let registrations = REGISTRATIONS.iter().filter(|(_, purposes)| has(purposes));
    let mut all: Vec<_> = operations.map(|(code, _)| Restriction::sqe_op(*code)).collect();
    all.extend(registrations.map(|(code, _)| Restriction::register_op(*code)));
    all.push(Restriction::sqe_flags_allowed(FLAGS.bits()));
    submitter.register_restrictions(&mut all).map_err(refused("IORING_REGISTER_RESTRICTIONS"))?;
    submitter
        .register_iowq_max_workers(&mut MOST_WORKERS.clone())
        .map_err(refused("IORING_REGISTER_IOWQ_MAX_WORKERS"))?;
    submitter.register_enable_rings().map_err(refused("IORING_REGISTER_ENABLE_RINGS"))
}

#[cfg(test)]
pub(super) mod tests;
