//! Implementations of the read and write traits of tokio, futures-io and hyper.

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
