//! [`Policy::coalesce`]: a loop that pauses to let requests gather answers every one of them, in order and whole; a
//! lone request, mail and a stop get through all the same; and it does pause where requests come densely.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Consumed, Endpoint, Flow, Mail, Mailbox, Model, Outbox, Policy, Recipient, Running, Session, Stats};

use crate::kit::{self, Echo, Tape};

on_every_model!(case);

const BUDGETS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(10)];
/// So many pauses are more than attempts to pause: they have been found to be worth it.
const MANY: u64 = 100;
const CALLERS: u64 = 12;
/// How often, and for how long, a server is tried that may not get a processor in time: its first attempts to pause
/// follow within half a second, later ones at growing distances.
const TRIES: usize = 10;
const EACH: Duration = Duration::from_secs(4);

fn case(model: Model) {
    for coalesce in BUDGETS {
        let policy = kit::with_threads(model, 1).coalesce(coalesce);
        let Some(policy) = kit::kept_by(model, policy, "coalesce") else { return };
        a_lone_request_is_answered(model, policy.clone());
    }
    // A longer budget needs fewer requests a second to be worth it, so a slow machine will do.
    let policy = kit::with_threads(model, 1).coalesce(BUDGETS[1]);
    dense_requests_are_answered(model, &policy);
    mail_and_a_stop_get_through(model, policy.clone());
    let Policy { coalesce, threads, events_per_wait, .. } = policy; // a look that may bring one event gathers nothing
    dense_requests_are_answered(
        model,
        &kit::tight(model).coalesce(coalesce).threads(threads).events_per_wait(events_per_wait),
    );
}

fn a_lone_request_is_answered(model: Model, policy: Policy) {
    let (service, _) = Echo::service();
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect(server.local_addr());
    for n in 0..200 {
        kit::exchange(&mut stream, &[n; 100]);
    }
    kit::exchange(&mut stream, &[7; 60_000]);
    drop(stream);
    kit::until("it is closed", || server.stats().open() == 0);
    let stats = kit::finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), (80_000, 80_000));
}

/// A caller with several connections, until it is enough.
fn call(addr: &Endpoint, enough: &AtomicBool) {
    while !enough.load(SeqCst) {
        let mut streams: Vec<_> = (0..3).map(|i| (kit::connect(addr), Tape::new(i))).collect();
        for n in 0..20 {
            for (stream, tape) in &mut streams {
                kit::exchange(stream, &tape.piece(n, 1 + n as usize * 97));
            }
        }
    }
}

/// Waits until a server has paused often, but not for long.
fn wait_for_pauses(server: &Running) {
    let begun = Instant::now();
    while server.stats().pauses <= MANY && begun.elapsed() < kit::slow(EACH) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// It pauses, unless a busy machine wakes it so late that half of all callers have gathered by then, each time.
fn dense_requests_are_answered(model: Model, policy: &Policy) {
    let progress = kit::progress();
    let tried = (0..TRIES).map(|_| {
        progress.step();
        dense_requests(model, policy.clone())
    });
    let pauses = |stats: &Stats| stats.pauses > MANY && stats.paused_us > 0;
    let gathered = |stats: &Stats| stats.events > stats.wake_ups * CALLERS / 2;
    let all: Vec<Stats> = tried.take_while(|stats| !pauses(stats)).collect();
    assert!(all.len() < TRIES || all.iter().all(gathered), "it did not pause: {all:?}");
}

fn dense_requests(model: Model, policy: Policy) -> Stats {
    let (service, _) = Echo::service();
    let server = kit::serve(model, policy, service);
    let addr = server.local_addr();
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| call(addr, &enough));
        }
        wait_for_pauses(&server);
        enough.store(true, SeqCst);
    });
    kit::until("all are closed", || server.stats().open() == 0);
    let stats = kit::finish(server);
    assert_eq!(stats.bytes_in, stats.bytes_out);
    stats
}

/// Echoes, and sends its mail.
struct Guest(Sender<Mailbox<u8>>);

impl Recipient for Guest {
    type Message = u8;
}

impl Session for Guest {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input == b"mailbox" {
            let _ = self.0.send(Self::mailbox(out));
        }
        out.write(input);
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if let Mail::Message(message) = mail {
            out.write(&[Self::unpack(message)]);
        }
        Flow::Continue
    }
}

fn mail_and_a_stop_get_through(model: Model, policy: Policy) {
    let (tells, mailboxes) = channel();
    let server = kit::serve(model, policy, kit::sessions(move || Guest(tells.clone())));
    let addr = server.local_addr();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (mut stream, mut back) = (kit::connect(addr), [0; 7]);
                // Until the server ends the connection.
                while stream.write_all(b"request").is_ok() && stream.read_exact(&mut back).is_ok() {
                    assert_eq!(&back, b"request");
                }
            });
        }
        wait_for_pauses(&server);
        let mut reader = kit::connect(addr);
        kit::exchange(&mut reader, b"mailbox");
        let mailbox = mailboxes.recv().expect("its mailbox");
        for n in 0..20_u8 {
            mailbox.send(n).expect("mail");
            assert_eq!(kit::hear(&mut reader, 1), [n]);
        }
        server.stop();
    });
    kit::finish(server);
}
