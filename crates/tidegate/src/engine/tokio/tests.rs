//! What the acceptor of this model does when accepts fail, with a listener that fails on request; and wake-ups of tasks
//! over shared memory.

use std::collections::VecDeque;
use std::sync::Mutex;

use ::tokio::task::yield_now;
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use tidegate_os::descriptor::OwnedFd;
use tidegate_os::socket::ListenOptions;

use super::*;
use crate::engine::worker::admission::tests::registry;
use crate::engine::worker::registry::Order;
#[cfg(target_os = "linux")]
use crate::fastpath::{
    MemoryLink,
    layout::{LinkEnd, Rings},
};
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

/// A link over a connected socket, and its peer's.
#[cfg(target_os = "linux")]
fn links() -> (MemoryLink, MemoryLink) {
    const RING: usize = 4096;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (rings, _) = Rings::create(RING).unwrap();
    let link = |socket: std::net::TcpStream, end| {
        socket.set_nonblocking(true).unwrap();
        MemoryLink::new(OwnedFd::from(socket).into(), &rings, end)
    };
    (link(near, LinkEnd::Dialler), link(listener.accept().unwrap().0, LinkEnd::Listener))
}

#[cfg(target_os = "linux")]
#[test]
fn a_wake_up_that_the_reading_side_takes_is_for_the_writing_side_too() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (near, far) = links();
        let mut stream = local::over(near).unwrap();
        let (mut polls, mut written) = (0, 0);
        let goes_on = poll_fn(|task| {
            polls += 1;
            let mut room = [0; 16];
            let mut write = |task: &mut TaskContext<'_>| Pin::new(&mut stream).poll_write(task, &[7; 4096]);
            if polls == 1 {
                while let Poll::Ready(n) = write(task) {
                    written += n.unwrap();
                }
                // The peer takes what is there, and so has this side woken.
                assert_eq!(far.receive(&mut [0; 8192]).unwrap(), written);
            } else if polls > 2 {
                return write(task);
            }
            assert!(Pin::new(&mut stream).poll_read(task, &mut ReadBuf::new(&mut room)).is_pending());
            Poll::Pending
        });
        const LIMIT: Duration = Duration::from_secs(60);
        let begun = Instant::now();
        let sent = ::tokio::time::timeout(LIMIT, goes_on).await; // polls once more at its end
        assert!(begun.elapsed() < LIMIT, "the task was not woken for the room");
        assert_eq!(sent.expect("it is woken").unwrap(), 4096);
    });
}
