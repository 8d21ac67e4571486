//! [`Policy::max_receiving`] with many more connections at rest than permits: an exchange costs a few wake-ups, and not
//! a turn of each connection that has nothing to say.

use std::num::NonZeroUsize;

use tidegate::Model;

use crate::kit::{self, Echo};

on_every_model!(case);

const RESTING: usize = 50;
const EXCHANGES: usize = 9;

/// For one exchange, at most.
const WAKE_UPS: u64 = 20;

fn case(model: Model) {
    let policy = kit::with_threads(model, 1).max_receiving(NonZeroUsize::new(1));
    let Some(mut policy) = kit::kept_by(model, policy, "max_receiving") else { return };
    policy.accept.defer = None; // silent connections are to come in first
    let (service, _) = Echo::service();
    let server = kit::serve(model, policy, service);
    let connect = |n: usize| (0..n).map(|_| kit::connect(server.local_addr())).collect::<Vec<_>>();
    let resting = connect(RESTING);
    let mut active = connect(3);
    kit::until("all are in", || server.stats().accepted == RESTING as u64 + 3);
    let before = server.stats().wake_ups;
    for at in 0..EXCHANGES {
        kit::exchange(&mut active[at % 3], b"does anybody listen?");
    }
    let wake_ups = server.stats().wake_ups - before;
    assert!(wake_ups <= WAKE_UPS * EXCHANGES as u64, "{wake_ups} wake-ups for {EXCHANGES} exchanges");
    drop((resting, active));
    kit::until("all have left", || server.stats().open() == 0);
    kit::finish(server);
}
