//! Which limits mean something on which model.

use tidegate_os::endpoint::Endpoint;

use super::Model;
use crate::policy::{DatagramPath, DatagramPolicy, Effect, Idle, Limit, Limited, Policy, PolicyError};

impl Model {
    /// What this model makes of a limit on this system.
    #[must_use]
    pub fn effect<P: Limited>(self, limit: &Limit<P>) -> Effect {
        let says =
            |(name, models, _): &&(&str, &[Self], Effect)| *name == limit.name && models.contains(&self);
        let of_system = super::platform::EFFECTS.iter().find(says);
        of_system.map_or_else(|| limit.on(self), |(_, _, effect)| *effect)
    }

    /// Limits that a policy sets and that change nothing on this model.
    #[must_use]
    pub fn without_effect<P: Limited>(self, policy: &P) -> Vec<Idle> {
        let set = P::limits().filter(|limit| limit.differs(policy));
        let idle = set.filter_map(|limit| match self.effect(limit) {
            Effect::NoEffect(why) => Some(Idle { name: limit.name, why }),
            Effect::Kept | Effect::Refused(_) => None,
        });
        idle.collect()
    }

    /// The policy with every limit at its default that this model does not keep: a preset as far as the model has it.
    #[must_use]
    pub fn kept_limits<P: Limited>(self, mut policy: P) -> P {
        for limit in P::limits().filter(|limit| self.effect(limit) != Effect::Kept) {
            limit.reset(&mut policy);
        }
        policy
    }
}

/// Refuses a limit that the model cannot keep and that it would be a mistake to rely on; what has no effect is
/// [listed](Model::without_effect) instead.
pub(crate) fn check<P: Limited>(model: Model, policy: &P) -> Result<(), PolicyError> {
    let refused =
        P::limits().filter(|limit| limit.differs(policy)).find_map(|limit| match model.effect(limit) {
            Effect::Refused(remedy) => {
                Some(PolicyError::NotOnModel { name: limit.name, model: model.name(), remedy })
            }
            Effect::Kept | Effect::NoEffect(_) => None,
        });
    refused.map_or(Ok(()), Err)
}

/// The same for a policy of connections, which also have to fit into the kernel memory that they may take.
pub(crate) fn check_policy(model: Model, policy: &Policy) -> Result<(), PolicyError> {
    check(model, policy)?;
    let bound = model.memory_bound(policy);
    match policy.kernel_memory {
        Some(budget) if bound.kernel() > budget as u64 => Err(PolicyError::Range {
            name: "max_connections",
            value: policy.max_connections.to_string(),
            must: format!(
                "at most {}: each takes {} bytes of the kernel on the model {model}, and `kernel_memory` is {budget}; \
                 lower the one or raise the other",
                bound.connections_within_kernel(budget as u64),
                bound.kernel_each_connection
            ),
        }),
        _ => Ok(()),
    }
}

/// Refuses a limit that is for accepted sockets on this model.
pub(crate) fn check_client(model: Model, policy: &Policy) -> Result<(), PolicyError> {
    let refused = Policy::limits().filter(|limit| limit.differs(policy)).find_map(|limit| {
        let (_, remedy) = limit.of_client.filter(|(models, _)| !models.contains(&model))?;
        Some(PolicyError::NotOnModel { name: limit.name, model: model.name(), remedy })
    });
    refused.map_or(Ok(()), Err)
}

/// Refuses a limit that a Unix socket cannot keep. [`Accept::defer`](crate::policy::Accept::defer) is on by default and
/// only spares a wake-up: it is left out there.
pub(crate) fn check_endpoint(at: &Endpoint, policy: &Policy) -> Result<(), PolicyError> {
    let refused = Policy::limits().find_map(|limit| {
        let remedy = limit.unix_socket.filter(|_| at.is_unix() && limit.differs(policy))?;
        Some(PolicyError::NotOnSocket { name: limit.name, socket: "a Unix socket", remedy })
    });
    refused.map_or(Ok(()), Err)
}

