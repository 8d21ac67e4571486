//! `wake_at` brings [`Mail::Timer`] at its time and not before; a later call replaces it, `wake_never` takes it back.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const TICKS: u32 = 8;
const STEP: Duration = Duration::from_millis(25);

/// Says a number at each of its ticks, then tells how often it was woken when asked.
struct Clock {
    due: Option<Instant>,
    fired: u32,
}

impl Clock {
    fn arm(&mut self, out: &mut Outbox<'_>) {
        let due = out.now() + STEP;
        // Neither a longer nor a shorter wait that was replaced may be seen.
        out.wake_at(out.now() + Duration::from_secs(3_600));
        out.wake_at(out.now() + Duration::from_millis(1));
        out.wake_at(due);
        self.due = Some(due);
    }
}

impl Session for Clock {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.arm(out);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(format!("fired {}\n", self.fired).as_bytes());
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let early = self.due.is_none_or(|due| out.now() < due || Instant::now() < due);
        if !matches!(mail, Mail::Timer) || early {
            out.write(b"early, or not asked for\n");
            return Flow::Close;
        }
        out.write(format!("{}\n", self.fired).as_bytes());
        self.fired += 1;
        self.arm(out);
        if self.fired == TICKS {
            out.wake_never();
            self.due = None;
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    a_clock_ticks(model);
    what_is_put_off_comes_late(model);
}

/// Puts its alarm off with each byte it hears.
struct Sleeper {
    due: Option<Instant>,
    fired: Arc<AtomicU32>,
}

impl Session for Sleeper {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let due = out.now() + STEP;
        out.wake_at(due);
        self.due = Some(due);
        out.write(input);
        Consumed::all(input)
    }

    fn on_mail(&mut self, _mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if self.due.take().is_none_or(|due| out.now() < due) {
            return Flow::Abort; // the peer sees it
        }
        self.fired.fetch_add(1, SeqCst);
        Flow::Continue
    }
}

/// The engine may still look at the connection at the time that was put off: that is not the time.
fn what_is_put_off_comes_late(model: Model) {
    let fired = Arc::new(AtomicU32::new(0));
    let its = fired.clone();
    let service = kit::sessions(move || Sleeper { due: None, fired: its.clone() });
    let server = kit::serve(model, kit::policy(model), service);
    let mut stream = kit::connect(server.local_addr());
    let start = Instant::now();
    while start.elapsed() < 4 * STEP {
        kit::exchange(&mut stream, b"not yet");
    }
    kit::until("the alarm rings", || fired.load(SeqCst) > 0);
    kit::exchange(&mut stream, b"awake");
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Aborted), 0);
}

fn a_clock_ticks(model: Model) {
    let clock = || Clock { due: None, fired: 0 };
    let server = kit::serve(model, kit::policy(model), kit::sessions(clock).speaking_first());
    let start = Instant::now();
    let streams: Vec<_> = (0..20).map(|_| kit::connect(server.local_addr())).collect();
    let mut readers: Vec<_> = streams.into_iter().map(BufReader::new).collect();
    let hear = |reader: &mut BufReader<std::net::TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).expect("receive");
        line
    };
    for tick in 0..TICKS {
        for reader in &mut readers {
            assert_eq!(hear(reader), format!("{tick}\n"));
        }
    }
    assert!(start.elapsed() >= TICKS * STEP);
    // The timer that was taken back would have fired at one of these exchanges, or before.
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(60) {
        for reader in &mut readers {
            reader.get_mut().write_all(b"?").expect("send");
            assert_eq!(hear(reader), format!("fired {TICKS}\n"));
        }
    }
    drop(readers);
    kit::finish(server);
}
