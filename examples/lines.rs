//! A line protocol: `cargo run -p tidegate --example lines -- [MODEL] [ADDR:PORT]`, then `nc 127.0.0.1 PORT`.
//!
//! Each line is answered with its number and itself in capitals; `quit` ends the connection. Shows input that arrives
//! in any pieces, an answer before the first question, and closing after the last byte.

use std::fmt::Write;

use tidegate::{Consumed, Flow, Model, Outbox, Peer, Refusal, Server, Service, ServiceOptions, Session};

struct Lines;

struct LineSession {
    count: usize,
}

impl Service for Lines {
    type Session = LineSession;

    fn open(&self, _: &Peer) -> Result<LineSession, Refusal> {
        Ok(LineSession { count: 0 })
    }

    fn options(&self) -> ServiceOptions {
        // The greeting must not wait until the client has sent something.
        ServiceOptions::default().speaks_first(true)
    }
}

impl Session for LineSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"hello; one line at a time, quit to leave\n");
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        while let Some(length) = input[used..].iter().position(|&byte| byte == b'\n') {
            let line = &input[used..used + length];
            used += length + 1;
            if line.trim_ascii() == b"quit" {
                out.write(b"bye\n");
                return Consumed::bytes(used).then(Flow::Close);
            }
            self.count += 1;
            let _ = write!(out, "{}: ", self.count); // an outbox takes everything
            out.write(&line.to_ascii_uppercase());
            out.write(b"\n");
            if out.is_full() {
                break; // shown again when the peer has read enough
            }
        }
        Consumed::bytes(used) // the rest of a line is shown again with what follows
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let model = args.get(1).map_or(Ok(Model::best().model), |name| name.parse())?;
    let addr = args.get(2).map_or("127.0.0.1:0", String::as_str);
    let server = Server::new(Lines).model(model).bind(addr)?;
    println!("listening on {} with {model}", server.local_addr());
    server.start()?.join();
    Ok(())
}
