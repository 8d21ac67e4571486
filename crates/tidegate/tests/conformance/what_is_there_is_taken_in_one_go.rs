//! A connection with more data than a receive buffer holds is received from until there is no more, or
//! [`Policy::drain_budget`] is used up and others have their turn: on loops over readiness, on `uring` where the kernel
//! can count (Linux 6.17), and where a receive has waited without a buffer (`iocp` and `overlapped`).

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, mpsc};

use tidegate::policy::ReceiveStyle;
use tidegate::{Consumed, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const BUFFER: usize = 4096;
/// As many as the kernel of every system keeps for a connection.
const BUFFERS: usize = 12;

/// Holds its thread up at the first byte until all the others are there, and answers when it has taken them.
struct Collects {
    others: Arc<Mutex<mpsc::Receiver<()>>>,
    taken: usize,
}

impl Session for Collects {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if self.taken == 0 {
            let _ = self.others.lock().expect("the other end").recv();
        }
        self.taken += input.len();
        if self.taken == 1 + BUFFERS * BUFFER {
            out.write(b".");
        }
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let (at_once, one_by_one) = (wake_ups(model, BUFFERS), wake_ups(model, 1));
    println!("{model}: {at_once} wake-ups, and {one_by_one} one by one");
    let counts = match model {
        Model::Blocking | Model::Pool | Model::Tokio | Model::Rio => false,
        Model::Uring => kernel() >= [6, 17],
        _ => true,
    };
    // Over shared memory each receive is a wake-up, whatever the budget.
    if counts && !kit::is_fast() {
        // A loop over readiness may look at a connection twice in one.
        assert!(at_once <= 2 && one_by_one >= BUFFERS as u64 / 3, "{at_once} and {one_by_one} wake-ups");
    }
}

/// The first two numbers of Linux' version.
fn kernel() -> [u32; 2] {
    let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse().ok());
    [(); 2].map(|()| numbers.next().expect("two numbers"))
}

/// Wake-ups in which the thread takes what has come meanwhile.
fn wake_ups(model: Model, drain_budget: usize) -> u64 {
    let (go_on, others) = mpsc::channel();
    let others = Arc::new(Mutex::new(others));
    let mut policy = kit::policy(model).drain_budget(drain_budget).buffer_bytes(BUFFER);
    if model != Model::Blocking {
        (policy.threads, policy.receive) = (NonZeroUsize::new(1), ReceiveStyle::ZeroByte);
    }
    let service = kit::sessions(move || Collects { others: others.clone(), taken: 0 });
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"?").expect("send");
    kit::until("the first byte is there", || server.stats().receives == 1);
    stream.write_all(&[b'x'; BUFFERS * BUFFER]).expect("send");
    let before = server.stats().wake_ups;
    go_on.send(()).expect("the session waits");
    assert_eq!(kit::hear(&mut stream, 1), b".");
    let used = server.stats().wake_ups - before;
    drop(stream);
    kit::finish(server);
    used
}
