//! [`Policy::wait`]: a loop that spins serves, keeps time, takes mail and stops like one that sleeps; spinning for a
//! time ends.

use std::time::Duration;

use tidegate::Model;
use tidegate::policy::Wait;

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
}
