//! stub
pub(super) mod duplex;
pub(super) mod pool;
