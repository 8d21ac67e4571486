//! Two servers accept from one listening socket, the first stops, and nobody is refused or cut off.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

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

/// A server that stops closes connections that have said nothing for a second. A caller that a busy machine has kept
/// from speaking for half of it calls again.
const SPEAKS_WITHIN: Duration = Duration::from_millis(500);

/// Calls until it has the answer, and returns how many calls were too late for one.
fn call(to: &Endpoint) -> u64 {
    let mut late = 0;
    loop {
        let mut stream = kit::connect_somehow(to); // only one of the two has the name of the listener
        let connected = Instant::now();
        let sent = stream.write_all(b"hello");
        let is_late = connected.elapsed() > SPEAKS_WITHIN;
        let mut back = String::new();
        match sent.and_then(|()| stream.read_to_string(&mut back)) {
            Ok(5) if back == "hello" => return late,
            _ if is_late => late += 1,
            failed => panic!("no answer: {failed:?}, {back:?}"),
        }
    }
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
                    let (mut after, mut late) = (0, 0);
                    for done in 0..MOST_CALLS {
                        late += call(&addr);
                        after += usize::from(over.load(Relaxed));
                        if after == CALLS {
                            return (done as u64 + 1, late);
                        }
                    }
                    (MOST_CALLS as u64, late)
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
        let (mut calls, mut late) = (0, 0);
        for caller in callers {
            let its = caller.join().expect("no call failed");
            (calls, late) = (calls + its.0, late + its.1);
        }
        second.stop();
        let second = second.join();
        kit::check(&first);
        kit::check(&second);
        assert!(second.accepted >= CALLS as u64, "{model}: who else should have answered?");
        assert!((calls..=calls + late).contains(&(first.accepted + second.accepted)), "{model}");
        let finished = first.closed_by(CloseReason::Finished) + second.closed_by(CloseReason::Finished);
        assert_eq!(finished, calls, "{model}");
    }
}
