//! Which limits mean something on which model.

use tidegate_os::endpoint::Endpoint;

use super::Model;
use crate::policy::{DatagramPath, DatagramPolicy, Policy, PolicyError, ReceiveStyle, Wait};

/// Refuses a limit that the model cannot keep, rather than ignoring it.
pub(crate) fn check(model: Model, policy: &Policy) -> Result<(), PolicyError> {
    let loops = !matches!(model, Model::Blocking | Model::Pool | Model::Tokio);
    let completes = matches!(model, Model::Uring | Model::Overlapped | Model::Iocp | Model::Rio);
    let rules = [
        (
            policy.wait != Wait::Block && !loops,
            "wait",
            "choose a model with a loop of its own, such as epoll",
        ),
        (policy.lock_memory && !loops, "lock_memory", "it has no pool of buffers; choose epoll or uring"),
        (
            policy.outstanding_sends.is_some() && !loops,
            "outstanding_sends",
            "its threads or the library do the sending; choose epoll or uring, or limit threads and max_connections",
        ),
        (
            policy.window.is_some() && !loops,
            "window",
            "choose epoll or uring; on pool the number of threads is the window",
        ),
        (
            policy.receive == ReceiveStyle::ZeroByte && model == Model::Blocking,
            "receive = ZeroByte",
            "each of its threads has a buffer; choose any other model",
        ),
        (
            policy.accept.posted.is_some() && !completes,
            "accept.posted",
            "it posts no accepts; set accept.batch and backlog instead",
        ),
        (
            policy.accept.reuse.is_some() && model != Model::Iocp,
            "accept.reuse",
            "only iocp accepts with sockets that it has; leave it out",
        ),
    ];
    let kept = (
        policy.window.is_some() && model == Model::Rio,
        "window",
        "a request cannot be taken back; choose iocp",
    );
    let polls_cards = matches!(
        model,
        Model::Blocking | Model::Pool | Model::Select | Model::Poll | Model::Epoll | Model::Uring
    );
    let cards = (policy.busy_poll.is_some() && !polls_cards, "busy_poll", "choose epoll or uring on Linux");
    let detour = policy.fast_path.and_then(|fast| super::platform::no_fast_path(model, &fast));
    let fast = (detour.is_some(), "fast_path", detour.unwrap_or_default());
    match rules.into_iter().chain([cards, fast, kept]).find(|(broken, ..)| *broken) {
        Some((_, name, remedy)) => Err(PolicyError::NotOnModel { name, model: model.name(), remedy }),
        None => Ok(()),
    }
}

/// Refuses a limit that is for accepted sockets on this model.
pub(crate) fn check_client(model: Model, policy: &Policy) -> Result<(), PolicyError> {
    match policy.busy_poll {
        Some(_) if !matches!(model, Model::Epoll | Model::Uring) => Err(PolicyError::NotOnModel {
            name: "busy_poll of a client",
            model: model.name(),
            remedy: "choose epoll or uring",
        }),
        _ => Ok(()),
    }
}

/// Refuses a limit that a Unix socket cannot keep. [`Accept::defer`](crate::policy::Accept::defer) is on by default and only
/// spares a wake-up: it is left out there.
pub(crate) fn check_endpoint(at: &Endpoint, policy: &Policy) -> Result<(), PolicyError> {
    let buffers =
        "its listener does not pass buffer sizes on (unix(7)); leave it out, or set net.core.wmem_default";
    let rules = [
        (
            policy.accept.fast_open.is_some(),
            "accept.fast_open",
            "it has no handshake to shorten; leave it out",
        ),
        (policy.socket_send_buffer.is_some(), "socket_send_buffer", buffers),
        (policy.socket_receive_buffer.is_some(), "socket_receive_buffer", buffers),
    ];
    let card = "there is no network card behind it; leave it out";
    let rules = rules.into_iter().chain([(policy.busy_poll.is_some(), "busy_poll", card)]);
    match rules.into_iter().find(|(broken, ..)| *broken && at.is_unix()) {
        Some((_, name, remedy)) => Err(PolicyError::NotOnSocket { name, socket: "a Unix socket", remedy }),
        None => Ok(()),
    }
}

/// The same for datagrams.
pub(crate) fn check_datagrams(model: Model, policy: &DatagramPolicy) -> Result<(), PolicyError> {
    let loops = !matches!(model, Model::Blocking | Model::Pool | Model::Tokio);
    let rules = [
        (
            policy.wait != Wait::Block && !loops,
            "wait",
            "choose a model with a loop of its own, such as epoll",
        ),
        (
            policy.path == Some(DatagramPath::Batched) && model == Model::Uring,
            "path = batched",
            "a ring hands over many operations with one call by nature; choose plain or gso",
        ),
    ];
    match rules.into_iter().find(|(broken, ..)| *broken) {
        Some((_, name, remedy)) => Err(PolicyError::NotOnModel { name, model: model.name(), remedy }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Accept;
    use std::num::{NonZeroU32, NonZeroUsize};

    #[test]
    fn a_limit_without_a_meaning_is_refused_by_name_and_with_a_way_out() {
        let policy = Policy { window: NonZeroUsize::new(100), ..Policy::default() };
        let text = check(Model::Pool, &policy).unwrap_err().to_string();
        assert!(text.contains("window") && text.contains("pool") && text.contains("threads"), "{text}");
        assert_eq!(check(Model::Epoll, &policy), Ok(()));
        let spin = Policy { wait: Wait::Spin, ..Policy::default() };
        let reuse = Accept { reuse: NonZeroU32::new(8), ..Accept::default() };
        let reuse = Policy { accept: reuse, ..Policy::default() };
        let text = check(Model::Overlapped, &reuse).unwrap_err().to_string();
        assert!(text.contains("accept.reuse") && text.contains("iocp"), "{text}");
        assert_eq!(check(Model::Iocp, &reuse), Ok(()));
        assert!(check(Model::Blocking, &spin).is_err() && check(Model::Select, &spin).is_ok());
        for model in Model::ALL {
            assert_eq!(check(model, &Policy::default()), Ok(()), "{model}");
        }
    }
    #[test]
    fn a_limit_of_datagrams_without_a_meaning_is_refused_too() {
        for model in Model::ALL {
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
