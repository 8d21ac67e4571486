//! What is said and heard.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_services::http::Access;
use tidegate_services::{Chat, ChatLimits, ChatStats};

use crate::members::Member;
use crate::wire::WireState;

fn chat(change: impl FnOnce(&mut ChatLimits)) -> Chat {
    let mut limits = ChatLimits::default().lines_per_s(None);
    change(&mut limits);
    Chat::new(limits)
}

/// Ann, who speaks lines, and `bob`, both in the room tide; neither has heard anything yet.
fn both_in_tide(chat: &Chat, mut bob: Member) -> (Member, Member) {
    let mut ann = Member::of_lines(chat);
    ann.say("/join tide ann");
    bob.say("/join tide bob");
    (ann, bob)
}

#[test]
fn lines_and_frames_meet_in_one_room() {
    let chat = chat(|_| {});
    let (mut ann, mut bob) = (Member::of_lines(&chat), Member::of_frames(&chat));
    ann.say("/join tide ann");
    assert_eq!(ann.hears(), ["= joined tide as ann, 1 here, at #1"]);
    bob.say("/join tide bob");
    assert_eq!(bob.hears(), ["= joined tide as bob, 2 here, at #2"]);
    ann.say("hello");
    bob.say("//hi");
    for member in [&mut ann, &mut bob] {
        let heard = member.hears();
        assert_eq!(heard[heard.len() - 2..], ["#3 ann: hello", "#4 bob: /hi"]);
    }
    bob.say("/who");
    assert_eq!(bob.hears(), ["= 2 here: ann bob"]);
    drop(chat);
}

#[test]
fn joining_leaving_and_renaming_are_announced() {
    let chat = chat(|_| {});
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_lines(&chat));
    bob.say("/nick robert");
    assert_eq!(bob.hears().last().unwrap(), "#3 bob ~ robert");
    bob.say("/leave");
    assert_eq!(bob.hears(), ["= left"]);
    bob.say("hello?");
    assert_eq!(bob.hears(), ["! join a room first: /join ROOM [NICK]"]);
    bob.say("/join tide");
    bob.wire.end();
    assert_ne!(bob.wire.state, WireState::Open);
    let heard = ann.hears();
    assert_eq!(heard[1..], ["#2 + bob", "#3 bob ~ robert", "#4 - robert", "#5 + robert", "#6 - robert"]);
}

#[test]
fn a_newcomer_is_shown_what_was_said_last() {
    let chat = chat(|limits| limits.history = 2);
    let mut ann = Member::of_lines(&chat);
    ann.say("/join tide ann");
    for text in ["one", "two", "three"] {
        ann.say(text);
    }
    let mut bob = Member::of_frames(&chat);
    bob.say("/join tide bob");
    assert_eq!(bob.hears(), ["= joined tide as bob, 2 here, at #5", "#3 ann: two", "#4 ann: three"]);
    ann.say("four");
    assert_eq!(bob.hears(), ["#6 ann: four"], "once, and not what it was shown");
}

#[test]
fn mail_from_a_room_that_was_left_is_not_heard() {
    let chat = chat(|_| {});
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_lines(&chat));
    bob.hears();
    ann.say("for those in tide");
    bob.say("/join ebb"); // its mail is under way
    assert_eq!(bob.hears(), ["= joined ebb as bob, 1 here, at #1"]);
    ann.say("and again");
    bob.say("/join tide");
    let heard = bob.hears();
    assert_eq!(heard.iter().filter(|line| line.contains("again")).count(), 1, "{heard:?}");
    ann.say("only once");
    bob.say("/join tide"); // into the same room anew: it is in the history, and under way
    let heard = bob.hears();
    assert_eq!(heard.iter().filter(|line| line.contains("only once")).count(), 1, "{heard:?}");
}

