//! `wake_at` brings [`Mail::Timer`] at its time and not before; a later call replaces it, `wake_never` takes it back.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use tidegate::{Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const TICKS: u32 = 8;

/// Says a number at each of its ticks, then tells how often it was woken when asked.
struct Clock {
    step: Duration,
    due: Option<Instant>,
    fired: u32,
}

impl Clock {
    fn arm(&mut self, out: &mut Outbox<'_>) {
        let due = out.now() + self.step;
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
    let clock = || Clock { step: Duration::from_millis(25), due: None, fired: 0 };
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
    assert!(start.elapsed() >= TICKS * Duration::from_millis(25));
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
