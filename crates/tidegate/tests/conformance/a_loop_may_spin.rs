//! [`Policy::wait`]: a loop that spins serves, keeps time, takes mail and stops like one that sleeps; spinning for a
//! time ends. More connections than it serves in one go get their turns, too.

use std::io::Write;
use std::time::Duration;

use tidegate::policy::Wait;
use tidegate::{Model, Running};

use crate::kit::{self, Echo, HoldableEcho};

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
            // Its thread may have had no processor yet to find out that its time is over; and one that spins on may
            // have none for a while, but not always.
            kit::until("it spins no more", || wake_ups_in(&server, Duration::from_millis(100)) < 200);
            let more: Vec<_> = (0..5).map(|_| wake_ups_in(&server, Duration::from_millis(200))).collect();
            assert!(more.iter().all(|&n| n < 200), "it spins again: {more:?}");
        }
        kit::finish(server);
    }
    many_at_once(model);
}

fn wake_ups_in(server: &Running, time: Duration) -> u64 {
    let before = server.stats().wake_ups;
    kit::measure_for(time);
    server.stats().wake_ups - before
}

/// More than a loop serves before it asks the kernel again. On Windows some models have a thread for each 62
/// connections, and all of them would spin: there it is one such thread.
const MANY: usize = if cfg!(windows) { 60 } else { 300 };

/// All have something to say when the thread looks at them next.
fn many_at_once(model: Model) {
    let Some(policy) = kit::kept_by(model, kit::with_threads(model, 1).wait(Wait::Spin), "wait") else { return };
    let (service, thread) = HoldableEcho::service();
    let server = kit::serve(model, policy, service);
    let mut streams: Vec<_> = (0..MANY).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"?"));
    let (first, others) = streams.split_first_mut().expect("some");
    thread.hold(first);
    others.iter_mut().for_each(|stream| stream.write_all(b"!").expect("send"));
    kit::measure_for(Duration::from_millis(100)); // the last of them is on its way
    thread.release();
    assert_eq!(kit::hear(first, 1), HoldableEcho::HOLD);
    others.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 1), b"!"));
    drop(streams);
    kit::finish(server);
}