#[test]
fn text_that_turns_a_terminal_around_is_refused_and_joiners_are_not() {
    let chat = chat(|_| {});
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_frames(&chat));
    bob.hears();
    ann.hears();
    let turning =
        "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
    for c in turning.chars().chain(['\u{1b}', '\u{9b}']) {
        for speaker in [&mut ann, &mut bob] {
            speaker.say(&format!("exe.{c}gpj"));
            speaker.say(&format!("//{c}"));
            let heard = speaker.hears();
            assert_eq!(heard.len(), 2, "{c:?}: {heard:?}");
            assert!(heard.iter().all(|line| line.starts_with("! control characters")), "{c:?}: {heard:?}");
        }
    }
    // Scripts and emoji need joiners; letters of any direction are text.
    for text in ["می\u{200c}خواهم", "👩\u{200d}🚀", "שלום", "مرحبا"] {
        ann.say(text);
        for member in [&mut ann, &mut bob] {
            let heard = member.hears();
            assert!(heard.len() == 1 && heard[0].ends_with(&format!(" ann: {text}")), "{heard:?}");
        }
    }
}

#[test]
fn nicknames_are_unique_in_a_room_and_guests_get_one() {
    let chat = chat(|_| {});
    let [mut ann, mut other, mut guest] = [0; 3].map(|_| Member::of_lines(&chat));
    ann.say("/join tide ann");
    other.say("/join tide ann");
    assert!(other.hears()[0].starts_with("! this nickname is taken in the room"));
    other.say("/join ebb ann");
    assert_eq!(other.hears(), ["= joined ebb as ann, 1 here, at #1"]);
    guest.say("/join tide");
    assert!(guest.hears()[0].starts_with("= joined tide as guest"));
    guest.say("/nick ann");
    assert!(guest.hears().last().unwrap().starts_with("! this nickname"));
}

#[test]
fn rooms_and_their_members_are_bounded_and_empty_rooms_make_room() {
    let chat = chat(|limits| (limits.rooms, limits.members) = (2, 1));
    let [mut ann, mut bob, mut eve] = [0; 3].map(|_| Member::of_lines(&chat));
    ann.say("/join one ann");
    bob.say("/join one bob");
    assert_eq!(bob.hears(), ["! the room is full"]);
    bob.say("/join two bob");
    eve.say("/join three eve");
    assert!(eve.hears()[0].starts_with("! the limit of rooms is reached"));
    bob.say("/leave");
    eve.say("/join three eve");
    assert_eq!(eve.hears(), ["= joined three as eve, 1 here, at #1"]);
}

#[test]
fn who_is_refused_in_another_room_stays_in_its_own() {
    let chat = chat(|limits| (limits.rooms, limits.members) = (2, 2));
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_lines(&chat));
    let [mut eve, mut kim] = [0; 2].map(|_| Member::of_lines(&chat));
    eve.say("/join ebb eve");
    ann.hears();
    bob.hears();
    let mut is_refused = |line: &str, why: &str| {
        bob.say(line);
        let heard = bob.hears();
        assert!(heard.len() == 1 && heard[0].starts_with(why), "{line}: {heard:?}");
        bob.say("still here");
        for member in [&mut bob, &mut ann] {
            let heard = member.hears();
            assert!(heard.len() == 1 && heard[0].ends_with(" bob: still here"), "{line}: {heard:?}");
        }
    };
    is_refused("/join ebb eve", "! this nickname is taken");
    is_refused("/join flow", "! the limit of rooms is reached");
    is_refused("/join tide ann", "! this nickname is taken");
    kim.say("/join ebb kim");
    is_refused("/join ebb", "! the room is full");
    kim.say("/leave");
    bob.say("/join ebb");
    assert_eq!(bob.hears(), ["= joined ebb as bob, 2 here, at #4"]);
    assert!(ann.hears()[0].ends_with(" - bob"));
    assert_eq!(chat.counters().stats().members, 3);
}

