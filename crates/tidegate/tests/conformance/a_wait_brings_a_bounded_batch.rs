//! [`Policy::events_per_wait`](tidegate::Policy::events_per_wait): a wait brings no more events, however many are
//! there, and the rest of them by the next waits, without any delay.

use std::io::Write;
use std::num::NonZeroUsize;

use tidegate::Model;

use crate::kit::{self, HoldableEcho};

on_every_model!(case);

const LIMIT: usize = 4;
const CLIENTS: usize = 40;
const ECHO: &[u8] = b"e";

fn case(model: Model) {
    if matches!(model, Model::Blocking | Model::Pool | Model::Tokio) {
        return; // no wait of theirs is for several connections; the policy says that the limit has no effect
    }
    let policy = kit::policy(model).events_per_wait(LIMIT);
    let grows = matches!(model, Model::EventSelect | Model::Overlapped);
    let policy = if grows { policy } else { policy.threads(NonZeroUsize::new(1)) };
    let (service, thread) = HoldableEcho::service();
    let server = kit::serve(model, policy, service);

    let mut streams: Vec<_> = (0..CLIENTS).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, ECHO));
    let mut first = kit::connect(server.local_addr());
    thread.hold(&mut first);
    streams.iter_mut().for_each(|stream| stream.write_all(ECHO).expect("send"));
    thread.release();
    streams.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 1), ECHO));
    assert_eq!(kit::hear(&mut first, 1), HoldableEcho::HOLD);

    drop((streams, first));
    let most = kit::finish(server).largest_batch;
    match model {
        _ if kit::is_fast() => {} // what is in shared memory is found without a wait
        Model::Epoll | Model::Uring | Model::AsyncSelect | Model::Iocp | Model::Rio => {
            assert!(most <= LIMIT as u64, "a wait brought {most} events");
        }
        Model::Select | Model::Poll => assert!(most > LIMIT as u64, "it has an effect: {most} events at most"),
        _ => {} // one wait for each of its threads, of which there may be several
    }
}
