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
//! | `abstract_socket` | Linux: Unix sockets with abstract names |
//! | `shared` | Linux: sealed memory that two processes share |
//! | `splice` | Linux: bytes from socket to socket through a pipe; elsewhere there are no such pipes |
//! | `overlapped`, `port`, `events` | Windows overlapped operations, reported by a completion port or by events |
//! | `event_set`, `messages` | Windows readiness: events (`WSAEventSelect`), messages (`WSAAsyncSelect`) |
//! | `registered` | Windows Registered I/O |
//! | `extension` | Winsock's functions that are asked for at run time |
//! | [`handover`] | passing descriptors to another process |
//! | [`waker`] | waking a loop from another thread |
//! | [`pages`] | memory in whole pages, locked or not |
//! | [`process`] | processors, descriptor limits, system facts |
//! | [`thread`] | threads whose start cannot end the process |
//!
//! # I/O safety
//!
//! The rule for every safe function of this crate, whatever it is given (`std::io`, *I/O Safety*; descriptors are
//! handles of sockets on Windows):
//!
//! - **A number is never a descriptor.** No safe function makes an owner of a number, or acts on one. Owners
//!   ([`OwnedFd`](descriptor::OwnedFd), and the types here that are sockets, files, maps and instances) are made of
//!   what the system has just made, or of another owner, and close it once.
//! - **To act on a descriptor is to have it.** Such functions are methods of owners, or take `BorrowedFd` or
//!   `impl AsFd`; what closes a descriptor or gives it away takes it by value. Where the kernel looks a descriptor up
//!   after the call (`ring`), its ownership is shared until then.
//! - **What the system makes is taken once.** The socket of an accept is a value in its completion
//!   (`ring::Completion::made`, `overlapped::Outcome::Accepted`). Places in the table of a ring and its buffers
//!   (`ring::Slot`, `ring::Buffer`) are values that only a ring makes, and another ring refuses them.
//! - **To watch is to ask, and no more.** A set is given a `BorrowedFd`. From then on `select`, `poll` and the sets of
//!   Windows keep its number, and epoll what it names; they ask whether it is ready, and neither read, write nor close.
//!   Code that closes a descriptor without removing it gets reports for another one, or an error.
//! - **Errors are classified here** (`is_…` functions, `ring::SetupError`): other crates know no number of an error.
//!
//! ```compile_fail,E0308
//! # use tidegate_os::poll::{PollSet, Readiness};
//! PollSet::default().push(7, Readiness::default()); // whose is 7?
//! ```
#![deny(clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn)]

pub mod datagram;
pub mod endpoint;
pub mod file;
pub mod loopback;
pub mod pages;
#[cfg(any(target_os = "linux", windows))]
pub mod payload;
#[cfg(any(windows, all(test, target_os = "linux")))]
mod porter;
#[cfg(any(windows, all(test, target_os = "linux")))]
#[cfg_attr(not(windows), allow(unused_imports, dead_code, reason = "only its tests run here"))]
mod reuse;
#[cfg(any(windows, all(test, target_os = "linux")))]
#[cfg_attr(not(windows), allow(unused_imports, dead_code, reason = "only its tests run here"))]
mod rio;
pub mod socket;
pub mod terms;
#[cfg(any(windows, all(test, target_os = "linux")))]
#[cfg_attr(not(windows), allow(unused_imports, dead_code, reason = "only its tests run here"))]
mod transmit;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as system;
#[cfg(unix)]
pub use unix::{descriptor, extension, folder, handover, local, poll, process, select, thread, waker};

#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as system;
#[cfg(windows)]
pub use windows::{
    descriptor, event, event_set, events, extension, folder, handover, local, messages, overlapped, poll,
    port, process, registered, select, thread, waker,
};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{abstract_socket, bpf, diag, epoll, ring, shared, splice};

#[cfg(not(target_os = "linux"))]
#[path = "unspliced.rs"]
pub mod splice;
