//! Files out of sockets on Windows (`TransmitFile`, `TransmitPackets`): what comes before a part of a file, the part,
//! and what comes after it, in one operation.
//!
//! Everything here goes through a table of functions ([`Functions`]) and knows nothing else of Windows, so that its
//! tests give it a separate table and run on every system. Wine has no `TransmitPackets`.

#[cfg(test)]
mod fake;
mod functions;
mod parts;
#[cfg(test)]
mod tests;
mod transmission;

pub use functions::{Element, FileBuffers, Functions, RawOverlapped, TransmitFile, TransmitPackets};
pub(crate) use parts::copy;
pub use parts::{Left, Parts};
pub use transmission::{Transmission, TransmitStart};
