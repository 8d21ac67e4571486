//! Rooms that span nodes, with a list in the place of what carries them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tidegate::Policy;
use tidegate_services::chat::{Batch, Batched, Federation, Implausible, MOST_NUMBER, Received, Residents};
use tidegate_services::{Chat, ChatLimits};

use crate::members::Member;

struct Node {
    chat: Chat,
    federation: Federation,
    woken: Arc<AtomicUsize>,
}

impl Node {
    fn new(change: impl FnOnce(&mut ChatLimits)) -> Self {
        let mut limits = ChatLimits::default().lines_per_s(None);
        change(&mut limits);
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let (chat, federation) = Chat::federated(limits, move || _ = count.fetch_add(1, Relaxed));
        Self { chat, federation, woken }
    }

    fn member(&self, line: &str) -> Member {
        let mut member = Member::of_lines(&self.chat);
        member.say(line);
        member
    }

    /// What waits in the room.
    fn offer(&self) -> Batch {
        self.federation.offer("tide").expect("something waits")
    }

    fn receive(&self, batch: &Batch, batched: Batched) -> Received {
        self.federation.receive("tide", batch, batched, 0)
    }
}

/// What waits at the first node has the next place.
fn pass_on(from: &Node, to: &Node) {
    let batch = from.offer();
    assert_eq!(from.receive(&batch, Batched::Here), Received::Delivered);
    assert_eq!(to.receive(&batch, Batched::Elsewhere), Received::Delivered);
}

fn two() -> [Node; 2] {
    [(); 2].map(|()| Node::new(|_| {}))
}

#[test]
fn what_is_said_waits_for_its_place_and_is_then_heard_everywhere_once() {
    let [a, b] = two();
    let mut ann = a.member("/join tide ann");
    assert_eq!(ann.hears(), ["= joined tide as ann, 1 here, at #0"], "she has not come yet for the others");
    ann.say("hello");
    assert_eq!(ann.hears(), [""; 0]);
    assert_eq!(a.federation.to_attend().iter().map(|room| &**room).collect::<Vec<_>>(), ["tide"]);
    assert!(a.woken.load(Relaxed) > 0 && a.federation.to_attend().is_empty());
    pass_on(&a, &b);
    assert_eq!(ann.hears(), ["#1 + ann", "#2 ann: hello"]);
    let mut bob = b.member("/join tide bob");
    assert_eq!(bob.hears(), ["= joined tide as bob, 1 here, at #2", "#2 ann: hello"]);
    bob.say("hi");
    pass_on(&b, &a);
    for member in [&mut ann, &mut bob] {
        assert_eq!(member.hears(), ["#3 + bob", "#4 bob: hi"]);
    }
    assert!(a.federation.is_idle() && b.federation.is_idle());
}

#[test]
fn who_was_late_has_the_next_place_and_nothing_is_heard_twice() {
    let [a, b] = two();
    let (mut ann, mut bob) = (a.member("/join tide ann"), b.member("/join tide bob"));
    let (first, late) = (a.offer(), b.offer());
    assert_eq!((first.first, late.first), (1, 1), "both took the first place");
    assert_eq!(a.receive(&first, Batched::Here), Received::Delivered);
    assert_eq!(b.receive(&first, Batched::Elsewhere), Received::Delivered);
    // Should what carries them take both, nobody hears the second, and it waits on.
    assert_eq!(a.receive(&late, Batched::Elsewhere), Received::Void);
    assert_eq!(b.receive(&late, Batched::Here), Received::Void);
    assert_eq!(b.offer().first, 2);
    pass_on(&b, &a);
    for batch in [&first, &late] {
        assert_eq!(a.receive(batch, Batched::Elsewhere), Received::Void);
    }
    assert_eq!(ann.hears()[1..], ["#1 + ann", "#2 + bob"]);
    assert_eq!(bob.hears()[1..], ["#1 + ann", "#2 + bob"]);
}

