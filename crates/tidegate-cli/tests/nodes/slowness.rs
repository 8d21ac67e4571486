//! A broker, or the way to it, that is only slow: messages arrive late, once and in order, and members learn who is
//! cut off.

use crate::harness;
use libtest_mimic::Trial;
use std::time::Duration;

use rustix::process::Signal;

use crate::kit::finish;
use crate::node::{Member, Node, SOON, Store, counted};
use crate::relay::{Relay, Way};
use crate::rooms::{begin_load, load};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            a_slow_broker_delays_what_is_said_and_does_nothing_else,
            what_a_node_did_not_hear_in_time_it_hears_later_and_says_that_it_was_cut_off,
            a_load_goes_on_over_a_broker_that_stands_still_for_a_moment,
            what_a_node_refuses_and_that_it_is_cut_off_is_published
        ],
    )
}

/// A node whose way to the broker is slow.
fn slow_node(store: &Store, name: &str, delays: [Duration; 2], args: &[&str]) -> (Relay, Node) {
    let relay = Relay::start(&store.url(), delays);
    let node = Node::start(&relay.url, name, args);
    (relay, node)
}

const NOT: Duration = Duration::ZERO;

/// What was taken was heard by all, once and in order.
fn assert_right(report: &serde_json::Value) {
    for count in ["wrong", "undelivered", "lost_members"] {
        assert_eq!(report[count], 0, "{count}: {report}");
    }
}

fn a_slow_broker_delays_what_is_said_and_does_nothing_else() {
    let store = Store::new().expect("nats-server");
    let slow = Duration::from_millis(300);
    // One is as slow to it as from it, and one is slow in one direction only.
    let (_to_a, a) = slow_node(&store, "a", [slow; 2], &[]);
    let (_to_b, b) = slow_node(&store, "b", [NOT, slow], &[]);
    let args = ["-c", "40", "--rooms", "2", "--speakers", "8", "--rate", "20", "-n", "80"];
    let report = load(&[&a, &b], &args);
    assert_right(&report);
    let counts = ["said", "delivered", "refused"].map(|count| report[count].as_u64().unwrap());
    assert_eq!(counts, [80, 80 * 20, 0], "{report}");
}

fn what_a_node_did_not_hear_in_time_it_hears_later_and_says_that_it_was_cut_off() {
    for way in [Way::ToBroker, Way::FromBroker] {
        let store = Store::new().expect("nats-server");
        let (relay, a) = slow_node(&store, "a", [NOT; 2], &SOON);
        let b = Node::start(&store.url(), "b", &SOON);
        let (mut ann, mut bob) = (Member::join(&a, "tide", "ann"), Member::join(&b, "tide", "bob"));
        ann.ask_until("/who", |line| line == "= 2 here: ann bob");
        bob.ask_until("/who", |line| line == "= 2 here: ann bob");
        loop {
            relay.hold(&[way]);
            if ann.says_before_cut_off("before anybody knew") {
                break;
            }
            // This process stood still for so long that it was refused.
            relay.let_go();
            ann.hear_line(|line| line.starts_with("= back: "));
        }
        ann.say("nobody hears this");
        ann.hear_line(|line| line.starts_with("! this node is cut off"));
        if way == Way::ToBroker {
            bob.hear_line(|line| line == "= node a is lost, and 1 members with it");
        }
        bob.say("meanwhile");
        bob.hear_line(|line| line.ends_with("bob: meanwhile"));
        // All that was kept on the way comes at once, old beats and old answers too.
        relay.let_go();
        ann.hear_line(|line| line.starts_with("= back: "));
        ann.say("after");
        bob.say("after all");
        for member in [&mut ann, &mut bob] {
            member.hear_both("ann: after", "bob: after all");
            member.assert_in_order();
            let count = |text: &str| member.all.iter().filter(|line| line.ends_with(text)).count();
            assert_eq!(
                ["before anybody knew", "bob: meanwhile", "nobody hears this"].map(count),
                [1, 1, 0],
                "{way:?}: {:?}",
                member.all
            );
        }
        let place = |text: &str| ann.all.iter().rposition(|line| line.contains(text)).unwrap();
        assert!(place("= cut off: ") < place("= back: ") && place("bob: meanwhile") < place("= back: "));
        ann.ask_until("/who", |line| line == "= 2 here: ann bob");
        bob.ask_until("/who", |line| line == "= 2 here: ann bob");
    }
}

fn a_load_goes_on_over_a_broker_that_stands_still_for_a_moment() {
    let store = Store::new().expect("nats-server");
    let (a, b) = (Node::start(&store.url(), "a", &SOON), Node::start(&store.url(), "b", &SOON));
    let mut watcher = Member::join(&b, "load0", "watcher");
    let child = begin_load(&[&a, &b], &["-c", "40", "--speakers", "4", "--rate", "40", "-n", "160"]);
    // Once for less than anybody notices, and once for so long that nodes are cut off.
    for time in [1_500, 8_000].map(Duration::from_millis) {
        watcher.hear_line(|line| line.contains(": tg "));
        store.signal(Signal::STOP);
        std::thread::sleep(time); // it is suspended
        store.signal(Signal::CONT);
    }
    let output = finish(child);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_right(&report);
    assert!(report["said"].as_u64().unwrap() > 0, "{report}");
    watcher.assert_in_order();
}

fn what_a_node_refuses_and_that_it_is_cut_off_is_published() {
    let store = Store::new().expect("nats-server");
    let relay = Relay::start(&store.url(), [NOT; 2]);
    let (node, page) =
        Node::with_metrics(&relay.url, "a", &["--waiting-bytes", "4KiB", "--node-timeout", "10s"]);
    let of = |name: &str, rest: &str| counted(&page, &format!("{name}{{{rest}server=\"chat\"}}"));
    let refused = |reason: &str| of("tidegate_chat_node_refused_total", &format!("reason=\"{reason}\","));
    let mut ann = Member::join(&node, "tide", "ann");
    assert_eq!((refused("busy"), refused("cut-off"), of("tidegate_chat_node_is_cut_off", "")), (0, 0, 0));
    assert_eq!(
        (of("tidegate_chat_node_cut_offs_total", ""), of("tidegate_chat_node_waits_total", "")),
        (0, 0)
    );
    // Its broker takes nothing any more: 4 KiB wait, and the rest is refused.
    relay.hold(&[Way::ToBroker]);
    let line = "x".repeat(900);
    for _ in 0..6 {
        ann.say(&line);
    }
    ann.hear_line(|line| line.starts_with("! the room is busy"));
    ann.hear_line(|line| line.starts_with("= cut off: "));
    ann.say("nobody hears this");
    ann.hear_line(|line| line.starts_with("! this node is cut off"));
    assert!(refused("busy") >= 1 && refused("cut-off") >= 1);
    assert_eq!(of("tidegate_chat_node_is_cut_off", ""), 1);
    relay.let_go();
    ann.hear_line(|line| line.starts_with("= back: "));
    assert_eq!(
        (of("tidegate_chat_node_is_cut_off", ""), of("tidegate_chat_node_cut_offs_total", "")),
        (0, 1)
    );
}
