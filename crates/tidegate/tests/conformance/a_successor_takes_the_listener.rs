//! Two servers accept from one listening socket, the first stops, and nobody is refused or cut off.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tidegate::{CloseReason, Consumed, Endpoint, Flow, Model, Outbox, Server, Session};

use crate::kit;

on_every_model!(case, and over Unix sockets);

/// Answers one message and closes.
struct Once;

impl Session for Once {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input).then(Flow::Close)
    }
}

const CALLERS: usize = 4;
/// Each caller makes at least so many calls before the first server stops, and so many after it has.
const CALLS: usize = 50;
const MOST_CALLS: usize = 20_000;

fn call(to: &Endpoint) -> std::io::Result<String> {
    let mut stream = kit::connect_somehow(to); // only one of the two has the name of the listener
    stream.write_all(b"hello")?;
    let mut back = String::new();
    stream.read_to_string(&mut back)?;
    Ok(back)
}

fn case(model: Model) {
    if !model.shares_listener_with(model) {
        return; // and does not promise to
    }
    for defers in [true, false] {
        let mut policy = kit::policy(model);
        policy.accept.defer = policy.accept.defer.or(Some(Duration::from_secs(1))).filter(|_| defers);
        let make = || Server::new(kit::sessions(|| Once)).model(model).policy(policy.clone());
        let bound = make().bind(kit::somewhere()).expect("bind");
        let addr = bound.local_addr().clone();
        let socket = bound.share_listener().expect("a second descriptor");
        let mut first = bound.start().expect("start");
        let over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (over, addr) = (over.clone(), addr.clone());
                std::thread::spawn(move || {
                    let mut after = 0;
                    for done in 0..MOST_CALLS {
                        assert_eq!(call(&addr).expect("an answer"), "hello");
                        after += usize::from(over.load(Relaxed));
                        if after == CALLS {
                            return done + 1;
                        }
                    }
                    MOST_CALLS
                })
            })
            .collect();
        kit::until("the first serves", || first.stats().accepted >= (CALLERS * CALLS) as u64);
        let second = make().listen_on(socket).expect("adopt").own_socket_file().expect("its file");
        assert_eq!(second.local_addr(), &addr);
        let second = second.start().expect("start");
        first.keep_socket_file();
        first.stop();
        let first = first.join();
        over.store(true, Relaxed);
        let calls: usize = callers.into_iter().map(|caller| caller.join().expect("no call failed")).sum();
        second.stop();
        let second = second.join();
        kit::check(&first);
        kit::check(&second);
        assert!(second.accepted >= CALLS as u64, "{model}: who else should have answered?");
        assert_eq!(first.accepted + second.accepted, calls as u64, "{model}");
        let finished = first.closed_by(CloseReason::Finished) + second.closed_by(CloseReason::Finished);
        assert_eq!(finished, calls as u64, "{model}");
    }
}
