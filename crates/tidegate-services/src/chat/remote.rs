//! A room's remote state: events waiting to be passed on, and members at other nodes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::room::RoomFault;

/// An event of a room, without its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// A message, which belongs to the history.
    pub said: bool,
    /// As shown to members, such as `ann: hello` or `+ bob`.
    pub text: String,
}

impl Happened {
    pub(super) fn said(text: String) -> Self {
        Self { said: true, text }
    }

    pub(super) fn noted(text: String) -> Self {
        Self { said: false, text }
    }

    /// Its size in queues: the text and its overhead.
    pub(super) fn cost(&self) -> usize {
        self.text.len() + 32
    }
}

/// Members of a room at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residents {
    /// Their number.
    pub members: usize,
    /// Their names, or some of them.
    pub nicks: BTreeSet<Arc<str>>,
}

impl Residents {
    /// Its share of [`REMOTE_NAMES`].
    fn cost(&self) -> usize {
        1 + self.nicks.len()
    }
}

/// Maximum names of remote members stored over all rooms, and one for each list: about 10 MB of them.
pub(super) const REMOTE_NAMES: usize = 100_000;

/// The part of a room shared with other nodes.
#[derive(Default)]
pub(super) struct RemoteRoom {
    waiting: VecDeque<Happened>,
    waiting_bytes: usize,
    /// Whether anything of this room was received: from then on its numbers are known.
    pub(super) is_known: bool,
    /// By node.
    elsewhere: HashMap<u64, Residents>,
}

impl RemoteRoom {
    /// Queues an event until it can be passed on.
    pub(super) fn wait(&mut self, happened: Happened, most_bytes: usize) -> Result<(), RoomFault> {
        let cost = happened.cost();
        if self.waiting_bytes + cost > most_bytes {
            return Err(RoomFault::Busy);
        }
        self.waiting_bytes += cost;
        self.waiting.push_back(happened);
        Ok(())
    }

    pub(super) fn waiting(&self) -> Vec<Happened> {
        self.waiting.iter().cloned().collect()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The first of these were ordered.
    pub(super) fn passed_on(&mut self, count: usize) {
        for happened in self.waiting.drain(..count.min(self.waiting.len())) {
            self.waiting_bytes -= happened.cost();
        }
    }

    /// Replaces the known members of a node. `kept` counts the stored names of all rooms; names beyond the limit are
    /// dropped.
    pub(super) fn set_residents(&mut self, node: u64, mut residents: Residents, kept: &AtomicUsize) {
        self.forget(node, kept);
        let free = REMOTE_NAMES.saturating_sub(kept.load(Relaxed));
        if residents.members == 0 || free == 0 {
            return;
        }
        while residents.cost() > free {
            residents.nicks.pop_last();
        }
        kept.fetch_add(residents.cost(), Relaxed);
        self.elsewhere.insert(node, residents);
    }

    /// Removes a node; returns the number of its members.
    pub(super) fn forget(&mut self, node: u64, kept: &AtomicUsize) -> usize {
        let Some(gone) = self.elsewhere.remove(&node) else { return 0 };
        kept.fetch_sub(gone.cost(), Relaxed);
        gone.members
    }

    pub(super) fn members(&self) -> usize {
        self.elsewhere.values().fold(0, |sum, residents| sum.saturating_add(residents.members))
    }

    pub(super) fn has(&self, nick: &str) -> bool {
        self.elsewhere.values().any(|residents| residents.nicks.contains(nick))
    }

    pub(super) fn nicks(&self) -> impl Iterator<Item = &Arc<str>> {
        self.elsewhere.values().flat_map(|residents| &residents.nicks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_leaves_in_order() {
        let said = |text: &str| Happened { said: true, text: text.into() };
        let mut remote = RemoteRoom::default();
        remote.wait(said("one"), 80).unwrap();
        remote.wait(said("two"), 80).unwrap();
        assert_eq!(remote.wait(said("three"), 80), Err(RoomFault::Busy));
        remote.passed_on(1);
        remote.wait(said("four"), 80).unwrap();
        assert_eq!(remote.waiting(), [said("two"), said("four")]);
        remote.passed_on(9);
        assert!(!remote.has_waiting() && remote.waiting_bytes == 0);
    }

    #[test]
    fn a_node_says_who_lives_there_and_takes_them_with_it() {
        let here =
            |members, nicks: &[&str]| Residents { members, nicks: nicks.iter().map(|&n| n.into()).collect() };
        let (mut remote, kept) = (RemoteRoom::default(), AtomicUsize::new(0));
        remote.set_residents(1, here(2, &["ann", "bob"]), &kept);
        remote.set_residents(2, here(1, &["eve"]), &kept);
        remote.set_residents(1, here(5, &["ann"]), &kept);
        assert_eq!((remote.members(), kept.load(Relaxed)), (6, 4));
        assert!(remote.has("eve") && !remote.has("bob"));
        assert_eq!((remote.forget(1, &kept), remote.forget(1, &kept), remote.members()), (5, 0, 1));
        remote.set_residents(2, Residents::default(), &kept);
        assert_eq!((remote.nicks().count(), kept.load(Relaxed)), (0, 0));
    }

    #[test]
    fn the_number_of_names_is_bounded_whatever_node_sends_them() {
        let kept = AtomicUsize::new(REMOTE_NAMES - 3);
        let nicks = ["a", "b", "c"].map(Arc::from);
        let here = Residents { members: 3, nicks: nicks.into_iter().collect() };
        let (mut one, mut two) = (RemoteRoom::default(), RemoteRoom::default());
        one.set_residents(1, here.clone(), &kept);
        assert_eq!((one.members(), one.nicks().count(), kept.load(Relaxed)), (3, 2, REMOTE_NAMES));
        two.set_residents(1, here.clone(), &kept);
        assert_eq!((two.members(), two.nicks().count()), (0, 0));
        one.forget(1, &kept);
        two.set_residents(1, here, &kept);
        assert_eq!((two.nicks().count(), kept.load(Relaxed)), (2, REMOTE_NAMES));
    }
}
