//! [`Accept::posted`](tidegate::policy::Accept::posted): accepts are posted one by one between two watermarks; nobody
//! is lost.

use std::num::NonZeroU32;

use tidegate::Model;
use tidegate::policy::PostedAccepts;

use crate::kit::{self, Echo};

on_every_model!(case);

fn case(model: Model) {
    for most in [100_000, 3] {
        let mut policy = kit::with_threads(model, 1).max_connections(most);
        let marks = PostedAccepts::new(NonZeroU32::MIN, NonZeroU32::new(2).unwrap());
        policy.accept.posted = Some(marks);
        let Some(policy) = kit::kept_by(model, policy, "accept.posted") else { return };
        let (service, witness) = Echo::service();
        let server = kit::serve(model, policy, service);
        let callers: Vec<_> = (0..4)
            .map(|n| {
                let addr = server.local_addr().clone();
                std::thread::spawn(move || {
                    for i in 0..50 {
                        kit::exchange(&mut kit::connect(&addr), format!("caller {n}, call {i}").as_bytes());
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("a caller"));
        let stats = kit::finish(server);
        assert_eq!(stats.accepted, 200);
        assert!(witness.peak.load(std::sync::atomic::Ordering::SeqCst) <= most);
    }
}
