//! Rooms over several nodes.

use std::process::Command;

use libtest_mimic::Trial;

use crate::kit::{TIDEGATE, finish, stderr};
use crate::node::{Member, Node, SOON, Store, counted};
use rustix::process::Signal;

pub(crate) fn trials() -> Vec<Trial> {
    crate::harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            members_at_two_nodes_talk_in_one_order_and_who_comes_late_sees_what_was_said,
            two_thousand_members_hear_everything_once_and_in_order,
            a_node_that_is_cut_off_says_so_and_rejoins_without_loss,
            a_load_goes_on_over_a_broker_that_is_started_again,
            a_node_that_is_killed_is_missed_and_its_members_are_gone,
            a_stream_that_is_lost_or_keeps_too_little_is_said_and_numbers_go_on,
            a_node_that_slept_while_the_stream_was_lost_reads_the_new_one,
            a_message_that_somebody_deleted_is_waited_for_by_nobody,
            a_room_whose_place_was_needed_goes_on_with_its_numbers,
            what_cannot_work_is_said_before_anything_starts
        ],
    )
}

/// A load of the messenger over these nodes; its result.
pub fn load(nodes: &[&Node], args: &[&str]) -> serde_json::Value {
    let output = finish(begin_load(nodes, args));
    assert!(output.status.success(), "{} {}", stderr(&output), String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn begin_load(nodes: &[&Node], args: &[&str]) -> std::process::Child {
    Command::new(TIDEGATE)
        .args(["load", "chat", "--json", "-", "--timeout", "30"])
        .args(nodes.iter().map(|node| &node.url))
        .args(args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

fn members_at_two_nodes_talk_in_one_order_and_who_comes_late_sees_what_was_said() {
    let store = Store::new().expect("nats-server");
    let (a, b) = (Node::start(&store.url(), "a", &[]), Node::start(&store.url(), "b", &[]));
    let (mut ann, mut bob) = (Member::join(&a, "tide", "ann"), Member::join(&b, "tide", "bob"));
    ann.say("hello");
    bob.say("hi");
    let heard = ann.hear_two("bob: hi", "ann: hello");
    assert_eq!(bob.hear_two("bob: hi", "ann: hello"), heard, "one order");
    // A node that comes late, and a name that would be another subject.
    let c = Node::start(&store.url(), "c", &[]);
    let mut eve = Member::join(&c, "tide", "eve");
    assert_eq!(eve.hear_said(), heard[0]);
    assert_eq!(eve.hear_said(), heard[1]);
    let (mut x, mut y) = (Member::join(&a, "a.潮_", "x"), Member::join(&c, "a.潮_", "y"));
    x.say("over here");
    y.hear_line(|line| line.ends_with("x: over here"));
    y.say("yes");
    x.hear_line(|line| line.ends_with("y: yes"));
    eve.ask_until("/who", |line| line == "= 3 here: ann bob eve");
    bob.ask_until("/who", |line| line == "= 3 here: ann bob eve");
    let mut other = Member::connect(&b);
    other.say("/join tide ann");
    other.hear_line(|line| line.starts_with("! this nickname is taken in the room"));
}

fn two_thousand_members_hear_everything_once_and_in_order() {
    let store = Store::new().expect("nats-server");
    let (a, b) = (Node::start(&store.url(), "a", &[]), Node::start(&store.url(), "b", &[]));
    let args = ["-c", "2000", "--rooms", "2", "--speakers", "20", "--rate", "20", "-n", "60"];
    let report = load(&[&a, &b], &args);
    // `load` checks each delivery: the same text under the same number for all, and no number left out.
    assert_eq!(
        (&report["joined"], &report["said"], &report["delivered"]),
        (&2000.into(), &60.into(), &60_000.into())
    );
    assert_eq!(
        (&report["wrong"], &report["undelivered"], &report["refused"]),
        (&0.into(), &0.into(), &0.into())
    );
}

fn a_node_that_is_cut_off_says_so_and_rejoins_without_loss() {
    let mut store = Store::new().expect("nats-server");
    let (a, b) = (Node::start(&store.url(), "a", &SOON), Node::start(&store.url(), "b", &SOON));
    let (mut ann, mut bob) = (Member::join(&a, "tide", "ann"), Member::join(&b, "tide", "bob"));
    ann.say("before");
    bob.hear_line(|line| line.ends_with("ann: before"));
    // The broker takes bytes and does nothing. What is said before anybody can know that is taken.
    loop {
        store.signal(Signal::STOP);
        let was_taken = ann.says_before_cut_off("in between");
        bob.hear_line(|line| line.starts_with("= cut off: "));
        for member in [&mut ann, &mut bob] {
            member.say("nobody hears this");
            member.hear_line(|line| line.starts_with("! this node is cut off"));
        }
        store.signal(Signal::CONT);
        if was_taken {
            break;
        }
        // This process stood still for so long that it was refused.
        for member in [&mut ann, &mut bob] {
            member.hear_line(|line| line.starts_with("= back: "));
        }
    }
    for member in [&mut ann, &mut bob] {
        member.hear_both("ann: in between", "missed messages have been delivered");
    }
    bob.say("after");
    ann.hear_line(|line| line.ends_with("bob: after"));
    // It dies, and is started again.
    store.kill();
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line.starts_with("= cut off: "));
    }
    store.restart();
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line.starts_with("= back: "));
    }
    ann.say("at last");
    bob.hear_line(|line| line.ends_with("ann: at last"));
    ann.hear_line(|line| line.ends_with("ann: at last"));
    for member in [ann, bob] {
        let count = |text: &str| member.all.iter().filter(|line| line.ends_with(text)).count();
        assert_eq!(
            (count("in between"), count("after"), count("nobody hears this")),
            (1, 1, 0),
            "{:?}",
            member.all
        );
        member.assert_in_order();
    }
}

