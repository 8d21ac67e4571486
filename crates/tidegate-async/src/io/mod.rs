//! The reading and writing traits of others, over the bytes of a connection.

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
