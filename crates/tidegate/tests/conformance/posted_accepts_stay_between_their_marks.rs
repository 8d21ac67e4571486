//! [`Accept::posted`](tidegate::policy::Accept::posted): when fewer accepts than the low mark are outstanding, they are
//! posted up to the high one, never more than there is room for; and more when a connection has found none, where the
//! system says so (FD_ACCEPT). [`Stats::accepts_posted`](tidegate::Stats) shows it.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};

use tidegate::policy::PostedAccepts;
use tidegate::{Model, Policy, Running};

use crate::kit::{self, Echo};

on_every_model!(case);

const LOW: u32 = 4;
const HIGH: u32 = 16;

/// Both marks, where a connection finds no accept.
const MARK: u32 = 8;

fn case(model: Model) {
    let one_thread = kit::policy(model).threads(NonZeroUsize::new(1));
    let marked = with_marks(&one_thread, LOW, HIGH);
    let completes = matches!(model, Model::Uring | Model::Iocp | Model::Overlapped | Model::Rio);
    if !completes {
        let threads = if model == Model::Blocking { None } else { one_thread.threads };
        let server = kit::serve(model, one_thread.threads(threads), kit::sessions(Echo::default));
        kit::exchange(&mut kit::connect(server.local_addr()), b"hello");
        assert_eq!(server.stats().accepts_posted, 0, "it has none to post");
        kit::finish(server);
        return;
    }
    let by_default = match model {
        Model::Uring => 1, // it completes without end
        Model::Overlapped => 8,
        _ => 64,
    };
    let server = kit::serve(model, one_thread.clone(), kit::sessions(Echo::default));
    are_posted(&server, by_default);
    kit::finish(server);

    let server = kit::serve(model, marked.clone().max_connections(5), kit::sessions(Echo::default));
    are_posted(&server, 5);
    kit::finish(server);

    let server = kit::serve(model, marked, kit::sessions(Echo::default));
    let (mut expected, mut streams) = (HIGH, Vec::new());
    are_posted(&server, expected);
    for _ in 0..2 * HIGH {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"it took one of them");
        streams.push(stream);
        expected = if expected == LOW { HIGH } else { expected - 1 };
        are_posted(&server, expected);
    }
    drop(streams);
    assert_eq!(kit::finish(server).accepts_posted, 0);
    if model != Model::Uring {
        who_finds_none_has_more_posted(model, with_marks(&one_thread, MARK, MARK));
    }
}

fn with_marks(policy: &Policy, low: u32, high: u32) -> Policy {
    let mut marked = policy.clone().max_connections(1000);
    let marks = NonZeroU32::new(low).zip(NonZeroU32::new(high));
    marked.accept.posted = marks.map(|(low, high)| PostedAccepts::new(low, high));
    marked
}

/// Silent connections hold half of the accepts, so that they are never all used up, and others come while the thread is
/// busy.
fn who_finds_none_has_more_posted(model: Model, policy: Policy) {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("nobody panics");
    let at_the_gate = gate.clone();
    let opened = move || {
        drop(at_the_gate.lock());
        Echo::default()
    };
    let server = kit::serve(model, policy, kit::sessions(opened));
    are_posted(&server, MARK);
    let silent: Vec<_> = (0..5 * MARK).map(|_| kit::connect(server.local_addr())).collect();
    drop(closed);
    kit::until("more are posted", || server.stats().accepts_posted > u64::from(MARK));
    kit::exchange(&mut kit::connect(server.local_addr()), b"who speaks is heard");
    drop(silent);
    kit::finish(server);
}

fn are_posted(server: &Running, accepts: u32) {
    let posted = || server.stats().accepts_posted;
    let model = server.model();
    kit::until(&format!("{accepts} accepts are posted on {model}"), || posted() == u64::from(accepts));
}
