//! [`Policy::wait`]: a loop that spins serves, keeps time, takes mail and stops like one that sleeps; spinning for a
//! time ends. More connections than it serves in one go get their turns, too.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tidegate::policy::Wait;
use tidegate::{Consumed, Model, Outbox, Session};

use crate::kit::{self, Echo};

on_every_model!(case);

fn case(model: Model) {
    for wait in [Wait::Spin, Wait::SpinThenBlock(Duration::from_millis(20))] {
        let policy = kit::with_threads(model, 1).wait(wait);
        let Some(policy) = kit::kept_by(model, policy, "wait") else { return };
        let (service, _) = Echo::service();
        let server = kit::serve(model, policy.clone(), service);
        let mut stream = kit::connect(server.local_addr());
        for n in 0..20_u8 {
            kit::exchange(&mut stream, &[n; 1000]);
        }
        let idle = Some(Duration::from_millis(300));
        let brief = policy.idle_timeout(idle).first_byte_timeout(idle);
        server.set_policy(brief).expect("a shorter time limit");
        kit::until("a timer closes it", || server.stats().open() == 0);
        if wait != Wait::Spin {
            kit::measure_for(Duration::from_millis(50)); // more than it spins for
            let before = server.stats().wake_ups;
            kit::measure_for(Duration::from_millis(100));
            assert!(server.stats().wake_ups - before < 200, "it still spins");
        }
        kit::finish(server);
    }
    many_at_once(model);
}

/// More than a loop serves before it asks the kernel again. On Windows some models have a thread for each 62
/// connections, and all of them would spin: there it is one such thread.
const MANY: usize = if cfg!(windows) { 60 } else { 300 };

/// Echoes, but a `h` holds the thread up until the gate is open.
struct Gated(Arc<AtomicBool>);

impl Session for Gated {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input.contains(&b'h') {
            kit::until("the gate is open", || self.0.load(SeqCst));
        }
        out.write(input);
        Consumed::all(input)
    }
}

/// All have something to say when the thread looks at them next.
fn many_at_once(model: Model) {
    let Some(policy) = kit::kept_by(model, kit::with_threads(model, 1).wait(Wait::Spin), "wait") else { return };
    let gate = Arc::new(AtomicBool::new(false));
    let its = gate.clone();
    let server = kit::serve(model, policy, kit::sessions(move || Gated(its.clone())));
    let mut streams: Vec<_> = (0..MANY).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"?"));
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(if n == 0 { b"h" } else { b"!" }).expect("send");
    }
    kit::measure_for(Duration::from_millis(100)); // the last of them is on its way
    gate.store(true, SeqCst);
    for (n, stream) in streams.iter_mut().enumerate() {
        assert_eq!(kit::hear(stream, 1), if n == 0 { b"h" } else { b"!" });
    }
    drop(streams);
    kit::finish(server);
}
