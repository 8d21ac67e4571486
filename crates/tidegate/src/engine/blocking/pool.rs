//! stub
use super::super::{Availability, Plan, Started};
use crate::service::Service;
use std::io;
pub(crate) fn probe() -> Availability {
    Availability::Unavailable("not built yet".into())
}
pub(crate) fn start<S: Service>(_: Plan<S>) -> io::Result<Started> {
    Err(io::Error::other("not built yet"))
}
