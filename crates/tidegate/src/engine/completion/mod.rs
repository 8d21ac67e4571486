//! stub
pub(super) mod uring;
use super::{Plan, Started};
use crate::service::Service;
pub(crate) fn start<P, S: Service>(_: Plan<S>) -> std::io::Result<Started> {
    Err(std::io::Error::other("not built yet"))
}