fn a_load_goes_on_over_a_broker_that_is_started_again() {
    let mut store = Store::new().expect("nats-server");
    let a = Node::start(&store.url(), "a", &[]);
    let (b, page) = Node::with_metrics(&store.url(), "b", &[]);
    let mut watcher = Member::join(&b, "load0", "watcher");
    // Half a minute of it, as it has to be refused something before it is over.
    let args = ["-c", "40", "--speakers", "4", "--rate", "40", "-n", "1200"];
    let child = begin_load(&[&a, &b], &args);
    watcher.hear_line(|line| line.contains(": tg "));
    store.kill();
    watcher.hear_line(|line| line.starts_with("= cut off: "));
    let refused = "tidegate_chat_node_refused_total{reason=\"cut-off\",server=\"chat\"}";
    crate::node::wait_until(|| counted(&page, refused) > 0);
    store.restart();
    let output = finish(child);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Some of it was refused while it could not be sent, and what was taken was heard by all, once and in order.
    assert!(report["refused"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(
        (&report["wrong"], &report["undelivered"], &report["lost_members"]),
        (&0.into(), &0.into(), &0.into())
    );
}

fn a_node_that_is_killed_is_missed_and_its_members_are_gone() {
    let store = Store::new().expect("nats-server");
    let a = Node::start(&store.url(), "a", &SOON);
    let mut b = Node::start(&store.url(), "b", &[]);
    let (mut ann, mut bob) = (Member::join(&a, "tide", "ann"), Member::join(&b, "tide", "bob"));
    bob.say("here");
    ann.hear_line(|line| line.ends_with("bob: here"));
    ann.ask_until("/who", |line| line == "= 2 here: ann bob");
    b.kill();
    ann.hear_line(|line| line == "= node b is lost, and 1 members with it");
    ann.ask_until("/who", |line| line == "= 1 here: ann");
    // One that ends well says goodbye for its members.
    let c = Node::start(&store.url(), "c", &[]);
    let mut eve = Member::join(&c, "tide", "bob");
    eve.say("bob again");
    ann.hear_line(|line| line.ends_with("bob: bob again"));
    c.end();
    ann.hear_line(|line| line.ends_with(" - bob"));
    ann.ask_until("/who", |line| line == "= 1 here: ann");
}

fn a_stream_that_is_lost_or_keeps_too_little_is_said_and_numbers_go_on() {
    let mut store = Store::new().expect("nats-server");
    let a = Node::start(&store.url(), "a", &["--kept-messages", "2"]);
    let mut ann = Member::join(&a, "tide", "ann");
    for n in 0..5 {
        ann.say(&format!("message {n}"));
        ann.hear_line(|line| line.ends_with(&format!("message {n}")));
    }
    // The last two of six are kept, and show the number they have.
    let b = Node::start(&store.url(), "b", &[]);
    let mut bob = Member::join(&b, "tide", "bob");
    assert_eq!([bob.hear_said(), bob.hear_said()], ["#5 ann: message 3", "#6 ann: message 4"]);
    // At its own node, too: what has not come back there is stored again in the new stream.
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line == "#7 + bob");
    }
    store.kill();
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line.starts_with("= cut off: "));
    }
    store.forget();
    store.restart();
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line.starts_with("= back: "));
    }
    bob.say("and on");
    ann.hear_line(|line| line == "#8 bob: and on");
}

