//! How receiving uses memory.

/// How a receive waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiveStyle {
    /// A buffer is ready when data arrives: from a pool shared by all connections of a thread, or the thread's single
    /// one.
    Posted,
    /// An idle connection pins no receive buffer: the system first reports that there is data, and only then a buffer
    /// is taken and the connection drained. Every model of Linux except `blocking` works that way in either style
    /// (readiness is a report; `uring` takes a buffer out of its pool when data is there); `blocking`, whose threads
    /// each own a buffer, refuses it.
    ZeroByte,
}