#[test]
fn what_comes_while_something_is_under_way_waits_for_the_next_place() {
    let [a, b] = two();
    let mut ann = a.member("/join tide ann");
    let under_way = a.offer();
    ann.say("more");
    assert_eq!(a.federation.to_attend().len(), 1);
    assert_eq!(a.receive(&under_way, Batched::Here), Received::Delivered);
    assert_eq!(a.federation.to_attend().len(), 1, "something still waits");
    assert_eq!(b.receive(&under_way, Batched::Elsewhere), Received::Delivered);
    pass_on(&a, &b);
    assert_eq!(ann.hears()[1..], ["#1 + ann", "#2 ann: more"]);
}

#[test]
fn a_node_that_is_cut_off_says_so_takes_nothing_and_keeps_what_it_has_taken() {
    let [a, b] = two();
    let (mut ann, mut bob) = (a.member("/join tide ann"), b.member("/join tide bob"));
    pass_on(&a, &b);
    pass_on(&b, &a);
    bob.say("taken");
    ann.hears();
    bob.hears();
    b.federation.cut_off();
    let heard = bob.hears();
    assert!(heard[0].starts_with("= cut off: ") && heard.len() == 1, "{heard:?}");
    bob.say("refused");
    bob.say("/nick rob");
    let heard = bob.hears();
    assert!(
        heard.len() == 2 && heard.iter().all(|line| line.starts_with("! this node is cut off")),
        "{heard:?}"
    );
    bob.say("/join ebb");
    assert!(bob.hears()[0].starts_with("! this node is cut off"));
    bob.say("/who");
    assert!(bob.hears()[0].ends_with(" here: bob"), "he is where he was");
    let mut eve = b.member("/join tide eve");
    assert!(eve.hears()[0].starts_with("! this node is cut off"));
    ann.say("meanwhile");
    let meanwhile = a.offer();
    assert_eq!(a.receive(&meanwhile, Batched::Here), Received::Delivered);
    // It is back: first what it has missed.
    assert_eq!(b.receive(&meanwhile, Batched::Elsewhere), Received::Delivered);
    pass_on(&b, &a);
    b.federation.is_back();
    let heard = bob.hears();
    assert_eq!(heard[..2], ["#3 ann: meanwhile", "#4 bob: taken"]);
    assert!(heard[2].starts_with("= back: ") && heard.len() == 3, "{heard:?}");
    assert_eq!(ann.hears(), ["#3 ann: meanwhile", "#4 bob: taken"]);
    assert_eq!(b.federation.counts().refused(), 4);
}

#[test]
fn what_is_not_kept_any_more_is_said_to_be_lost_and_numbers_go_on() {
    let [a, b] = two();
    let mut ann = a.member("/join tide ann");
    let first = a.offer();
    assert_eq!(a.receive(&first, Batched::Here), Received::Delivered);
    ann.hears();
    let remote = Batch { first: 5, all: first.all.clone() };
    assert_eq!(a.receive(&remote, Batched::Elsewhere), Received::Delivered);
    assert_eq!(ann.hears(), ["= 3 messages are lost: they were removed from the broker", "#5 + ann"]);
    // Who comes to a room that is older than what is kept has missed nothing.
    assert_eq!(b.receive(&remote, Batched::Elsewhere), Received::Delivered);
    assert!(b.member("/join tide bob").hears()[0].ends_with(" at #5"));
    // And a room of which nothing was kept begins again, which is said.
    let anew = Batch { first: 1, all: first.all };
    assert_eq!(a.receive(&anew, Batched::Anew), Received::Delivered);
    let heard = ann.hears();
    assert!(heard[0].starts_with("= the broker lost this room") && heard[1] == "#1 + ann", "{heard:?}");
}

