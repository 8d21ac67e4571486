//! The models of Windows.

use std::io;

use super::super::{Availability, Model, Plan, Started};
use super::not_here;
use crate::service::Service;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Poll];

/// Whether a model works here.
pub(in crate::engine) fn probe(model: Model) -> Availability {
    match model {
        Model::AsyncSelect | Model::EventSelect | Model::Overlapped | Model::Iocp | Model::Rio => {
            Availability::Unavailable("not built yet: use poll or select".into())
        }
        _ => Availability::Unavailable("a model of Linux; iocp is its counterpart on Windows".into()),
    }
}

/// Starts the threads of a model.
pub(in crate::engine) fn start<S: Service>(model: Model, _plan: Plan<S>) -> io::Result<Started> {
    Err(not_here(model))
}
