//! Thin safe wrappers over the system calls tidegate needs.
//!
//! This is the only tidegate crate with `unsafe` code. It decides nothing: no limit, no
//! retry and no state machine lives here. Each module wraps one mechanism of the system.
//!
//! | module | mechanism |
//! |---|---|
//! | [`terms`] | the words that are the same on every system |
//! | [`endpoint`] | where a stream socket listens, or connects to |
//! | [`descriptor`] | what the system knows sockets by |
//! | [`socket`] | stream sockets: listen, accept, dial, receive, send, close |
//! | [`file`](mod@file) | a part of a file on its way out |
//! | [`folder`] | a folder from which no name leads out |
//! | [`local`] | the files of Unix sockets |
//! | [`loopback`] | TCP on one host without most of TCP (Windows) |
//! | [`datagram`] | datagram sockets: one, several a call, several in one |
//! | [`select`], [`poll`] | the portable readiness calls |
//! | `epoll` | Linux readiness |
//! | `ring` | Linux io_uring: submission, completion, provided buffers, direct descriptors |
//! | `bpf` | Linux: `bpf(2)`, maps of sockets and the programs beside them |
//! | `diag` | Linux: what the kernel knows of one TCP socket (`sock_diag`) |
//! | `meeting` | Linux: Unix sockets with abstract names |
//! | `shared` | Linux: sealed memory that two processes share |
//! | `overlapped`, `port`, `events` | Windows overlapped operations, told of by a completion port or by events |
//! | `event_set`, `messages` | Windows readiness: events (`WSAEventSelect`), messages (`WSAAsyncSelect`) |
//! | `reuse` | Windows sockets that are disconnected and used again |
//! | `rio` | Windows Registered I/O, through a table of functions |
//! | `transmit` | Windows `TransmitFile` and `TransmitPackets`, through a table of functions |
//! | `extension` | Winsock's functions that are asked for at run time |
//! | [`handover`] | passing descriptors to another process |
//! | [`waker`] | waking a loop from another thread |
//! | [`pages`] | memory in whole pages, locked or not |
//! | [`process`] | processors, descriptor limits, system facts |
//! | [`thread`] | threads whose start cannot end the process |
#![deny(clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn)]

pub mod endpoint;
pub mod file;
pub mod loopback;
#[cfg(any(target_os = "linux", windows))]
pub mod payload;
#[cfg(any(windows, all(test, target_os = "linux")))]
pub mod reuse;
#[cfg(any(windows, all(test, target_os = "linux")))]
pub mod rio;
pub mod terms;
#[cfg(any(windows, all(test, target_os = "linux")))]
pub mod transmit;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub use unix::{
    datagram, descriptor, extension, folder, handover, local, pages, poll, process, select, socket, thread,
    waker,
};

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub use windows::{
    datagram, descriptor, event, event_set, events, extension, folder, handover, local, messages, overlapped,
    pages, poll, port, process, registered, select, socket, thread, waker,
};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{bpf, diag, epoll, meeting, ring, shared};
