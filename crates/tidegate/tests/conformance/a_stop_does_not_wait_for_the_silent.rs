//! Connections on which nothing is in flight end at once when the server stops, and are not reset.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Sends back what comes, and stays after the peer's end.
struct Listener;

impl Session for Listener {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        Flow::Continue
    }
}

fn case(model: Model) {
    let timeout = Duration::from_secs(45);
    let mut policy = kit::policy(model).drain_timeout(timeout);
    policy.accept.defer = None; // silent connections are to be the server's own
    let server = kit::serve(model, policy, kit::sessions(|| Listener));
    let silent: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    let mut spoken: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    spoken.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
    let mut ended = kit::connect(server.local_addr());
    ended.write_all(b"goodbye").expect("send");
    ended.shutdown(Shutdown::Write).expect("finish");
    assert_eq!(kit::hear(&mut ended, 7), b"goodbye");
    kit::until("all are inside", || server.stats().open() == 21);

    let start = Instant::now();
    server.stop();
    let stats = server.join();
    assert!(start.elapsed() < timeout, "the silent held up the stop");
    kit::check(&stats);
    assert_eq!(stats.closed_by(CloseReason::Finished), 21);
    for mut stream in silent.into_iter().chain(spoken).chain([ended]) {
        assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
    }
}
