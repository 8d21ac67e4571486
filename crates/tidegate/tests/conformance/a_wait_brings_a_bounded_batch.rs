//! [`Policy::events_per_wait`](tidegate::Policy::events_per_wait): a wait brings no more events, however many are
//! there, and the rest of them by the next waits, without any delay.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tidegate::{Consumed, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const LIMIT: usize = 4;
const CLIENTS: usize = 40;
const HOLD: &[u8] = b"h";
const ECHO: &[u8] = b"e";

fn case(model: Model) {
    if matches!(model, Model::Blocking | Model::Pool | Model::Tokio) {
        return; // no wait of theirs is for several connections; the policy says that the limit has no effect
    }
    let (holding, is_held) = channel();
    let (release, released) = channel();
    let holder = Arc::new(Holder { holding: Mutex::new(holding), released: Mutex::new(released) });
    let policy = kit::policy(model).events_per_wait(LIMIT);
    let grows = matches!(model, Model::EventSelect | Model::Overlapped);
    let policy = if grows { policy } else { policy.threads(NonZeroUsize::new(1)) };
    let server = kit::serve(model, policy, kit::sessions(move || Gated(holder.clone())));

    let mut streams: Vec<_> = (0..CLIENTS).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, ECHO));
    let mut first = kit::connect(server.local_addr());
    first.write_all(HOLD).expect("send");
    is_held.recv().expect("the session holds its thread");
    streams.iter_mut().for_each(|stream| stream.write_all(ECHO).expect("send"));
    release.send(()).expect("the session waits for it");
    streams.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 1), ECHO));
    assert_eq!(kit::hear(&mut first, 1), HOLD);

    drop((streams, first));
    let most = kit::finish(server).largest_batch;
    match model {
        _ if kit::is_fast() => {} // what is in shared memory is found without a wait
        Model::Epoll | Model::Uring | Model::AsyncSelect | Model::Iocp | Model::Rio => {
            assert!(most <= LIMIT as u64, "a wait brought {most} events");
        }
        Model::Select | Model::Poll => assert!(most > LIMIT as u64, "it has an effect: {most} events at most"),
        _ => {} // one wait for each of its threads, of which there may be several
    }
}

struct Holder {
    holding: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
}

/// Echoes; for a byte that asks for it, keeps its thread until the case lets it go on.
struct Gated(Arc<Holder>);

impl Session for Gated {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input == HOLD {
            self.0.holding.lock().expect("one at a time").send(()).expect("the case waits for it");
            self.0.released.lock().expect("one at a time").recv().expect("the case lets it go on");
        }
        out.write(input);
        Consumed::all(input)
    }
}