#[test]
fn the_last_member_of_a_room_takes_its_place_along() {
    let chat = chat(|limits| limits.rooms = 1);
    let mut ann = Member::of_lines(&chat);
    ann.say("/join tide ann");
    ann.say("/join ebb");
    assert_eq!(ann.hears(), ["= joined tide as ann, 1 here, at #1", "= joined ebb as ann, 1 here, at #1"]);
    let mut bob = Member::of_lines(&chat);
    bob.say("/join tide bob");
    assert!(bob.hears()[0].starts_with("! the limit of rooms is reached"));
    assert_eq!(chat.counters().stats().rooms, 1);
}

#[test]
fn who_joins_its_own_room_is_shown_it_again_and_may_have_another_nickname() {
    let chat = chat(|limits| limits.members = 2);
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_lines(&chat));
    ann.say("hello");
    ann.hears();
    bob.hears();
    bob.say("/join tide");
    assert_eq!(bob.hears(), ["= joined tide as bob, 2 here, at #3", "#3 ann: hello"]);
    bob.say("/join tide rob");
    assert_eq!(bob.hears(), ["= joined tide as rob, 2 here, at #4", "#3 ann: hello", "#4 bob ~ rob"]);
    bob.say("hi");
    assert_eq!(ann.hears(), ["#4 bob ~ rob", "#5 rob: hi"]);
    assert_eq!(bob.hears(), ["#5 rob: hi"]);
    assert_eq!(chat.counters().stats().members, 2);
}

#[test]
fn who_joins_its_own_room_misses_nothing_that_was_under_way() {
    let chat = chat(|limits| limits.history = 1);
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_lines(&chat));
    bob.hears();
    ann.say("/nick anne"); // in no history
    for text in ["one", "two"] {
        ann.say(text);
    }
    bob.say("/join tide");
    let under_way = ["#3 ann ~ anne", "#4 anne: one", "#5 anne: two"];
    let heard = bob.hears();
    assert_eq!(heard[0], "= joined tide as bob, 2 here, at #5");
    assert_eq!(heard[1..], under_way);
}

#[test]
fn a_member_that_speaks_too_fast_receives_an_error() {
    let chat = chat(|limits| {
        (limits.lines_per_s, limits.burst) = (NonZeroU32::new(2), NonZeroU32::new(3).unwrap());
    });
    let mut ann = Member::of_lines(&chat);
    ann.say("/join tide ann");
    for text in ["one", "two", "three"] {
        ann.say(text);
    }
    let heard = ann.hears();
    assert_eq!(heard[1], "! too many lines; this one was dropped");
    assert_eq!(heard.len(), 4, "{heard:?}");
    ann.wire.wait(Duration::from_millis(500));
    ann.say("four");
    assert_eq!(ann.hears(), ["#4 ann: four"]);
}

#[test]
fn a_member_that_does_not_read_is_cut_off_and_nobody_else_notices() {
    let chat = chat(|limits| (limits.behind_bytes, limits.history_bytes) = (20_000, 1000));
    let [mut ann, mut bob] = [0; 2].map(|_| Member::of_lines(&chat));
    let mut slow = Member::of_frames(&chat);
    ann.say("/join tide ann");
    bob.say("/join tide bob");
    slow.say("/join tide slow");
    slow.hears();
    slow.wire.reads = false;
    let text = "x".repeat(900);
    let mut heard = Vec::new();
    for n in 0..30 {
        ann.say(&text);
        heard.extend(ann.hears()); // who speaks without hearing is held back
        slow.wire.deliver();
        assert_eq!(bob.hears().iter().filter(|line| line.ends_with(&text)).count(), 1, "message {n}");
        assert!(slow.wire.queued() <= 20_000);
    }
    assert_eq!(slow.wire.state, WireState::Reset);
    assert_eq!((chat.counters().stats().cut_off, chat.counters().stats().members), (1, 2));
    heard.extend(ann.hears());
    assert!(heard.iter().any(|line| line.ends_with(" - slow")));
}

