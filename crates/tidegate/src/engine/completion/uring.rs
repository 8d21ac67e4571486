//! stub
use crate::engine::Availability;
pub(crate) struct Uring;
pub(crate) fn probe() -> Availability {
    Availability::Unavailable("not built yet".into())
}
