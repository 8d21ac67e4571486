//! [`Policy::max_receiving`]: only so many connections receive at once, and silent ones do not keep the others out.

use std::io::Write;
use std::num::NonZeroUsize;

use tidegate::Model;

use crate::kit::{self, Echo};

on_every_model!(case);

fn case(model: Model) {
    let policy = kit::with_threads(model, 1).max_receiving(NonZeroUsize::new(2));
    let Some(policy) = kit::kept_by(model, policy, "max_receiving") else { return };
    let (service, _) = Echo::service();
    let mut policy = policy;
    policy.accept.defer = None; // silent connections are to come in first
    let server = kit::serve(model, policy, service);
    let silent: Vec<_> = (0..4).map(|_| kit::connect(server.local_addr())).collect();
    kit::until("the silent ones are in", || server.stats().accepted == 4);
    let mut speaking: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    for round in 0..3 {
        for stream in &mut speaking {
            stream.write_all(&[round; 100]).expect("send");
        }
        for stream in &mut speaking {
            assert_eq!(kit::hear(stream, 100), [round; 100]);
        }
    }
    drop((silent, speaking));
    kit::until("all have left", || server.stats().open() == 0);
    kit::finish(server);
}
