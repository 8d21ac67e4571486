//! What somebody who may publish at the broker makes up: it is counted, not believed, and changes nothing for members.

use crate::harness;
use libtest_mimic::Trial;
use serde_json::json;

use crate::node::{Member, Node, SOON, Store, counted, wait_until};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            a_number_that_somebody_made_up_is_not_gone_on_from,
            what_members_could_not_take_resets_nobody,
            lists_of_members_are_bounded,
            a_place_that_the_stream_does_not_have_cuts_nobody_off,
            nothing_that_somebody_made_up_reaches_a_terminal
        ],
    )
}

/// A node whose broker somebody else uses too, and two members of one room.
struct Scene {
    store: Store,
    node: Node,
    page: String,
    notes: crate::kit::Lines,
    ann: Member,
    bob: Member,
}

const REJECTED: &str = "tidegate_chat_node_rejected_total{server=\"chat\"}";
const CUT_OFFS: &str = "tidegate_chat_node_cut_offs_total{server=\"chat\"}";

impl Scene {
    /// None without a broker.
    fn new(args: &[&str]) -> Option<Self> {
        let store = Store::new()?;
        let (node, page, notes) = Node::with_notes(&store.url(), "a", args);
        let (mut ann, mut bob) = (Member::join(&node, "tide", "ann"), Member::join(&node, "tide", "bob"));
        for member in [&mut ann, &mut bob] {
            member.hear_line(|line| line == "#2 + bob");
        }
        Some(Self { store, node, page, notes, ann, bob })
    }

    fn rejected(&self) -> u64 {
        counted(&self.page, REJECTED)
    }

    /// Publishes this, and waits until it was not believed.
    fn forge(&self, subject: &str, body: &serde_json::Value) {
        let before = self.rejected();
        self.store.publish(subject, json!({"version": 3, "body": body}).to_string().as_bytes());
        wait_until(|| self.rejected() > before);
    }

    /// Something happened in the room, with these numbers and texts.
    fn say(&self, first: u64, all: &[(bool, &str)]) {
        let after = self.store.last_place();
        let body = json!({"node": 7, "serial": 1, "after": after, "first": first, "all": all});
        self.forge("tidegate.chat.room.tide", &body);
    }

    fn send(&self, body: &serde_json::Value) {
        self.forge("tidegate.chat.nodes", body);
    }

    /// The two go on as if nothing had been: the next number, once, and no connection was lost.
    fn goes_on(&mut self, number: u64) {
        let before = self.store.last_place();
        self.ann.say("still here");
        for member in [&mut self.ann, &mut self.bob] {
            assert_eq!(member.hear(), format!("#{number} ann: still here"));
        }
        assert_eq!(self.store.last_place(), before + 1, "the node says what it has to say once");
        assert_eq!(counted(&self.page, CUT_OFFS), 0);
    }
}

fn a_number_that_somebody_made_up_is_not_gone_on_from() {
    let mut scene = Scene::new(&[]).expect("nats-server");
    for first in [(1 << 63) - 2, u64::MAX, 1 << 53, 1 << 40, 10_000_000, 0] {
        scene.say(first, &[(true, "eve: hello")]);
    }
    scene.goes_on(3);
    // Who starts now has seen nothing before, and hears the same.
    let late = Node::start(&scene.store.url(), "late", &[]);
    let mut eve = Member::join(&late, "tide", "eve");
    assert_eq!(eve.hear_said(), "#3 ann: still here");
}

fn what_members_could_not_take_resets_nobody() {
    let mut scene = Scene::new(&[]).expect("nats-server");
    let long = format!("eve: {}", "x".repeat(300_000));
    scene.say(3, &[(true, &long)]);
    let lines = vec![(true, "eve: hello"); 30_000];
    scene.say(3, &lines);
    for text in ["eve: \u{1b}[2J", "eve: one\n#9 bob: two", "no name", "\u{1b}[2J: hello"] {
        scene.say(3, &[(true, text)]);
    }
    scene.say(3, &[(false, "= cut off: the other nodes cannot be reached")]);
    scene.goes_on(3);
}

fn lists_of_members_are_bounded() {
    let mut scene = Scene::new(&[]).expect("nats-server");
    let beat = scene.store.beat_of("a");
    let evil = json!({"tell": "beat", "node": 7, "name": "evil", "stream": beat["stream"], "seen": 0});
    let evil = json!({"version": 3, "body": evil}).to_string();
    scene.store.publish("tidegate.chat.nodes", evil.as_bytes());
    let before = scene.node.resident_kib();
    // 37 MB of them, each as large as one may be.
    for room in 0..300 {
        let nicks: Vec<String> =
            (0..4_000).map(|n| format!("somebody-whose-name-is-{room:03}{n:04}")).collect();
        let body =
            json!({"tell": "here", "node": 7, "room": format!("r{room}"), "members": 4_000, "nicks": nicks});
        scene
            .store
            .publish("tidegate.chat.nodes", json!({"version": 3, "body": body}).to_string().as_bytes());
    }
    let nicks: Vec<String> = (0..40_000).map(|n| format!("n{n}")).collect();
    scene.send(&json!({"tell": "here", "node": 7, "room": "tide", "members": 40_000, "nicks": nicks}));
    // 300 rooms of 200 names; without a bound it was 230 MB.
    let grown = scene.node.resident_kib().saturating_sub(before);
    assert!(grown < 80 << 10, "{grown} KiB more");
    scene.goes_on(3);
}

fn a_place_that_the_stream_does_not_have_cuts_nobody_off() {
    let mut scene = Scene::new(&SOON).expect("nats-server");
    let stream = scene.store.beat_of("a")["stream"].clone();
    let beat = |seen: u64| json!({"tell": "beat", "node": 7, "name": "evil", "stream": stream, "seen": seen});
    scene.send(&beat(u64::MAX));
    // This one is possible; that it is not so only the broker can say, and it is asked before anything is done.
    scene.send(&beat(1 << 40));
    scene.goes_on(3);
}

fn nothing_that_somebody_made_up_reaches_a_terminal() {
    let mut scene = Scene::new(&[]).expect("nats-server");
    let stream = scene.store.beat_of("a")["stream"].clone();
    let escape = "\u{1b}[2J";
    scene.send(&json!({"tell": "beat", "node": 7, "name": escape, "stream": stream, "seen": 0}));
    scene.send(&json!({"tell": escape, "node": 7}));
    scene.forge("tidegate.chat.room.x\u{1b}[2J", &json!({}));
    for member in [escape, ""] {
        scene.send(&json!({"tell": "here", "node": 7, "room": "tide", "members": 1, "nicks": [member]}));
    }
    let mut notes = Vec::new();
    for count in 1..=5 {
        notes.extend(scene.notes.up_to(&format!("({count} such messages so far)")));
    }
    assert!(notes.iter().all(|line| !line.contains(|c: char| c.is_control())), "{notes:?}");
    // More of them are counted, and said no more often than that.
    let before = scene.rejected();
    for _ in 0..100 {
        scene.store.publish("tidegate.chat.nodes", b"{}");
    }
    wait_until(|| scene.rejected() == before + 100);
    scene.goes_on(3);
    let Scene { node, notes, .. } = scene;
    node.end();
    let rest = notes.up_to("the bridge ends");
    assert!(rest.iter().filter(|line| line.contains("not believed")).count() < 10, "{rest:?}");
}
