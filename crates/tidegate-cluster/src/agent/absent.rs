//! In place of `work`, in a build without the feature `nats`.

use std::sync::atomic::AtomicBool;

use super::AgentOptions;
use crate::error::ClusterError;

/// Refuses to wait for loads.
///
/// # Errors
/// [`ClusterError::BuiltWithoutNats`], always.
pub fn serve(_: &AgentOptions, _: &AtomicBool, _: &mut dyn FnMut(&str, &str)) -> Result<(), ClusterError> {
    Err(ClusterError::BuiltWithoutNats)
}
