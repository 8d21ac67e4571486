//! An echo server in about 20 lines, on any I/O model: `cargo run -p tidegate --example echo -- [MODEL] [ADDR:PORT]`.

use tidegate::{Consumed, Outbox, Peer, Refusal, Server, Service, Session};

struct Echo;

impl Service for Echo {
    type Session = Echo;
    fn open(&self, _peer: &Peer) -> Result<Echo, Refusal> {
        Ok(Echo)
    }
}

impl Session for Echo {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let model = args.get(1).map_or("poll", String::as_str).parse()?;
    let addr = args.get(2).map_or("127.0.0.1:0", String::as_str);
    let server = Server::new(Echo).model(model).bind(addr)?;
    println!("listening on {} with {model}", server.local_addr());
    server.start()?.join();
    Ok(())
}
