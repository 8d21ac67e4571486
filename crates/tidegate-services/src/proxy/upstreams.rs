//! The upstream servers: selection, skipping of failed ones, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::Endpoint;

use super::{Balance, ProxyOptions};

/// The upstream servers of a proxy.
#[derive(Debug)]
pub struct Upstreams {
    all: Box<[Upstream]>,
    balance: Balance,
    retry_after: Duration,
    /// Round-robin position, modulo their number.
    next: AtomicUsize,
    /// Clients reset because no upstream could be reached.
    unserved: AtomicU64,
    /// The origin of times.
    begun: Instant,
}

#[derive(Debug)]
struct Upstream {
    at: Endpoint,
    open: AtomicU64,
    connected: AtomicU64,
    failed: AtomicU64,
    /// Skipped until then, in milliseconds; 0 means not skipped.
    out_until: AtomicU64,
}

/// The counters of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStats {
    /// Its address.
    pub at: Endpoint,
    /// Connections to it that are open or being established.
    pub open: u64,
    /// Connections established.
    pub connected: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Whether it is currently skipped, because the last attempt failed.
    pub is_left_out: bool,
}

impl Upstreams {
    pub(super) fn new(all: Vec<Endpoint>, options: &ProxyOptions) -> Self {
        let upstream = |at| Upstream {
            at,
            open: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            out_until: AtomicU64::new(0),
        };
        Self {
            all: all.into_iter().map(upstream).collect(),
            balance: options.balance,
            retry_after: options.limits.retry_after,
            next: AtomicUsize::new(0),
            unserved: AtomicU64::new(0),
            begun: Instant::now(),
        }
    }

    /// The counters of each, in configuration order.
    #[must_use]
    pub fn stats(&self) -> Vec<UpstreamStats> {
        let now = self.millis(Instant::now());
        let stats = |upstream: &Upstream| UpstreamStats {
            at: upstream.at.clone(),
            open: upstream.open.load(Relaxed),
            connected: upstream.connected.load(Relaxed),
            failed: upstream.failed.load(Relaxed),
            is_left_out: upstream.out_until.load(Relaxed) > now,
        };
        self.all.iter().map(stats).collect()
    }

    /// Clients reset because no upstream could be reached.
    #[must_use]
    pub fn unserved(&self) -> u64 {
        self.unserved.load(Relaxed)
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// The next upstream for a client that has tried those in `tried`; `None` if none is left.
    pub(super) fn pick(self: &Arc<Self>, tried: &[usize], now: Instant) -> Option<Lease> {
        let now = self.millis(now);
        let first = self.next.fetch_add(1, Relaxed);
        let in_turn = (0..self.all.len()).map(|n| first.wrapping_add(n) % self.all.len());
        let in_turn: Vec<_> = in_turn.filter(|index| !tried.contains(index)).collect();
        let out_until = |index: usize| self.all[index].out_until.load(Relaxed);
        let mut usable = in_turn.iter().copied().filter(|&index| out_until(index) <= now);
        let chosen = match self.balance {
            Balance::RoundRobin => usable.next(),
            Balance::LeastConnections => usable.min_by_key(|&index| self.all[index].open.load(Relaxed)),
        };
        let index = chosen.or_else(|| in_turn.iter().copied().min_by_key(|&index| out_until(index)))?;
        if out_until(index) > 0 {
            self.leave_out(index, now); // others skip it until this attempt has a result
        }
        self.all[index].open.fetch_add(1, Relaxed);
        Some(Lease { upstreams: self.clone(), index })
    }

    fn leave_out(&self, index: usize, now: u64) {
        let time = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        self.all[index].out_until.store(now.saturating_add(time).max(1), Relaxed);
    }

    /// An attempt has failed.
    pub(super) fn failed(&self, index: usize, now: Instant) {
        self.all[index].failed.fetch_add(1, Relaxed);
        self.leave_out(index, self.millis(now));
    }

    /// No upstream could be reached for a client.
    pub(super) fn gave_up(&self) {
        self.unserved.fetch_add(1, Relaxed);
    }
}

/// A connection to an upstream, or the attempt to establish it.
#[derive(Debug)]
pub(super) struct Lease {
    upstreams: Arc<Upstreams>,
    index: usize,
}

impl Lease {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn at(&self) -> &Endpoint {
        &self.upstreams.all[self.index].at
    }

    /// The connection is established.
    pub(super) fn connected(&self) {
        let upstream = &self.upstreams.all[self.index];
        upstream.connected.fetch_add(1, Relaxed);
        if upstream.out_until.load(Relaxed) > 0 {
            upstream.out_until.store(0, Relaxed);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.upstreams.all[self.index].open.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: &[usize] = &[];

    fn upstreams(count: u16, balance: Balance) -> Arc<Upstreams> {
        let at = (1..=count).map(|port| Endpoint::from(std::net::SocketAddr::from(([127, 0, 0, 1], port))));
        Arc::new(Upstreams::new(at.collect(), &ProxyOptions { balance, ..ProxyOptions::default() }))
    }

    fn picks(all: &Arc<Upstreams>, count: usize, now: Instant) -> Vec<usize> {
        (0..count).map(|_| all.pick(NOBODY, now).expect("one of them").index()).collect()
    }

    #[test]
    fn each_has_its_turn() {
        let all = upstreams(3, Balance::RoundRobin);
        assert_eq!(picks(&all, 7, Instant::now()), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn who_has_the_fewest_connections_is_next() {
        let (all, now) = (upstreams(3, Balance::LeastConnections), Instant::now());
        let held: Vec<_> = (0..4).map(|_| all.pick(NOBODY, now).unwrap()).collect();
        assert_eq!(held.iter().map(Lease::index).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!(all.pick(NOBODY, now).unwrap().index(), 1);
        drop(held);
        assert!(all.stats().iter().all(|upstream| upstream.open == 0));
    }

    #[test]
    fn who_has_failed_is_left_out_and_then_tried_by_one_client() {
        let (all, now) = (upstreams(2, Balance::RoundRobin), Instant::now());
        all.failed(0, now);
        assert_eq!(picks(&all, 3, now), [1, 1, 1]);
        assert!(all.stats()[0].is_left_out);
        let later = now + Duration::from_secs(6);
        let mut tried = picks(&all, 6, later);
        tried.retain(|&index| index == 0);
        assert_eq!(tried.len(), 1, "the others wait for what becomes of that");
        let much_later = later + Duration::from_secs(6);
        let lease =
            std::iter::from_fn(|| all.pick(NOBODY, much_later)).find(|lease| lease.index() == 0).unwrap();
        lease.connected();
        assert_eq!(picks(&all, 4, much_later).iter().filter(|&&index| index == 0).count(), 2);
    }

    #[test]
    fn if_all_have_failed_they_are_tried_all_the_same_but_each_once_by_a_client() {
        let (all, now) = (upstreams(2, Balance::RoundRobin), Instant::now());
        all.failed(1, now);
        all.failed(0, now + Duration::from_millis(10));
        let first = all.pick(NOBODY, now).unwrap().index();
        assert_eq!(first, 1, "the one that was left out first");
        assert_eq!(all.pick(&[1], now).unwrap().index(), 0);
        assert!(all.pick(&[1, 0], now).is_none());
    }
}
