//! A session that panics loses its connection, a service that panics refuses one; nobody else notices.

use std::io::Write;

use tidegate::{CloseReason, Consumed, Mail, Mailbox, Model, Outbox, Recipient, Session};
use tidegate::{Flow, Peer, Refusal, Service};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Panics wherever its input says.
struct Fragile {
    own: Option<Mailbox<()>>,
    falls_at_the_end: bool,
}

impl Recipient for Fragile {
    type Message = ();
}

impl Session for Fragile {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.own = Some(Self::mailbox(out));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match input {
            b"fall" => kit::fall("on request"),
            b"fall by mail" => _ = self.own.as_ref().map(|own| own.send(())),
            b"fall at the end" => self.falls_at_the_end = true,
            _ => {}
        }
        out.write(input);
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, _: &mut Outbox<'_>) -> Flow {
        kit::fall("on request by mail")
    }

    fn on_close(&mut self, _: CloseReason) {
        if self.falls_at_the_end {
            kit::fall("on request");
        }
    }
}

/// Makes no session for every fourth connection.
#[derive(Default)]
struct Shaky(std::sync::atomic::AtomicUsize);

impl Service for Shaky {
    type Session = Fragile;

    fn open(&self, _: &Peer) -> Result<Fragile, Refusal> {
        let before = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if before % 4 == 3 {
            kit::fall("the fourth falls");
        }
        Ok(Fragile { own: None, falls_at_the_end: false })
    }
}

fn case(model: Model) {
    let server = kit::serve(model, kit::with_threads(model, 1), Shaky::default());
    let mut other = kit::connect(server.local_addr());
    kit::exchange(&mut other, b"before");
    let mut at_once = kit::connect(server.local_addr());
    at_once.write_all(b"fall").expect("send");
    assert_eq!(kit::hear_all(&mut at_once), (Vec::new(), Ending::Reset));
    let mut by_mail = kit::connect(server.local_addr());
    by_mail.write_all(b"fall by mail").expect("send");
    assert_eq!(kit::hear_all(&mut by_mail).1, Ending::Reset);
    kit::until("both are counted", || server.stats().closed_by(CloseReason::Panicked) == 2);

    let mut refused = kit::connect(server.local_addr());
    let _ = refused.write_all(b"hello"); // it may be gone already
    assert!(kit::hear_all(&mut refused).0.is_empty());
    kit::until("it is counted", || server.stats().refused == 1);

    let mut late = kit::connect(server.local_addr());
    kit::exchange(&mut late, b"fall at the end");
    drop(late);
    kit::until("it has left", || server.stats().closed_by(CloseReason::Finished) == 1);
    kit::exchange(&mut other, b"after");
    drop(other);
    kit::finish(server);
}
