//! The models of Windows.

use std::io;

use super::super::{Availability, Model, Plan, Started, completion};
use super::not_here;
use crate::service::Service;

/// What `auto` tries, best first.
pub(in crate::engine) const BEST: &[Model] = &[Model::Iocp, Model::Poll];

/// Whether a model works here.
pub(in crate::engine) fn probe(model: Model) -> Availability {
    match model {
        Model::Iocp => completion::iocp::probe(),
        Model::Overlapped => completion::overlapped::probe(),
        Model::AsyncSelect | Model::EventSelect | Model::Rio => Availability::Unavailable(
            "tidegate has no engine for it yet; use iocp, overlapped, poll or select".into(),
        ),
        _ => Availability::Unavailable("a model of Linux; iocp is its counterpart on Windows".into()),
    }
}

/// Starts the threads of a model.
pub(in crate::engine) fn start<S: Service>(model: Model, plan: Plan<S>) -> io::Result<Started> {
    match model {
        Model::Iocp => completion::start::<completion::iocp::Iocp, S>(plan, model, completion::iocp::open),
        Model::Overlapped => completion::start::<completion::overlapped::Overlapped, S>(
            plan,
            model,
            completion::overlapped::open,
        ),
        other => Err(not_here(other)),
    }
}
