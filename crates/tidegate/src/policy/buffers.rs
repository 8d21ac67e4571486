//! How receiving uses memory.

/// How a receive waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveStyle {
    /// A buffer is ready when data comes: from a pool shared by all connections of a thread, or one of the thread's.
    Posted,
    /// An idle connection must pin no receive buffer: the system first reports that there is data, and only then a
    /// buffer is taken and the connection drained. Every model of Linux but `blocking` works that way in either style
    /// (readiness is a report; `uring` takes a buffer out of its pool when data is there); `blocking`, whose thread has
    /// a buffer of its own, refuses it.
    ZeroByte,
}