/// Refuses a limit of datagrams that the model cannot keep.
pub(crate) fn check_datagrams(model: Model, policy: &DatagramPolicy) -> Result<(), PolicyError> {
    check(model, policy)?;
    if policy.path == Some(DatagramPath::Batched) && model == Model::Uring {
        let remedy = "a ring hands over many operations with one call by nature; choose plain or gso";
        return Err(PolicyError::NotOnModel { name: "path = batched", model: model.name(), remedy });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_do_not_fit_into_the_kernel_memory_are_refused_with_the_number_that_does() {
        let policy = Policy { max_connections: 1000, kernel_memory: Some(1 << 20), ..Policy::default() };
        let text = check_policy(Model::Epoll, &policy).unwrap_err().to_string();
        assert!(text.contains("`max_connections` is 1000") && text.contains("at most 256"), "{text}");
        assert!(text.contains("`kernel_memory` is 1048576"), "{text}");
        let fits = Policy { max_connections: 256, ..policy };
        assert_eq!(check_policy(Model::Epoll, &fits), Ok(()));
        assert!(check_policy(Model::Uring, &fits).is_err(), "its operations count too");
    }
    use crate::policy::{Accept, ReceiveStyle, Wait};
    use std::num::{NonZeroU32, NonZeroUsize};

    #[test]
    fn a_limit_without_a_meaning_is_refused_by_name_and_with_a_way_out() {
        let policy = Policy { max_receiving: NonZeroUsize::new(100), ..Policy::default() };
        let text = check(Model::Pool, &policy).unwrap_err().to_string();
        assert!(
            text.contains("max_receiving") && text.contains("pool") && text.contains("threads"),
            "{text}"
        );
        assert_eq!(check(Model::Epoll, &policy), Ok(()));
        let spin = Policy { wait: Wait::Spin, ..Policy::default() };
        let reuse = Accept { reuse: NonZeroU32::new(8), ..Accept::default() };
        let reuse = Policy { accept: reuse, ..Policy::default() };
        let text = check(Model::Overlapped, &reuse).unwrap_err().to_string();
        assert!(text.contains("accept.reuse") && text.contains("iocp"), "{text}");
        assert_eq!(check(Model::Iocp, &reuse), Ok(()));
        assert!(check(Model::Blocking, &spin).is_err() && check(Model::Select, &spin).is_ok());
        for &model in Model::ALL {
            assert_eq!(check(model, &Policy::default()), Ok(()), "{model}");
        }
    }

    #[test]
    fn every_limit_is_kept_listed_or_refused_on_every_model() {
        kept_listed_or_refused::<Policy>();
        kept_listed_or_refused::<DatagramPolicy>();
    }

    fn kept_listed_or_refused<P: Limited>() {
        for limit in P::limits() {
            let policy = crate::policy::limit::tests::with_another_value(limit);
            for &model in Model::ALL {
                let listed = model.without_effect(&policy).iter().any(|idle| idle.name == limit.name);
                let refused = match check(model, &policy) {
                    Ok(()) => false,
                    // What belongs to the fast path is refused with it.
                    Err(PolicyError::NotOnModel { name, .. }) => {
                        assert!(name == limit.name || limit.needs.is_some_and(|(needed, _)| needed == name));
                        true
                    }
                    Err(e) => panic!("{e}"),
                };
                let expected = match model.effect(limit) {
                    Effect::Kept => (false, false),
                    Effect::NoEffect(_) => (true, false),
                    Effect::Refused(_) => (false, true),
                };
                assert_eq!((listed, refused), expected, "{} on {model}", limit.name);
            }
        }
    }

    #[test]
    fn a_preset_is_for_every_model_as_far_as_that_keeps_it() {
        for &model in Model::ALL {
            for preset in [Policy::default(), Policy::throughput(), Policy::connections()] {
                let policy = model.kept_limits(preset);
                assert_eq!(check(model, &policy), Ok(()), "{model}");
                assert_eq!(model.without_effect(&policy), [], "{model}");
            }
        }
        let throughput = Policy::throughput;
        assert_eq!(Model::Iocp.kept_limits(throughput()), throughput());
        assert_eq!(Model::Overlapped.kept_limits(throughput()), throughput().posted_receives(1));
        for model in [Model::Epoll, Model::Uring] {
            let one_each = throughput().posted_sends(1).posted_receives(1);
            assert_eq!(model.kept_limits(throughput()), one_each, "{model}");
        }
        for model in [Model::Iocp, Model::Overlapped, Model::Rio] {
            assert_eq!(model.kept_limits(Policy::connections()).receive, ReceiveStyle::ZeroByte, "{model}");
        }
    }

    #[test]
    fn several_sends_and_receives_are_listed_where_a_connection_has_one_of_each() {
        let policy = Policy::default().posted_sends(8).posted_receives(8);
        for &model in Model::ALL {
            let listed: Vec<_> = model.without_effect(&policy).iter().map(|idle| idle.name).collect();
            let expected: &[_] = match model {
                Model::Iocp => &[],
                Model::Overlapped => &["posted_receives"],
                _ => &["posted_sends", "posted_receives"],
            };
            assert_eq!(listed, expected, "{model}");
        }
    }

    #[test]
    fn what_is_for_accepted_sockets_is_refused_to_a_client_by_its_name() {
        let policy = Policy::default().busy_poll(Some(std::time::Duration::from_micros(50)));
        for &model in Model::ALL {
            assert_eq!(check_client(model, &Policy::default()), Ok(()), "{model}");
            let outcome = check_client(model, &policy);
            if matches!(model, Model::Epoll | Model::Uring) {
                assert_eq!(outcome, Ok(()), "{model}");
            } else {
                let is_named = |e| matches!(e, PolicyError::NotOnModel { name: "busy_poll", .. });
                assert!(outcome.is_err_and(is_named), "{model}");
            }
        }
        assert!(Policy::limit("busy_poll").is_some(), "an option is found by that name");
    }

    #[test]
    fn what_joins_datagrams_or_takes_several_is_listed_where_the_system_does_neither() {
        let policy = DatagramPolicy::default().batch(8).segments(8).segment_bytes(512);
        for &model in Model::ALL {
            let listed: Vec<_> = model.without_effect(&policy).iter().map(|idle| idle.name).collect();
            let expected: &[_] = match model {
                Model::Iocp | Model::Overlapped => &["segments", "segment_bytes"],
                Model::AsyncSelect | Model::EventSelect | Model::Rio => {
                    &["batch", "segments", "segment_bytes"]
                }
                _ if cfg!(target_os = "linux") => &[],
                _ if cfg!(windows) && model == Model::Uring => &["segments", "segment_bytes"],
                _ => &["batch", "segments", "segment_bytes"],
            };
            assert_eq!(listed, expected, "{model}");
        }
    }

    #[test]
    fn a_limit_of_datagrams_without_a_meaning_is_refused_too() {
        for &model in Model::ALL {
            assert_eq!(check_datagrams(model, &DatagramPolicy::default()), Ok(()), "{model}");
        }
        let policy = DatagramPolicy { path: Some(DatagramPath::Batched), ..DatagramPolicy::default() };
        let text = check_datagrams(Model::Uring, &policy).unwrap_err().to_string();
        assert!(text.contains("batched") && text.contains("gso"), "{text}");
        assert_eq!(check_datagrams(Model::Epoll, &policy), Ok(()));
        let policy = DatagramPolicy { wait: Wait::Spin, ..DatagramPolicy::default() };
        assert!(
            check_datagrams(Model::Pool, &policy).is_err() && check_datagrams(Model::Uring, &policy).is_ok()
        );
    }
}
