//! The limits of one round: often tight, so that every bound is met.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use tidegate::policy::{OutboxMarks, PostedAccepts, ReceiveStyle, WhenFull};
use tidegate::{Model, Policy};

use crate::random::Random;

/// Longer than TCP keeps silent when it loses a packet again and again: after a lost SYN it waits for 3, 6, 12, 24 s.
const IDLE: Duration = Duration::from_secs(100);

/// Of a round with at most `callers` connections at once. With `lossy` a reset may be lost, and its connection is found
/// idle.
pub fn limits(model: Model, random: &mut Random, callers: usize, lossy: bool) -> Policy {
    let default = Policy::default();
    // Who waits for a place may be in one hand with those that hold one: there is a place for each.
    let room = callers + random.below(4) as usize + if lossy { callers } else { 0 };
    let refuses = random.one_in(6);
    let mut policy = default
        .max_connections(if refuses { (callers / 2).max(4) } else { room.max(4) })
        .when_full(if refuses { WhenFull::Refuse } else { WhenFull::Wait })
        .first_byte_timeout(None)
        .send_timeout(None)
        .idle_timeout(lossy.then_some(IDLE))
        .linger_timeout(Duration::from_secs(30))
        .thread_stack_bytes(Some(256 * 1024));
    if random.one_in(2) {
        policy.buffer_bytes = 4096;
        policy.outbox = OutboxMarks::default().low(1).high(4096);
        policy.buffers = 2;
    }
    if random.one_in(3) {
        (policy.socket_send_buffer, policy.socket_receive_buffer) = (Some(8 * 1024), Some(8 * 1024));
    }
    if random.one_in(3) {
        (policy.drain_budget, policy.events_per_wait, policy.accept.batch) = (1, 1, 1);
    }
    if random.one_in(2) {
        policy.accept.defer = None;
    }
    threads(model, random, &mut policy);
    policy
}

fn threads(model: Model, random: &mut Random, policy: &mut Policy) {
    let count = match model {
        Model::Blocking | Model::EventSelect | Model::Overlapped => None,
        Model::Pool => Some(policy.max_connections),
        _ => Some(1 + random.below(2) as usize),
    };
    policy.threads = count.and_then(NonZeroUsize::new);
    // Each I/O thread has an equal share of the places, and clients are not spread equally.
    if model != Model::Blocking && model != Model::Pool && policy.when_full == WhenFull::Wait {
        policy.max_connections += policy.threads.map_or(0, NonZeroUsize::get);
    }
    if model != Model::Blocking && random.one_in(4) {
        policy.receive = ReceiveStyle::ZeroByte;
    }
    if model == Model::Uring && random.one_in(2) {
        let one = NonZeroU32::MIN;
        policy.accept.posted = Some(PostedAccepts::new(one, one.saturating_add(random.below(4) as u32)));
    }
}
