//! [`Running::set_policy`](tidegate::Running::set_policy): other limits hold at once, for open connections too; those
//! that were laid out at the start are refused by name.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use tidegate::policy::WhenFull;
use tidegate::{CloseReason, Model, PolicyError};

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

fn case(model: Model) {
    let (service, _) = Echo::service();
    let has_loop = !matches!(model, Model::Blocking | Model::Pool | Model::Tokio);
    let mut policy = kit::with_threads(model, 1);
    if has_loop {
        policy.threads = NonZeroUsize::new(1); // one permit is enough
    }
    policy.accept.defer = None;
    let server = kit::serve(model, policy.clone(), service);
    let mut streams: Vec<_> = (0..4).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"before"));

    let fixed = policy.clone().mail_queue(7);
    assert_eq!(server.set_policy(fixed), Err(PolicyError::Fixed("mail_queue")));
    let wrong = policy.clone().drain_budget(0);
    assert!(matches!(server.set_policy(wrong), Err(PolicyError::Range { name: "drain_budget", .. })));

    let full = policy.clone().max_connections(4).when_full(WhenFull::Refuse);
    server.set_policy(full.clone()).expect("fewer connections");
    // The order may come a moment after the call.
    kit::until("a connection is refused", || {
        let mut late = kit::connect(server.local_addr());
        late.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
        let heard = kit::hear_some(&mut late, &mut [0]);
        heard.is_ok_and(|n| n == 0) && server.stats().refused > 0
    });
    if has_loop {
        let narrow = full.clone().max_receiving(NonZeroUsize::new(1));
        server.set_policy(narrow).expect("a lower limit");
        for _ in 0..3 {
            streams.iter_mut().for_each(|stream| kit::exchange(stream, b"one after the other"));
        }
        server.set_policy(full).expect("no limit");
        streams.iter_mut().for_each(|stream| kit::exchange(stream, b"all at once"));
    }
    let brief = policy.idle_timeout(Some(Duration::from_millis(200))).first_byte_timeout(None);
    server.set_policy(brief).expect("a shorter time limit");
    for mut stream in streams {
        assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
    }
    kit::until("all are counted", || server.stats().closed_by(CloseReason::IdleTimeout) >= 4);
    kit::finish(server);
    if has_loop {
        permits_are_not_fewer_than_threads(model);
    }
    more_connections_than_at_the_start(model);
}

/// What the kernel and the threads can have bounds them, not what was asked for at the start.
fn more_connections_than_at_the_start(model: Model) {
    let (service, _) = Echo::service();
    let mut policy = kit::with_threads(model, 1).max_connections(1);
    if !matches!(model, Model::Blocking | Model::Pool | Model::Tokio) {
        policy.threads = NonZeroUsize::new(1); // each has a share
    }
    let server = kit::serve(model, policy.clone(), service);
    let mut streams = vec![kit::connect(server.local_addr())];
    kit::exchange(&mut streams[0], b"the only one");
    server.set_policy(policy.max_connections(5)).expect("more connections");
    for _ in 0..4 {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"one more");
        streams.push(stream);
    }
    drop(streams);
    kit::finish(server);
}

/// Each thread has its share of them, and a share of none would keep connections waiting forever.
fn permits_are_not_fewer_than_threads(model: Model) {
    let (service, _) = Echo::service();
    let policy = kit::policy(model).threads(NonZeroUsize::new(2));
    let server = kit::serve(model, policy.clone(), service);
    let sends = |n| policy.clone().outstanding_sends(NonZeroU32::new(n));
    let refused = server.set_policy(sends(1));
    assert!(matches!(refused, Err(PolicyError::Conflict { name: "outstanding_sends", .. })), "{refused:?}");
    assert_eq!(server.set_policy(sends(2)), Ok(()));
    kit::exchange(&mut kit::connect(server.local_addr()), b"with a permit");
    kit::finish(server);

    // The same for the default number of threads; no more are started than there are permits.
    let (service, _) = Echo::service();
    let policy = policy.threads(None);
    let server = kit::serve(model, policy.clone(), service);
    if server.thread_stats().len() > 1 {
        let refused = server.set_policy(policy.clone().outstanding_sends(NonZeroU32::new(1)));
        assert!(matches!(refused, Err(PolicyError::Range { name: "outstanding_sends", .. })), "{refused:?}");
    }
    kit::finish(server);
    let (service, _) = Echo::service();
    let server = kit::serve(model, policy.outstanding_sends(NonZeroU32::new(1)), service);
    assert_eq!(server.thread_stats().len(), 1);
    kit::finish(server);
}
