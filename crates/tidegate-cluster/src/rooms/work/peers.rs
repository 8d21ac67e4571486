//! The other nodes, and how long they have been silent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most nodes that are known at once; there is no reason for more but somebody who makes them up.
const MOST: usize = 128;

#[derive(Debug)]
struct PeerNode {
    name: String,
    heard: Instant,
}

/// The other nodes that live.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<u64, PeerNode>);

impl Peers {
    /// A node lives; true if it was not known.
    pub(super) fn hear(&mut self, node: u64, name: &str, now: Instant) -> bool {
        if let Some(peer) = self.0.get_mut(&node) {
            peer.heard = now;
            return false;
        }
        if self.0.len() >= MOST {
            return false;
        }
        self.0.insert(node, PeerNode { name: name.to_owned(), heard: now });
        true
    }

    pub(super) fn knows(&self, node: u64) -> bool {
        self.0.contains_key(&node)
    }

    /// A node has said goodbye; its name if it was known.
    pub(super) fn leave(&mut self, node: u64) -> Option<String> {
        self.0.remove(&node).map(|peer| peer.name)
    }

    /// Takes out those that were silent for longer than that.
    pub(super) fn silent(&mut self, timeout: Duration, now: Instant) -> Vec<(u64, String)> {
        let is_silent = |peer: &PeerNode| now.saturating_duration_since(peer.heard) > timeout;
        let gone: Vec<u64> =
            self.0.iter().filter(|(_, peer)| is_silent(peer)).map(|(&node, _)| node).collect();
        gone.into_iter().filter_map(|node| Some((node, self.leave(node)?))).collect()
    }

    /// Silence is not held against anybody until now: we could not hear.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.0.values_mut().for_each(|peer| peer.heard = now);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_for_too_long_is_gone_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut peers = Peers::default();
        assert!(
            peers.hear(1, "a", start) && peers.hear(2, "b", start) && !peers.hear(2, "b", start + second)
        );
        assert!(peers.silent(second, start + second).is_empty());
        assert_eq!(peers.silent(second, start + second + second / 2), [(1, "a".to_owned())]);
        assert!(!peers.knows(1) && peers.knows(2) && peers.len() == 1);
        peers.excuse(start + 10 * second);
        assert!(peers.silent(second, start + 11 * second).is_empty());
        assert_eq!(peers.leave(2).as_deref(), Some("b"));
    }
}
