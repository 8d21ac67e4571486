//! What a room has beyond this node: what waits to be passed on, and who is in it elsewhere.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::room::Fault;

/// Something that happens in a room, without its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// It was said, and belongs to the history.
    pub said: bool,
    /// As members read it, such as `ann: hello` or `+ bob`.
    pub text: String,
}

impl Happened {
    pub(super) fn said(text: String) -> Self {
        Self { said: true, text }
    }

    pub(super) fn noted(text: String) -> Self {
        Self { said: false, text }
    }

    /// Bytes it is counted as where such things wait: the text and what belongs to it.
    pub(super) fn cost(&self) -> usize {
        self.text.len() + 32
    }
}

/// Members of a room that live at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residents {
    /// Their number.
    pub members: usize,
    /// Some of them, if they are many.
    pub nicks: BTreeSet<Arc<str>>,
}

impl Residents {
    /// What it counts of [`FAR_NAMES`].
    fn cost(&self) -> usize {
        1 + self.nicks.len()
    }
}

/// Names of members of other nodes that are kept over all rooms, and one for each list: about 10 MB of them.
pub(super) const FAR_NAMES: usize = 100_000;

/// The part of a room that other nodes share.
#[derive(Default)]
pub(super) struct Far {
    waiting: VecDeque<Happened>,
    waiting_bytes: usize,
    /// Whether anything of this room has come yet: from then on its numbers are known.
    pub(super) is_known: bool,
    /// By node.
    elsewhere: HashMap<u64, Residents>,
}

impl Far {
    /// Keeps something until it can be passed on.
    pub(super) fn wait(&mut self, happened: Happened, most_bytes: usize) -> Result<(), Fault> {
        let cost = happened.cost();
        if self.waiting_bytes + cost > most_bytes {
            return Err(Fault::Busy);
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

    /// The first so many have found their place in the order.
    pub(super) fn passed_on(&mut self, count: usize) {
        for happened in self.waiting.drain(..count.min(self.waiting.len())) {
            self.waiting_bytes -= happened.cost();
        }
    }

    /// These live at another node now, in place of those known before. `kept` counts what is kept in all rooms; what
    /// would be too much is not.
    pub(super) fn house(&mut self, node: u64, mut residents: Residents, kept: &AtomicUsize) {
        self.forget(node, kept);
        let free = FAR_NAMES.saturating_sub(kept.load(Relaxed));
        if residents.members == 0 || free == 0 {
            return;
        }
        while residents.cost() > free {
            residents.nicks.pop_last();
        }
        kept.fetch_add(residents.cost(), Relaxed);
        self.elsewhere.insert(node, residents);
    }

    /// Forgets a node; returns how many lived there.
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
        let mut far = Far::default();
        far.wait(said("one"), 80).unwrap();
        far.wait(said("two"), 80).unwrap();
        assert_eq!(far.wait(said("three"), 80), Err(Fault::Busy));
        far.passed_on(1);
        far.wait(said("four"), 80).unwrap();
        assert_eq!(far.waiting(), [said("two"), said("four")]);
        far.passed_on(9);
        assert!(!far.has_waiting() && far.waiting_bytes == 0);
    }

    #[test]
    fn a_node_says_who_lives_there_and_takes_them_with_it() {
        let here =
            |members, nicks: &[&str]| Residents { members, nicks: nicks.iter().map(|&n| n.into()).collect() };
        let (mut far, kept) = (Far::default(), AtomicUsize::new(0));
        far.house(1, here(2, &["ann", "bob"]), &kept);
        far.house(2, here(1, &["eve"]), &kept);
        far.house(1, here(5, &["ann"]), &kept);
        assert_eq!((far.members(), kept.load(Relaxed)), (6, 4));
        assert!(far.has("eve") && !far.has("bob"));
        assert_eq!((far.forget(1, &kept), far.forget(1, &kept), far.members()), (5, 0, 1));
        far.house(2, Residents::default(), &kept);
        assert_eq!((far.nicks().count(), kept.load(Relaxed)), (0, 0));
    }

    #[test]
    fn no_more_names_are_kept_than_there_may_be_whoever_says_them() {
        let kept = AtomicUsize::new(FAR_NAMES - 3);
        let nicks = ["a", "b", "c"].map(Arc::from);
        let here = Residents { members: 3, nicks: nicks.into_iter().collect() };
        let (mut one, mut two) = (Far::default(), Far::default());
        one.house(1, here.clone(), &kept);
        assert_eq!((one.members(), one.nicks().count(), kept.load(Relaxed)), (3, 2, FAR_NAMES));
        two.house(1, here.clone(), &kept);
        assert_eq!((two.members(), two.nicks().count()), (0, 0));
        one.forget(1, &kept);
        two.house(1, here, &kept);
        assert_eq!((two.nicks().count(), kept.load(Relaxed)), (2, FAR_NAMES));
    }
}
