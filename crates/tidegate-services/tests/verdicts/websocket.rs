//! WebSocket: `websocket.txt`.

use tidegate::{Model, Policy};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use crate::cases::{bytes, cases};
use crate::frames::{BINARY, CLOSE, FIN, PING, PONG, TEXT, UPGRADE, frame, head, server_frames};
use crate::sockets::{exchange, random_pieces, start};
use crate::wire::TestConnection;

const FRAMES: &str = include_str!("websocket.txt");

fn limits() -> WebSocketLimits {
    WebSocketLimits::default().message_bytes(1000).request_timeout(Some(std::time::Duration::from_secs(60)))
}

fn service() -> WebSocket<EchoMessages> {
    WebSocket::new(EchoMessages, limits())
}

/// The frames that the words of a case stand for.
fn frames(words: &str) -> Vec<u8> {
    words.split(' ').filter(|word| !word.is_empty()).flat_map(one).collect()
}

fn one(word: &str) -> Vec<u8> {
    let (kind, value) = word.split_once('=').expect("KIND=VALUE");
    let split = || value.split_once(',').expect("XX,…");
    let first = || u8::from_str_radix(split().0, 16).expect("two digits");
    let payload = || bytes(split().1);
    match kind {
        "text" => frame(FIN | TEXT, bytes(value)),
        "bin" => frame(FIN | BINARY, bytes(value)),
        "ping" => frame(FIN | PING, bytes(value)),
        "pong" => frame(FIN | PONG, bytes(value)),
        "close" => {
            let (code, reason) = value.split_once(',').unwrap_or((value, ""));
            let code: u16 = code.parse().expect("a code");
            frame(FIN | CLOSE, [&code.to_be_bytes()[..], &bytes(reason)].concat())
        }
        "F" => frame(first(), payload()),
        "U" => [head(first(), payload().len(), 0), payload()].concat(),
        // With a mask of zeros.
        "L2" => [&[first(), 0x80 | 126][..], &(payload().len() as u16).to_be_bytes(), &[0; 4], &payload()]
            .concat(),
        "L8" => [&[first(), 0x80 | 127][..], &(payload().len() as u64).to_be_bytes(), &[0; 4], &payload()]
            .concat(),
        "H" => {
            let length: u64 = split().1.parse().expect("a length");
            [&[first(), 0x80 | 127][..], &length.to_be_bytes(), &[0; 4]].concat()
        }
        "R" => bytes(value),
        other => panic!("{other} in {word}"),
    }
}

/// The frames of a server, as a verdict has them.
fn said(output: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let frames = server_frames(output).into_iter();
    let cut = |(first, payload): (u8, Vec<u8>)| {
        let length = if first == FIN | CLOSE { payload.len().min(2) } else { payload.len() };
        (first, payload[..length].to_vec())
    };
    frames.map(cut).collect()
}

/// What a verdict says: the frames, and whether it is open.
fn wanted(verdict: &str) -> (Vec<(u8, Vec<u8>)>, bool) {
    let mut words: Vec<&str> = verdict.split(' ').collect();
    let is_open = match words.pop() {
        Some("open") => true,
        Some("end") => false,
        other => panic!("{other:?} in {verdict}"),
    };
    let frames = words.into_iter().map(|word| match word.split_once('=').expect("KIND=VALUE") {
        ("text", value) => (FIN | TEXT, bytes(value)),
        ("bin", value) => (FIN | BINARY, bytes(value)),
        ("pong", value) => (FIN | PONG, bytes(value)),
        ("close", "") => (FIN | CLOSE, Vec::new()),
        ("close", code) => (FIN | CLOSE, code.parse::<u16>().expect("a code").to_be_bytes().to_vec()),
        other => panic!("{other:?} in {verdict}"),
    });
    (frames.collect(), is_open)
}

/// Everything answered, without its date, and whether the sending side was finished.
fn play(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut wire = TestConnection::to(&service(), Policy::default().input_bytes(16 * 1024));
    wire.send(UPGRADE);
    let date = String::from_utf8_lossy(&wire.output).find("Date: ").expect("a date");
    wire.output.drain(date..date + "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n".len());
    pieces.iter().for_each(|piece| wire.send(piece));
    (wire.output.clone(), wire.finished)
}

#[test]
fn every_verdict_however_it_is_cut() {
    let mut wrong = Vec::new();
    for case in cases(FRAMES) {
        let script = frames(&case.send);
        let (wanted, is_open) = wanted(&case.gives);
        let whole = play(&[&script]);
        let got = said(&whole.0);
        if got != wanted || whole.1 == is_open {
            wrong.push(format!(
                "{}: {got:02x?} and finished: {} in place of {}",
                case.name, whole.1, case.gives
            ));
        }
        for cut in 1..script.len() {
            let (a, b) = script.split_at(cut);
            if play(&[a, b]) != whole {
                wrong.push(format!("{}: another answer if cut at {cut}", case.name));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_model_gives_every_verdict() {
    // Whether it is open is asked with a ping, and then it is closed.
    let probe = [frame(FIN | PING, "probe"), frame(FIN | CLOSE, 1000_u16.to_be_bytes())].concat();
    let probed = [(FIN | PONG, b"probe".to_vec()), (FIN | CLOSE, 1000_u16.to_be_bytes().to_vec())];
    let mut wrong = Vec::new();
    for model in Model::available() {
        let server = start(service(), model);
        for (number, case) in cases(FRAMES).iter().enumerate() {
            let script = [UPGRADE.as_bytes(), &frames(&case.send)].concat();
            let (mut wanted, is_open) = wanted(&case.gives);
            if is_open {
                wanted.extend_from_slice(&probed);
            }
            for pieces in [vec![&script[..]], random_pieces(&script, number as u64)] {
                let output = exchange(server.local_addr(), pieces.into_iter().chain([&probe[..]]));
                let got = output.as_deref().map(said);
                if got.as_ref() != Some(&wanted) {
                    wrong.push(format!("{model}: {}: {got:02x?} in place of {}", case.name, case.gives));
                }
            }
        }
        server.stop();
        server.join();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
