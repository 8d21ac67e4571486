//! What a session does not consume is kept, and shown again in front of what comes next, up to [`Policy::input_bytes`].

use std::io::Write;
use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

/// Consumes whole lines only, and remembers everything it was shown.
struct Lines(Arc<Mutex<Vec<String>>>);

impl Session for Lines {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.0.lock().expect("shown").push(String::from_utf8_lossy(input).into_owned());
        let lines = input.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        out.write(&input[..lines]);
        Consumed::bytes(lines)
    }
}

const LIMIT: usize = 5_000;

fn case(model: Model) {
    let shown = Arc::new(Mutex::new(Vec::new()));
    let its = shown.clone();
    let policy = kit::policy(model).input_bytes(LIMIT);
    let server = kit::serve(model, policy, kit::sessions(move || Lines(its.clone())));
    let mut stream = kit::connect(server.local_addr());
    let mut sent = 0;
    let mut say = |stream: &mut std::net::TcpStream, text: &str| {
        stream.write_all(text.as_bytes()).expect("send");
        sent += text.len();
        kit::until("it is shown", || server.stats().bytes_in == sent as u64);
    };
    for part in ["he", "l", "lo\nwor", "ld", "\n"] {
        say(&mut stream, part);
    }
    assert_eq!(kit::hear(&mut stream, 12), b"hello\nworld\n");
    assert_eq!(*shown.lock().expect("shown"), ["he", "hel", "hello\nwor", "world", "world\n"]);

    // Exactly as much as may be kept is kept.
    let long = "x".repeat(LIMIT);
    say(&mut stream, &long);
    say(&mut stream, "\n");
    assert_eq!(kit::hear(&mut stream, LIMIT + 1).len(), LIMIT + 1);
    // One byte more is too much.
    stream.write_all(&vec![b'y'; LIMIT + 1]).expect("send");
    kit::until("the limit is noticed", || server.stats().closed_by(CloseReason::InputLimit) == 1);
    let (heard, _) = kit::hear_all(&mut stream);
    assert!(heard.is_empty());
    kit::finish(server);
}
