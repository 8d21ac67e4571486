//! With [`WhenFull::Refuse`] and several I/O threads nobody is refused before [`Policy::max_connections`] are open,
//! whichever thread a connection happens to come to.

use tidegate::Model;
use tidegate::policy::WhenFull;

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

const MOST: usize = 9;

fn case(model: Model) {
    let mut policy = kit::with_threads(model, 3).max_connections(MOST).when_full(WhenFull::Refuse);
    policy.accept.defer = None;
    for _ in 0..10 {
        let (service, _) = Echo::service();
        let server = kit::serve(model, policy.clone(), service);
        let mut inside: Vec<_> = (0..MOST).map(|_| kit::connect(server.local_addr())).collect();
        inside.iter_mut().for_each(|stream| kit::exchange(stream, b"inside"));
        assert_eq!(server.stats().refused, 0);
        let mut refused = kit::connect(server.local_addr());
        assert_eq!(kit::hear_all(&mut refused), (Vec::new(), Ending::EndOfStream));
        kit::until("it is counted", || server.stats().refused == 1);
        drop(inside);
        kit::finish(server);
    }
}
