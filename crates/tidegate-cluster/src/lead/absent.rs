//! In place of `conduct`, in a build without the feature `nats`.

use std::sync::atomic::AtomicBool;

use tidegate_load::{Plan, Report, RunEvent};

use super::LeadOptions;
use crate::error::ClusterError;
use crate::order::TlsOrder;

/// Refuses to run a plan on agents.
///
/// # Errors
/// [`ClusterError::BuiltWithoutNats`], always.
pub fn carry_out(
    _: &LeadOptions,
    _: &Plan,
    _: Option<TlsOrder>,
    _: &AtomicBool,
    _: &mut dyn FnMut(RunEvent<'_>),
) -> Result<Report, ClusterError> {
    Err(ClusterError::BuiltWithoutNats)
}
