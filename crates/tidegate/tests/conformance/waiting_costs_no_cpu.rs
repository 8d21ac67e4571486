//! Connections that wait for nothing but mail cost no wake-ups: idle ones, half-closed ones, and ones whose peer has
//! gone meanwhile (which `poll` reports whether it was asked to or not).

use std::net::Shutdown;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{CloseReason, Consumed, Flow, Mail, Mailbox, Model, Outbox, Session};

use crate::kit::{self, Witness};

on_every_model!(case);

/// Goes on after the peer's end; closes when it gets mail.
struct Patient {
    witness: Arc<Witness>,
    addresses: Arc<Mutex<Vec<Mailbox>>>,
}

impl Session for Patient {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        self.addresses.lock().expect("addresses").push(out.mailbox());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Continue
    }

    fn on_mail(&mut self, _mail: Mail, _out: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

fn case(model: Model) {
    let witness = Arc::new(Witness::default());
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let (seen, its) = (witness.clone(), addresses.clone());
    let service = kit::sessions(move || Patient { witness: seen.clone(), addresses: its.clone() });
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..6).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
    wake_ups_are_few(&server, "idle connections");

    for stream in &mut streams[..4] {
        stream.shutdown(Shutdown::Write).expect("finish");
    }
    kit::until("the ends are noticed", || witness.ends.load(SeqCst) == 4);
    wake_ups_are_few(&server, "half-closed connections");

    // Two of them reset, two close. Whether the server notices now or once it sends is its own business.
    for stream in streams.drain(..4).skip(2) {
        kit::reset(stream);
    }
    wake_ups_are_few(&server, "peers that have gone");

    for mailbox in addresses.lock().expect("addresses").iter() {
        let _ = mailbox.send(());
    }
    kit::until("all are closed", || witness.closings().len() == 6);
    let resets = witness.closings().iter().filter(|&&why| why == CloseReason::Reset).count();
    assert!(resets <= 2, "{:?}", witness.closings());
    kit::finish(server);
}

/// A loop that spins wakes up tens of thousands of times in this time, and in each such time; one that still settles does not.
fn wake_ups_are_few(server: &tidegate::Running, what: &str) {
    let mut counts = (0..20).map(|_| {
        let before = server.stats().wake_ups;
        kit::measure_for(Duration::from_millis(150));
        server.stats().wake_ups - before
    });
    assert!(counts.any(|count| count < 500), "{what}: many wake-ups, again and again");
}