fn a_node_that_slept_while_the_stream_was_lost_reads_the_new_one() {
    let mut store = Store::new().expect("nats-server");
    let (a, b) = (Node::start(&store.url(), "a", &[]), Node::start(&store.url(), "b", &[]));
    let (mut ann, mut bob) = (Member::join(&a, "tide", "ann"), Member::join(&b, "tide", "bob"));
    for n in 0..3 {
        bob.say(&format!("message {n}"));
        // At his own node, too: what has not come back there is stored again in the new stream.
        for member in [&mut ann, &mut bob] {
            member.hear_line(|line| line.ends_with(&format!("message {n}")));
        }
    }
    b.signal(Signal::STOP);
    store.kill();
    ann.hear_line(|line| line.starts_with("= cut off: "));
    store.forget();
    store.restart();
    ann.hear_line(|line| line.starts_with("= back: "));
    ann.say("to the new one");
    ann.hear_line(|line| line == "#6 ann: to the new one");
    // It may be back before it has noticed anything.
    b.signal(Signal::CONT);
    bob.hear_line(|line| line == "#6 ann: to the new one");
    bob.ask_until("/nick rob", |line| line == "= you are rob");
    ann.hear_line(|line| line == "#7 bob ~ rob");
}

fn a_message_that_somebody_deleted_is_waited_for_by_nobody() {
    let store = Store::new().expect("nats-server");
    let a = Node::start(&store.url(), "a", &[]);
    let mut ann = Member::join(&a, "tide", "ann");
    for n in 0..2 {
        ann.say(&format!("message {n}"));
        ann.hear_line(|line| line.ends_with(&format!("message {n}")));
    }
    // Its place in the stream is given to nothing else.
    store.delete_last("tide");
    let b = Node::start(&store.url(), "b", &[]);
    let mut bob = Member::join(&b, "tide", "bob");
    assert_eq!(bob.hear_said(), "#2 ann: message 0");
    bob.hear_line(|line| line == "#3 + bob");
    bob.say("on");
    for member in [&mut ann, &mut bob] {
        member.hear_line(|line| line == "#4 bob: on");
    }
}

fn a_room_whose_place_was_needed_goes_on_with_its_numbers() {
    let store = Store::new().expect("nats-server");
    let a = Node::start(&store.url(), "a", &["--rooms", "1"]);
    let mut ann = Member::join(&a, "tide", "ann");
    ann.say("one");
    ann.hear_line(|line| line == "#2 ann: one");
    ann.say("/leave");
    ann.hear_line(|line| line == "= left");
    let mut eve = Member::connect(&a);
    // Her room takes the place once what was said last in the other is with the broker.
    eve.ask_until("/join ebb eve", |line| line.starts_with("= joined ebb"));
    eve.say("/leave");
    ann.ask_until("/join tide ann", |line| line.starts_with("= joined tide"));
    ann.say("two");
    ann.hear_line(|line| line == "#5 ann: two");
}

fn what_cannot_work_is_said_before_anything_starts() {
    let refused = |args: &[&str], code: i32, says: &str| {
        let output = Command::new(TIDEGATE)
            .args(["serve", "chat", "--listen", "127.0.0.1:0"])
            .args(args)
            .output()
            .unwrap();
        let text = stderr(&output);
        assert!(output.status.code() == Some(code) && text.contains(says), "{args:?}: {text}");
    };
    refused(&["--nats-token-file", "x"], 2, "need --nats URL");
    refused(&["--node", "x"], 2, "--nats");
    refused(&["--nats", "nats://127.0.0.1:1", "--node-timeout", "0s"], 2, "--node-timeout must be");
    refused(&["--nats", "nats://127.0.0.1:1", "--waiting-bytes", "1KiB"], 2, "two longest lines");
    refused(&["--nats", "nats://127.0.0.1:1"], 1, "check that nats-server runs there");
    let plain = crate::kit::Broker::start(&["--user", "tide", "--pass", "right"]).expect("nats-server");
    refused(&["--nats", &plain.url], 2, "give --nats-user");
    let url = plain.url.replace("nats://", "nats://tide:right@");
    refused(&["--nats", &url], 1, "it needs JetStream");
    refused(&["--nats", &url, "--waiting-bytes", "1MiB"], 1, "raise its max_payload");
}