#[test]
fn what_happens_is_counted() {
    let chat = chat(|limits| limits.rooms = 2);
    let counters = chat.counters();
    let (mut ann, mut bob) = both_in_tide(&chat, Member::of_frames(&chat));
    ann.say("hello");
    ann.say("/who");
    bob.say("");
    ann.hears();
    bob.hears();
    // Ann hears of bob and what she said, bob hears that.
    let stats = ChatStats { members: 2, rooms: 1, messages: 1, deliveries: 3, cut_off: 0, federation: None };
    assert_eq!(counters.stats(), stats);
    ann.say("/join ebb");
    bob.say("/leave");
    let stats = counters.stats();
    assert_eq!((stats.members, stats.rooms, stats.messages), (1, 2, 1));
    ann.wire.end();
    assert_eq!(counters.stats().members, 0);
}

#[test]
fn a_large_room_has_no_announcements() {
    let chat = chat(|limits| limits.announced = 2);
    let mut members = [0; 4].map(|_| Member::of_lines(&chat));
    for (n, member) in members.iter_mut().enumerate() {
        member.say(&format!("/join tide m{n}"));
    }
    assert_eq!(members[3].hears(), ["= joined tide as m3, 4 here, at #2"]);
    assert_eq!(members[0].hears()[1..], ["#2 + m1"]);
    members[3].say("/who");
    assert_eq!(members[3].hears(), ["= 4 here: m0 m1"], "the first two by name");
}

#[test]
fn what_is_no_line_is_refused() {
    let chat = chat(|_| {});
    let mut ann = Member::of_lines(&chat);
    ann.wire.send(b"\xff\xfe\n");
    ann.say("\u{7}");
    ann.say("/quit now");
    assert_eq!(ann.hears().len(), 3);
    assert_eq!(ann.wire.state, WireState::Open);
    ann.wire.send("x".repeat(1025));
    assert!(ann.hears()[0].starts_with("! line too long"));
    assert!(ann.wire.finished);
    let mut bob = Member::of_lines(&chat);
    bob.say("/quit");
    assert!(bob.wire.finished);
    let mut frames = Member::of_frames(&chat);
    frames.wire.send(crate::frames::frame(crate::frames::FIN | crate::frames::BINARY, "/join tide"));
    assert!(frames.wire.finished, "text messages only");
}

#[test]
fn the_page_is_there_and_a_browser_is_not_made_to_speak_lines() {
    let chat = chat(|_| {});
    let asks = |request: &str| {
        let mut member = Member::of_lines(&chat);
        member.wire.send(request);
        (member.wire.text(), member.wire.finished)
    };
    let (page, over) = asks("GET /?room=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(over && page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<title>tidegate chat</title>"));
    assert!(!page.contains("http://") && !page.contains("https://"), "it loads nothing from elsewhere");
    assert!(asks("GET /x HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n").0.starts_with("HTTP/1.1 404 "));
    let (answer, over) = asks("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n/join x y\n");
    assert!(over && answer.starts_with("HTTP/1.1 405 ") && !answer.contains("joined"), "{answer}");
}

/// What a request to the messenger is answered with; whether the connection is over.
fn asked(chat: &Chat, request: &str) -> (String, bool) {
    let mut member = Member::of_lines(chat);
    member.wire.send(request);
    (member.wire.text(), member.wire.finished)
}

