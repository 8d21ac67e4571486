//! Answers of a server, as the load generator reads them.

use crate::cuts::Cuts;

/// The parser itself: it is private to the load generator and uses nothing of it.
#[path = "../../../crates/tidegate-load/src/http_answer.rs"]
mod parser;

use parser::{Answer, BodyRule, KnownHead, ParseStep, Persistence};

/// Answers, and whether what follows them was understood.
#[derive(Debug, Default, PartialEq, Eq)]
struct Understood {
    answers: Vec<(u16, Persistence)>,
    body_bytes: usize,
    wrong: bool,
}

/// Answers of a server in pieces: what is understood does not depend on the pieces.
pub fn answer(data: &[u8]) {
    let Some(cuts) = Cuts::of(data) else { return };
    for rule in [BodyRule::ByHead, BodyRule::Never] {
        let whole = read(&[cuts.stream], rule);
        assert_eq!(read(&cuts.pieces(), rule), whole, "the pieces make a difference");
    }
}

/// Reads as a session does: what was not used is shown again with more, and the first answer that closes ends it.
fn read(pieces: &[&[u8]], rule: BodyRule) -> Understood {
    let (mut answer, mut known, mut understood) =
        (Answer::default(), KnownHead::default(), Understood::default());
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut used = 0;
        while used < input.len() {
            let left = input.len() - used;
            match answer.step(&input[used..], &mut known, rule) {
                ParseStep::NeedsMore => break,
                ParseStep::Used(n) => used += progress(n, left),
                ParseStep::Body { used: n, body } => {
                    used += progress(n, left);
                    understood.body_bytes += body;
                }
                ParseStep::Complete { used: n, body, status, persistence } => {
                    used += progress(n, left);
                    understood.body_bytes += body;
                    understood.answers.push((status, persistence));
                    if persistence == Persistence::Close {
                        return understood;
                    }
                }
                ParseStep::Wrong(_) => {
                    understood.wrong = true;
                    return understood;
                }
            }
        }
        input.drain(..used);
    }
    let to_end = answer.ends_with_the_connection();
    understood.answers.extend(to_end.map(|status| (status, Persistence::Close)));
    understood
}

fn progress(used: usize, left: usize) -> usize {
    assert!((1..=left).contains(&used), "{used} bytes used of {left}");
    used
}
