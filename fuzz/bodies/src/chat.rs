//! A member of the messenger.

use tidegate::{CloseReason, Policy};
use tidegate_services::http::Access;
use tidegate_services::{Chat, ChatLimits};

use crate::cuts::{Cuts, without_date};
use crate::wire::TestConnection;

/// Any bytes to the messenger, in pieces: what the sender and another member hear does not depend on the pieces, and
/// the other one hears lines of text without control characters, numbered one after the other.
pub fn chat(data: &[u8]) {
    let Some(cuts) = Cuts::of(data) else { return };
    let whole = play(&[cuts.stream]);
    assert_eq!(play(&cuts.pieces()), whole, "the pieces make a difference");
    let heard = String::from_utf8(whole.1).expect("text");
    assert!(!heard.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{heard:?}");
    let numbers =
        heard.lines().filter_map(|line| line.strip_prefix('#')?.split(' ').next()?.parse::<u64>().ok());
    assert!(
        numbers.eq(2..2 + heard.lines().filter(|line| line.starts_with('#')).count() as u64),
        "{heard:?}"
    );
}

/// What the sender and the other member heard.
fn play(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let limits = ChatLimits::default().lines_per_s(None).line_bytes(256).rooms(3);
    let policy = Policy::default().input_bytes(limits.input_bytes());
    let chat = Chat::new(limits).with_access(Access::any());
    let mut other = TestConnection::to(&chat, policy.clone());
    other.send("/join a other\n");
    let mut sender = TestConnection::to(&chat, policy);
    pieces.iter().for_each(|piece| sender.send(piece));
    sender.deliver();
    sender.end();
    other.deliver();
    for wire in [&sender, &other] {
        let cut_off = wire.counters.closed[CloseReason::InputLimit as usize].get();
        assert_eq!(cut_off, 0, "the session kept more than its limit");
    }
    (without_date(sender.output), other.output)
}
