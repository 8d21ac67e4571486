//! What the acceptor of this model does when accepts fail, with a listener that fails on request.

use std::collections::VecDeque;
use std::sync::Mutex;

use ::tokio::task::yield_now;
use rustix::io::Errno;
use tidegate_os::socket::ListenOptions;

use super::*;
use crate::engine::worker::admission::tests::registry;
use crate::engine::worker::registry::Order;
use crate::policy::Policy;

/// Fails with these errors, one after the other; then nothing comes.
struct Failing(Arc<Mutex<VecDeque<Errno>>>);

impl AsyncListener for Failing {
    type Stream = TcpStream;

    fn poll_accept(&self, _: &mut TaskContext<'_>) -> Poll<AcceptResult<TcpStream>> {
        match self.0.lock().unwrap().pop_front() {
            Some(errno) => Poll::Ready(Err(errno.into())),
            None => Poll::Pending,
        }
    }
}

#[test]
fn only_a_shortage_pauses_accepting_and_a_connection_that_closes_ends_the_pause() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let registry = registry(Policy::default());
        let mut slot = None;
        registry.accept_next(Admission::Admit, || Ok(()), |(), place| slot = place);
        let errors = [Errno::CONNABORTED, Errno::PROTO, Errno::MFILE, Errno::CONNABORTED];
        let errors = Arc::new(Mutex::new(VecDeque::from(errors)));
        let left = || errors.lock().unwrap().len();
        let at = "127.0.0.1:0".parse().unwrap();
        let same = Arc::new(Listener::bind(&at, &ListenOptions::new(1)).unwrap());
        same.set_blocking(Blocking::Never).unwrap();
        let accepting = ::tokio::spawn(accept_all(registry.clone(), Failing(errors.clone()), same));

        // The acceptor runs whenever it can: nothing here takes as long as the pause.
        while left() > 1 {
            yield_now().await;
        }
        assert_eq!(registry.counters.no_descriptors.get(), 1);
        drop(slot);
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(left(), 0, "a descriptor is free, and accepting goes on");
        assert_eq!(registry.counters.attempted.get(), 1 + 4);
        registry.order_all(Order::Drain);
        accepting.await.unwrap();
    });
}
