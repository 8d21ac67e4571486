//! How many connections the descriptors of this process leave room for.

use std::io;

use tidegate_os::pages::Residence;
use tidegate_os::process::{descriptor_limit, locked_memory_limit};

use super::Model;
use crate::policy::sends::MOST_PIPES;
use crate::policy::{Policy, accept};

/// Descriptors left to the rest of the process: standard streams, listener, logs, what the application opens.
const RESERVED: usize = 64;

/// Slots of a ring's table that are left free for connections that are refused.
const SLACK: usize = 64;

/// Descriptors a loop needs for itself: its waker, and its ring or epoll instance.
const PER_LOOP: usize = 2;

/// Descriptors of one pipe.
const DESCRIPTORS_OF_PIPE: usize = 2;

/// Descriptors that so many loops of rings need for themselves: of several, each ring has one more, by which the others
/// reach it.
fn own_of_rings(threads: usize) -> usize {
    threads.saturating_mul(if threads > 1 { PER_LOOP + 1 } else { PER_LOOP })
}

fn limit() -> usize {
    usize::try_from(descriptor_limit().0).unwrap_or(usize::MAX)
}

/// Descriptors for connections, where I/O threads take `own` for themselves. A small limit is not eaten up by the
/// reserve.
fn descriptors(limit: usize, own: usize) -> usize {
    limit.saturating_sub(RESERVED.min(limit / 4) + own)
}

/// Descriptors that one of `threads` loops with a ring may use for connections.
pub(in crate::engine) fn descriptors_of_loop(threads: usize) -> usize {
    descriptors(limit(), own_of_rings(threads)) / threads
}

/// Pipes that one of `threads` readiness loops may have: of the descriptors that nothing else needs, and of half of the
/// reserve if there are none.
pub(in crate::engine) fn pipes_of_loop(policy: &Policy, threads: usize) -> usize {
    pipes(limit(), policy.max_connections, threads)
}

fn pipes(limit: usize, connections: usize, threads: usize) -> usize {
    let free = descriptors(limit, threads.saturating_mul(PER_LOOP)).saturating_sub(connections);
    let of_reserve = RESERVED.min(limit / 4) / 2;
    (free.max(of_reserve) / DESCRIPTORS_OF_PIPE / threads.max(1)).min(MOST_PIPES)
}

/// Size of a ring's table for `share` connections, and how many of its slots connections may take.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only rings have a table"))]
pub(in crate::engine) fn table(share: usize) -> (usize, usize) {
    let table = share.saturating_add(SLACK).min(limit());
    (table, slots(table))
}

fn slots(table: usize) -> usize {
    table - SLACK.min(table / 4)
}

/// Connections of a ring with so many slots and ordinary descriptors, where each that is accepted may have dialled
/// `dials` more: those have no slot.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only rings have a table"))]
pub(in crate::engine) fn of_ring(slots: usize, descriptors: usize, dials: usize) -> usize {
    let all = slots.saturating_add(descriptors);
    descriptors.checked_div(dials).map_or(all, |each| all.min(each.max(1).saturating_mul(dials + 1)))
}

/// Whether the pool of buffers may be paged out.
pub(in crate::engine) fn residence(policy: &Policy) -> Residence {
    if policy.lock_memory { Residence::Locked } else { Residence::Pageable }
}

/// Makes sure, before any thread starts, that so many bytes of buffers may be locked.
pub(in crate::engine) fn check_locked(policy: &Policy, model: Model) -> io::Result<()> {
    let threads = model.threads(policy);
    let each = match model {
        Model::Uring => policy.buffers.next_power_of_two(),
        Model::Iocp | Model::Rio => policy.buffers,
        Model::Overlapped => policy.buffers.min(EVENT_CONNECTIONS + 1),
        _ => 1,
    };
    let bytes = (threads * each) as u64 * policy.buffer_bytes as u64;
    match locked_memory_limit() {
        Some(limit) if policy.lock_memory && bytes > limit => Err(io::Error::other(format!(
            "lock_memory needs {bytes} bytes and RLIMIT_MEMLOCK is {limit}: raise it (ulimit -l, LimitMEMLOCK=), \
             use fewer or smaller buffers, or leave lock_memory off"
        ))),
        _ => Ok(()),
    }
}

