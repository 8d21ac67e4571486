//! A session has any number of timers under keys: each comes at its time and not before, in order, beside the one
//! without a key; one that is set again is replaced, and one that is taken back does not come.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use tidegate::{Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const STEP: Duration = Duration::from_millis(3);
const TIMERS: u64 = 40;

/// Told to begin, sets many timers in the wrong order; says which come, and whether it asked for them.
#[derive(Default)]
struct Clocks {
    /// What is due, by key; the timer without one is `TIMERS`.
    due: Vec<Option<Instant>>,
}

impl Clocks {
    fn set(&mut self, key: u64, when: Instant, out: &mut Outbox<'_>) {
        out.set_timer(key, when);
        self.due[key as usize] = Some(when);
    }
}

impl Session for Clocks {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let start = out.now();
        self.due = vec![None; TIMERS as usize + 1];
        for key in (0..TIMERS).rev() {
            // Neither a shorter nor a longer one that was replaced may be seen.
            out.set_timer(key, start + Duration::from_millis(1));
            out.set_timer(key, start + Duration::from_secs(3_600));
            self.set(key, start + STEP * (1 + key as u32 / 2), out); // two at a time
        }
        let middle = start + STEP * (TIMERS as u32 / 4) + STEP / 2;
        out.wake_at(middle);
        self.due[TIMERS as usize] = Some(middle);
        for key in (0..TIMERS).filter(|key| key % 5 == 4) {
            let was_set = out.cancel_timer(key);
            let again = out.cancel_timer(key);
            self.due[key as usize] = None;
            if !was_set || again {
                return Consumed::all(input).then(Flow::Abort);
            }
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let key = match mail {
            Mail::KeyedTimer(key) => key,
            Mail::Timer => TIMERS,
            _ => return Flow::Abort,
        };
        let due = self.due[key as usize].take();
        let others = self.due.iter().flatten().min();
        let in_order = others.is_none_or(|&other| due.is_some_and(|due| due <= other));
        let early = due.is_none_or(|due| out.now() < due || Instant::now() < due);
        let what = if early {
            "early"
        } else if in_order {
            "right"
        } else {
            "out of order"
        };
        out.write(format!("{key} {what}\n").as_bytes());
        if others.is_none() {
            out.write(b"all\n");
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let server = kit::serve(model, kit::policy(model), kit::sessions(Clocks::default));
    let streams: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    let mut readers: Vec<_> = streams.into_iter().map(BufReader::new).collect();
    for _ in 0..2 {
        readers.iter_mut().for_each(|reader| reader.get_mut().write_all(b"go").expect("send"));
        for reader in &mut readers {
            let mut came = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("receive");
                if line == "all\n" {
                    break;
                }
                let (key, what) = line.trim_end().split_once(' ').expect("a key");
                assert_eq!(what, "right", "timer {key}");
                came.push(key.parse::<u64>().expect("a key"));
            }
            came.sort_unstable();
            let expected: Vec<u64> = (0..=TIMERS).filter(|key| key % 5 != 4 || *key == TIMERS).collect();
            assert_eq!(came, expected);
        }
    }
    drop(readers);
    kit::finish(server);
}