#[test]
fn who_joined_at_a_large_number_is_still_heard_when_numbers_begin_again() {
    let [a, b] = two();
    let _bob = b.member("/join tide bob");
    let old = Batch { first: 100, all: b.offer().all };
    assert_eq!(a.receive(&old, Batched::Elsewhere), Received::Delivered);
    let mut ann = a.member("/join tide ann");
    assert_eq!(a.receive(&a.offer(), Batched::Here), Received::Delivered);
    assert_eq!(ann.hears()[1..], ["#101 + ann"]);
    let anew = Batch { first: 1, all: old.all };
    assert_eq!(a.receive(&anew, Batched::Anew), Received::Delivered);
    assert_eq!(ann.hears(), ["= the broker lost this room; its numbers start again", "#1 + bob"]);
    ann.say("hello");
    assert_eq!(a.offer().all[0].text, "ann: hello");
    ann.say("/leave");
    assert_eq!(ann.hears(), ["= left"]);
}

#[test]
fn that_a_room_begins_again_is_heard_also_by_those_whose_queue_was_full() {
    let node = Node::new(|_| {});
    let mut ann = Member::under(&node.chat, Policy::default().mail_queue(1));
    ann.say("/join tide ann");
    let first = node.offer();
    let at = |first: u64, batch: &Batch| Batch { first, all: batch.all.clone() };
    assert_eq!(node.receive(&first, Batched::Here), Received::Delivered);
    // The one place in her queue is taken. She hears that numbers begin again before anything else, and then all of
    // them.
    let anew = at(1, &first);
    assert_eq!(node.receive(&anew, Batched::Anew), Received::Full(0));
    assert_eq!(ann.hears()[1..], ["#1 + ann"]);
    assert_eq!(node.receive(&anew, Batched::Anew), Received::Full(0), "the notice has taken the place");
    assert!(ann.hears()[0].starts_with("= the broker lost this room"));
    assert_eq!(node.receive(&anew, Batched::Anew), Received::Delivered);
    assert_eq!(ann.hears(), ["#1 + ann"]);
    // The same of what is lost.
    assert_eq!(node.receive(&at(2, &first), Batched::Elsewhere), Received::Delivered);
    assert_eq!(node.receive(&at(5, &first), Batched::Elsewhere), Received::Full(0));
    assert_eq!(ann.hears(), ["#2 + ann"]);
    assert_eq!(node.receive(&at(5, &first), Batched::Elsewhere), Received::Full(0));
    assert_eq!(ann.hears(), ["= 2 messages are lost: they were removed from the broker"]);
    assert_eq!(node.receive(&at(5, &first), Batched::Elsewhere), Received::Delivered);
    assert_eq!(ann.hears(), ["#5 + ann"]);
}

#[test]
fn a_bridge_that_is_gone_takes_nothing_any_more() {
    let Node { chat, federation, .. } = Node::new(|_| {});
    let mut ann = Member::of_lines(&chat);
    ann.say("/join tide ann");
    ann.hears();
    drop(federation);
    assert!(ann.hears()[0].starts_with("= cut off: "));
    ann.say("nobody carries this");
    assert!(ann.hears()[0].starts_with("! this node is cut off"));
}

#[test]
fn numbers_of_members_that_somebody_made_up_fill_rooms_and_break_nothing() {
    let node = Node::new(|limits| limits.members = 3);
    let mut ann = node.member("/join tide ann");
    ann.hears();
    for remote in [1, 2] {
        node.federation
            .set_residents(remote, "tide", Residents { members: usize::MAX, ..Residents::default() })
            .unwrap();
    }
    ann.say("/who");
    assert!(ann.hears()[0].starts_with("= 7 here: "));
    assert_eq!(node.member("/join tide bob").hears(), ["! the room is full"]);
}

#[test]
fn no_more_names_are_kept_of_members_elsewhere_than_are_listed() {
    let node = Node::new(|limits| limits.announced = 3);
    let mut ann = node.member("/join tide ann");
    ann.hears();
    let nicks = (0..1_000).map(|n| format!("n{n}").into()).collect();
    node.federation.set_residents(1, "tide", Residents { members: 1_000, nicks }).unwrap();
    ann.say("/who");
    assert_eq!(ann.hears(), ["= 1001 here: ann n0 n1"]);
    assert_eq!(node.member("/join tide n999").hears()[0], "= joined tide as n999, 1002 here, at #0");
}