/// Workers of `pool`, where the policy leaves it open.
pub(in crate::engine) const POOL_WORKERS: usize = 256;

/// Threads of `async-select`, where the policy leaves it open: as many as in the book's table.
const WINDOW_THREADS: usize = 3;

/// Threads of a client on the models whose threads wait for 64 events each, where the policy leaves it open. They are
/// all started at once.
const EVENT_THREADS_OF_CLIENT: usize = 64;

/// Connections of one of those threads: two of its events are its own.
pub(in crate::engine) const EVENT_CONNECTIONS: usize = 62;

impl Model {
    /// I/O threads at the start where [`Policy::threads`](crate::Policy::threads) leaves it open: one for each
    /// processor this process may run on, 256 for `pool`, three for `async-select`. A server on `event-select` or
    /// `overlapped` starts more when those it has are full; see [`threads`](Self::threads). (`blocking` has two for
    /// each connection whatever the policy says.)
    #[must_use]
    pub fn default_threads(self) -> usize {
        match self {
            Self::Pool => POOL_WORKERS,
            Self::AsyncSelect => WINDOW_THREADS,
            _ => std::thread::available_parallelism().map_or(1, Into::into),
        }
    }

    /// The most I/O threads of a server under this policy: those it asks for, or
    /// [`default_threads`](Self::default_threads), or on `event-select` and `overlapped` one for each 62 of
    /// `max_connections`; and then no more than can have a share of its connections and permits. A service that dials
    /// may have another number.
    #[must_use]
    pub fn threads(self, policy: &Policy) -> usize {
        let needed = self.connections_of_thread().map(|each| policy.max_connections.div_ceil(each));
        accept::threads(policy, needed.unwrap_or(self.default_threads()), 0)
    }

    /// I/O threads of a client where its policy leaves it open.
    pub(in crate::engine) fn threads_of_client(self) -> usize {
        self.connections_of_thread().map_or(self.default_threads(), |_| EVENT_THREADS_OF_CLIENT)
    }

    /// Connections that one of its threads can have, where it waits for 64 events.
    pub(in crate::engine) fn connections_of_thread(self) -> Option<usize> {
        matches!(self, Self::EventSelect | Self::Overlapped).then_some(EVENT_CONNECTIONS)
    }

    /// Connections that the descriptor limit allows at once on this model with so many I/O threads.
    #[must_use]
    pub fn most_connections(self, threads: usize) -> usize {
        self.most_connections_within(limit(), threads, 0)
    }

    /// The same for a server that is to take at most `descriptors` of the limit, because others of this process need
    /// the rest, and whose sessions may have dialled `dials` connections each, which are counted, too
    /// ([`ServiceOptions::dials`](crate::ServiceOptions::dials)).
    #[must_use]
    pub fn most_connections_within(self, descriptors: usize, threads: usize, dials: usize) -> usize {
        self.most_under(limit(), descriptors, threads.max(1), dials)
    }

    /// Descriptors with which [`most_connections_within`](Self::most_connections_within) is at least `connections`.
    /// Never fewer, and a few more than needed; what no number of descriptors allows (64 events a thread) is not looked
    /// at.
    #[must_use]
    pub fn descriptors_for(self, connections: usize, threads: usize, dials: usize) -> usize {
        self.needed_under(limit(), connections, threads.max(1), dials)
    }

