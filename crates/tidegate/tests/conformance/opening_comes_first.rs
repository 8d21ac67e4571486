//! The first call of a session is `on_open`, also of one whose connection is made while the server stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tidegate::{
    CloseReason, Consumed, Dial, Flow, Model, Outbox, Peer, Refusal, Service, ServiceOptions, Session,
};

use crate::kit::{self, EchoPeer};

on_every_model!(case);

/// Connections that are dialled during the stop.
const DIALS: usize = 30;

#[derive(Default)]
struct Counts {
    opened: AtomicUsize,
    closed: AtomicUsize,
    too_early: AtomicUsize,
}

/// Dials when it learns of the stop.
struct Asks {
    to: Dial,
    counts: Arc<Counts>,
}

impl Service for Asks {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self { to: self.to.clone(), counts: self.counts.clone() })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().dials(DIALS)
    }
}

impl Session for Asks {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        for _ in 0..DIALS {
            let dialled = Dialled { counts: self.counts.clone(), is_open: false };
            out.dial(self.to.clone(), Duration::from_secs(30), dialled).expect("there is room");
        }
        Flow::Continue
    }
}

/// Expects to be opened before anything else.
struct Dialled {
    counts: Arc<Counts>,
    is_open: bool,
}

impl Dialled {
    fn check(&self) {
        self.counts.too_early.fetch_add(usize::from(!self.is_open), SeqCst);
    }
}

impl Session for Dialled {
    fn on_open(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.is_open = true;
        self.counts.opened.fetch_add(1, SeqCst);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_drain(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.check();
        Flow::Continue
    }

    fn on_close(&mut self, _: CloseReason) {
        self.check();
        self.counts.closed.fetch_add(1, SeqCst);
    }
}

fn case(model: Model) {
    let peer = EchoPeer::open(|_, _| {});
    for _ in 0..3 {
        let counts = Arc::<Counts>::default();
        let asks = Asks { to: Dial::to(peer.addr), counts: counts.clone() };
        let server = kit::serve(model, kit::policy(model), asks);
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"here");
        server.stop();
        kit::check(&server.join());
        let [opened, closed] = [&counts.opened, &counts.closed].map(|count| count.load(SeqCst));
        assert_eq!((opened, closed), (DIALS, DIALS));
        assert_eq!(counts.too_early.load(SeqCst), 0, "sessions that were called before they were opened");
    }
}
