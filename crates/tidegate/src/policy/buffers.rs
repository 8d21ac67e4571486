//! How receiving uses memory.

/// How a receive waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveStyle {
    /// A buffer is ready when data comes: from a pool shared by all connections of a thread, or one of the thread's.
    Posted,
    /// A receive of zero bytes reports data and pins no buffer; then the connection is drained. *Not enforced yet.*
    ZeroByte,
}