#[test]
fn numbers_begin_again_where_they_end() {
    let node = Node::new(|_| {});
    let mut ann = node.member("/join tide ann");
    let last = Batch { first: MOST_NUMBER - 1, all: node.offer().all };
    assert_eq!(node.receive(&last, Batched::Elsewhere), Received::Delivered);
    let next = node.offer();
    assert_eq!((next.first, node.federation.check(&next)), (1, Ok(())));
    assert_eq!(node.receive(&next, Batched::HereAnew), Received::Delivered);
    assert!(node.federation.is_idle());
    let heard = ann.hears();
    assert_eq!(
        heard[1..],
        [
            &*format!("#{} + ann", MOST_NUMBER - 1),
            "= the broker lost this room; its numbers start again",
            "#1 + ann"
        ]
    );
}

#[test]
fn who_lives_elsewhere_is_listed_has_its_nickname_and_goes_with_its_node() {
    let [a, b] = two();
    let mut ann = a.member("/join tide ann");
    for (room, residents) in a.federation.moved() {
        b.federation.set_residents(1, &room, residents).unwrap();
    }
    assert!(a.federation.moved().is_empty() && a.federation.residents_of_all().len() == 1);
    assert!(b.member("/join tide ann").hears()[0].starts_with("! this nickname is taken in the room"));
    let mut bob = b.member("/join tide bob");
    bob.say("/who");
    assert_eq!(bob.hears(), ["= joined tide as bob, 2 here, at #0", "= 2 here: ann bob"]);
    b.federation.forget(1, Some("a"));
    assert_eq!(bob.hears(), ["= node a is lost, and 1 members with it"]);
    bob.say("/who");
    assert_eq!(bob.hears(), ["= 1 here: bob"]);
    ann.say("/leave");
    assert_eq!(a.federation.moved(), [("tide".into(), Residents::default())]);
    // What no member could be called is not believed.
    let forged = Residents { members: 1, nicks: ["\u{1b}[2J".into()].into() };
    assert_eq!(b.federation.set_residents(2, "tide", forged), Err(Implausible::Name));
    let nobody = Residents { members: 1, ..Residents::default() };
    for room in ["a b", "", "\u{1b}[2J"] {
        assert_eq!(b.federation.set_residents(2, room, nobody.clone()), Err(Implausible::Name));
    }
    bob.say("/who");
    assert_eq!(bob.hears(), ["= 1 here: bob"]);
}

#[test]
fn what_waits_is_bounded_and_so_are_rooms() {
    let node = Node::new(|limits| (limits.waiting_bytes, limits.rooms) = (2048, 1));
    let mut ann = node.member("/join tide ann");
    ann.hears();
    let text = "x".repeat(900);
    for _ in 0..3 {
        ann.say(&text);
    }
    assert_eq!(ann.hears(), ["! the room is busy; try again"]);
    let batch = node.offer();
    assert_eq!(batch.all.len(), 3);
    assert_eq!(node.federation.receive("ebb", &batch, Batched::Elsewhere, 0), Received::NoRoom);
    assert_eq!(node.receive(&batch, Batched::Here), Received::Delivered);
    ann.say(&text);
    assert_eq!(node.offer().first, 4);
    // A room in which something waits keeps its place.
    ann.say("/leave");
    assert_eq!(node.federation.receive("ebb", &batch, Batched::Elsewhere, 0), Received::NoRoom);
    assert_eq!(node.receive(&node.offer(), Batched::Here), Received::Delivered);
    assert_eq!(node.federation.receive("ebb", &batch, Batched::Elsewhere, 0), Received::Delivered);
    assert!(!node.federation.knows("tide"));
}
