//! Unix: signals, a Unix socket for the successor, `sd_notify(3)`.

pub mod handover;
pub mod manager;
pub mod signals;