    fn most_under(self, limit: usize, part: usize, threads: usize, dials: usize) -> usize {
        let ordinary = descriptors(part, self.own_descriptors(threads));
        let of_loops = ordinary / threads * threads;
        match self {
            Self::Blocking | Self::Tokio | Self::Pool => ordinary,
            // The table of each ring is bounded by the limit, but takes nothing of it; ordinary descriptors follow.
            Self::Uring => threads.saturating_mul(of_ring(slots(limit), ordinary / threads, dials)),
            Self::EventSelect | Self::Overlapped => of_loops.min(threads.saturating_mul(EVENT_CONNECTIONS)),
            _ => of_loops,
        }
    }

    fn needed_under(self, limit: usize, connections: usize, threads: usize, dials: usize) -> usize {
        let ordinary = match self {
            Self::Uring => {
                let in_tables = threads.saturating_mul(slots(limit));
                let dialled = connections - accept::admitted(connections, dials);
                connections.saturating_sub(in_tables).max(dialled)
            }
            _ => connections,
        };
        let of_loops = ordinary.div_ceil(threads).saturating_mul(threads);
        of_loops.saturating_add(self.own_descriptors(threads)).saturating_add(RESERVED)
    }

    /// Descriptors that the I/O threads take for themselves.
    fn own_descriptors(self, threads: usize) -> usize {
        match self {
            Self::Blocking | Self::Tokio => 0,
            Self::Pool => threads, // each worker has a waker
            Self::Uring => own_of_rings(threads),
            _ => threads.saturating_mul(PER_LOOP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_follows_from_limit_and_threads() {
        assert_eq!(Model::Epoll.most_under(1024, 1024, 2, 0), 1024 - 64 - 4);
        assert_eq!(Model::Tokio.most_under(1024, 1024, 2, 0), 1024 - 64);
        assert_eq!(Model::Pool.most_under(1024, 1024, 256, 0), 1024 - 64 - 256);
        assert_eq!(Model::Uring.most_under(1024, 1024, 1, 0), 1024 - 64 - 2 + (1024 - 64));
        assert_eq!(Model::Uring.most_under(1024, 1024, 2, 0), 1024 - 64 - 6 + 2 * (1024 - 64));
        assert_eq!(Model::Uring.most_under(usize::MAX, usize::MAX, 2, 0), usize::MAX);
    }

    #[test]
    fn what_is_dialled_has_no_slot() {
        assert_eq!(of_ring(960, 477, 0), 1437);
        assert_eq!(of_ring(960, 477, 1), 2 * 477, "one descriptor for each that is accepted");
        assert_eq!(of_ring(100, 477, 1), 577);
        assert_eq!(of_ring(960, 9, 10), 11, "one, at least, may try");
    }

    #[test]
    fn pipes_take_what_connections_do_not_need() {
        assert_eq!(pipes(1 << 20, 10_000, 4), MOST_PIPES);
        assert_eq!(pipes(1024, 1024 - 64 - 4 - 40, 2), 10);
        assert_eq!(pipes(1024, 1024, 2), 8, "half of the reserve");
        assert_eq!((pipes(64, 64, 1), pipes(64, 64, 16)), (4, 0));
    }

    #[test]
    fn a_small_limit_leaves_room_too() {
        assert_eq!(Model::Uring.most_under(64, 64, 2, 0), 64 - 16 - 6 + 2 * 48);
        assert_eq!(Model::Poll.most_under(3, 3, 2, 0), 0);
    }

    #[test]
    fn the_descriptors_asked_for_suffice() {
        let bound_by_events = [Model::EventSelect, Model::Overlapped];
        for model in Model::ALL.iter().copied().filter(|model| !bound_by_events.contains(model)) {
            for (connections, threads) in [(1, 1), (7, 2), (100, 3), (5000, 256), (60_000, 2)] {
                for dials in [0, 1, 3] {
                    let needed = model.needed_under(1024, connections, threads, dials);
                    let most = model.most_under(1024, needed, threads, dials);
                    assert!(most >= connections, "{model} {connections}, {dials} dials");
                }
            }
        }
        assert_eq!(
            Model::Uring.needed_under(1024, 1900, 2, 0),
            6 + 64,
            "all of them find room in the tables"
        );
    }
}
