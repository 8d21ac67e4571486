//! A session that shuts its sending side down reaches its own peer and nobody else's, while connections come and go.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use tidegate::{Consumed, Endpoint, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Progress};

on_every_model!(case);

/// Threads whose connections come and go, and threads whose connections wait.
const CROWD: usize = 6;
const PATIENT: usize = 6;
/// Connections of each patient thread, so many at once.
const ROUNDS: usize = 60;
const AT_ONCE: usize = 4;
/// Connections that come and go while a patient one waits.
const MEANWHILE: usize = 12;

/// Answers once, and has nothing more to say.
struct Once;

impl Session for Once {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input).then(Flow::Shutdown)
    }
}

fn case(model: Model) {
    let server = kit::serve(model, kit::with_threads(model, 1), kit::sessions(|| Once));
    let addr = server.local_addr();
    let (gone, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (gone, over, progress) = (&gone, &over, &kit::progress());
    let wrong: usize = thread::scope(|scope| {
        for _ in 0..CROWD {
            scope.spawn(move || come_and_go(addr, gone, over));
        }
        let patient: Vec<_> = (0..PATIENT).map(|_| scope.spawn(move || wait_and_ask(addr, gone, progress))).collect();
        let wrong = patient.into_iter().map(|thread| thread.join()).collect::<Vec<_>>();
        over.store(true, SeqCst);
        wrong.into_iter().map(|wrong| wrong.expect("a patient thread")).sum()
    });
    let all = PATIENT * ROUNDS * AT_ONCE;
    assert_eq!(wrong, 0, "of {all} patient connections so many ended without their answer");
    kit::finish(server);
}

fn come_and_go(addr: &Endpoint, gone: &AtomicUsize, over: &AtomicBool) {
    while !over.load(SeqCst) {
        let mut stream = kit::connect_from_anywhere(addr);
        // A peer that is shut down in a stranger's place may find the stream closed.
        let asked = stream.write_all(b"!").and_then(|()| stream.shutdown(Shutdown::Write));
        if asked.is_ok() {
            kit::hear_all(&mut stream);
        }
        gone.fetch_add(1, SeqCst);
    }
}

/// How many of its connections ended without their answer.
fn wait_and_ask(addr: &Endpoint, gone: &AtomicUsize, progress: &Progress) -> usize {
    let mut wrong = 0;
    for _ in 0..ROUNDS {
        progress.step();
        let streams: Vec<_> = (0..AT_ONCE).map(|_| kit::connect_from_anywhere(addr)).collect();
        let enough = gone.load(SeqCst) + MEANWHILE;
        kit::until("others have come and gone", || gone.load(SeqCst) >= enough);
        for mut stream in streams {
            let asked = stream.write_all(b"?");
            let answered =
                asked.is_ok() && kit::hear_all(&mut stream) == (b"?".to_vec(), Ending::EndOfStream);
            wrong += usize::from(!answered);
        }
    }
    wrong
}
