//! Windows: Ctrl-C, no successor, no service manager that wants to be told.

pub mod handover;
pub mod manager;
pub mod signals;
