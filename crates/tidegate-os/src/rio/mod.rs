//! Registered I/O (`mswsock.h`, Windows 8): requests are written into queues that the kernel reads, over memory that it
//! has mapped once.
//!
//! Everything here goes through a table of functions ([`Functions`]) and knows nothing else of Windows, so that its
//! tests give it a separate table and run on every system. Wine has no Registered I/O.

mod buffers;
#[cfg(test)]
mod fake;
mod functions;
mod requests;
#[cfg(test)]
mod tests;

pub use buffers::RioBuffer;
pub use functions::{Functions, NotifyByPort, RequestFn, RioBuf, RioResult};
pub use requests::{RequestQueue, RequestSetup, Requests, RioDone, RioOutcome};
