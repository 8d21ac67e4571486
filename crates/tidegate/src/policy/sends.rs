//! How much may be on its way out.

/// Watermarks of a connection's outbox, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxMarks {
    /// At or below this the session is asked for more, and receiving goes on. Default 16 KiB.
    pub low: usize,
    /// At or above this the connection receives nothing more. Default 64 KiB. A connection can hold this much
    /// plus what one call of the session adds.
    pub high: usize,
}

impl Default for OutboxMarks {
    fn default() -> Self {
        Self { low: 16 * 1024, high: 64 * 1024 }
    }
}

/// Send operations that may be in flight at once. *Not enforced yet.*
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutstandingSends {
    /// For one connection; `None` leaves it to the engine.
    pub per_connection: Option<u32>,
    /// For the whole server; `None` is without limit.
    pub per_server: Option<u32>,
}