#[test]
fn pages_of_other_sites_may_not_join() {
    let ours = Access::default().host("chat.example").unwrap().origin("https://www.example").unwrap();
    let chat = chat(|_| {}).with_access(ours);
    let upgrade = |host: &str, origin: &str| {
        let fields = crate::frames::UPGRADE.split_once("Upgrade:").unwrap().1;
        let request = format!("GET /chat HTTP/1.1\r\nHost: {host}\r\n{origin}Upgrade:{fields}");
        asked(&chat, &request).0.get(9..12).unwrap_or_default().to_owned()
    };
    for (host, origin, expected) in [
        ("localhost:8080", "", "101"),
        ("localhost:8080", "Origin: http://localhost:8080\r\n", "101"),
        ("[::1]:8080", "Origin: http://[::1]:8080\r\n", "101"),
        ("chat.example", "Origin: https://chat.example\r\n", "101"),
        ("chat.example", "Origin: https://www.example\r\n", "101"),
        ("localhost:8080", "Origin: http://localhost:8081\r\n", "403"),
        ("localhost:8080", "Origin: http://evil.example\r\n", "403"),
        ("localhost:8080", "Origin: null\r\n", "403"),
        ("localhost:8080", "Origin: http://localhost:8080\r\nOrigin: http://localhost:8080\r\n", "400"),
        // A name that was pointed here is that of its page, too.
        ("evil.example:8080", "Origin: http://evil.example:8080\r\n", "421"),
        ("evil.example:8080", "", "421"),
    ] {
        assert_eq!(upgrade(host, origin), expected, "{host} {origin:?}");
    }
    assert!(asked(&chat, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").0.starts_with("HTTP/1.1 421 "));
}

#[test]
fn answers_of_the_front_are_as_http_has_them() {
    let chat = chat(|_| {});
    let old = crate::frames::UPGRADE.replace("Version: 13", "Version: 8");
    for (request, status, has) in [
        ("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", "200", "Content-Length: "),
        ("HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n", "404", "Content-Length: "),
        ("HEAD / HTTP/1.1\r\n\r\n", "400", "Content-Length: "),
        ("HEAD / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421", "Content-Length: "),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405", "Allow: GET, HEAD\r\n"),
        (&old, "426", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"),
        (crate::frames::UPGRADE, "101", "Upgrade: websocket\r\n"),
    ] {
        let (answer, over) = asked(&chat, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(has), "{answer}");
        assert!(answer.contains("\r\nDate: "), "{answer}");
        assert_eq!(over, status != "101");
        let is_head = request.starts_with("HEAD ");
        assert_eq!(answer.ends_with("\r\n\r\n"), is_head || status == "101", "{answer}");
    }
    assert!(asked(&chat, &old).0.contains("Connection: Upgrade\r\n"));
}

#[test]
fn a_browser_with_a_method_of_its_own_does_not_get_to_speak_lines() {
    let chat = chat(|_| {});
    let request = "SAY / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n/join x y\nhello\n";
    for cut in 1..request.len() {
        let mut member = Member::of_lines(&chat);
        member.wire.send(&request[..cut]);
        member.wire.send(&request[cut..]);
        let text = member.wire.text();
        assert!(text.starts_with("HTTP/1.1 501 ") && !text.contains("joined"), "cut at {cut}: {text}");
    }
    let mut member = Member::of_lines(&chat);
    member.say("hello");
    assert_eq!(member.hears(), ["! join a room first: /join ROOM [NICK]"]);
}

#[test]
fn a_first_line_has_its_time_whatever_it_may_become() {
    let chat = chat(|_| {});
    for begun in ["G", "GET", "hel", "SAY / HT"] {
        let mut member = Member::of_lines(&chat);
        member.wire.send(begun);
        for _ in 0..9 {
            member.wire.wait(Duration::from_secs(1));
            assert_eq!(member.wire.state, WireState::Open, "{begun:?}");
            member.wire.send("x");
        }
        member.wire.wait(Duration::from_secs(1));
        assert_eq!(member.wire.state, WireState::Reset, "{begun:?}");
    }
    let mut member = Member::of_lines(&chat);
    member.wire.send("hel");
    member.wire.send("lo\n");
    member.wire.wait(Duration::from_secs(100));
    assert_eq!(member.wire.state, WireState::Open, "a member may be silent");
}
