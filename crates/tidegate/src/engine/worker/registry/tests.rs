//! A waker may call back when it is woken or dropped.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::task::Wake;

use super::super::admission::tests::registry;
use super::*;
use crate::proto::mail::MailSink;
use crate::service::Mail;

/// Asks the registry and a mailbox something when it is woken, and when it is dropped.
struct ComesBack {
    registry: Weak<ConnectionRegistry>,
    inbox: Weak<Inbox>,
    woken: Arc<AtomicUsize>,
}

impl ComesBack {
    fn come_back(&self) {
        if let (Some(registry), Some(inbox)) = (self.registry.upgrade(), self.inbox.upgrade()) {
            let _ = (registry.open(), inbox.has_delivery());
        }
    }
}

impl Wake for ComesBack {
    fn wake(self: Arc<Self>) {
        self.come_back();
        self.woken.fetch_add(1, Relaxed);
    }
}

impl Drop for ComesBack {
    fn drop(&mut self) {
        self.come_back();
    }
}

#[test]
fn nobody_is_woken_or_let_go_of_under_a_lock() {
    let (done, finished) = mpsc::channel();
    // On a separate thread: a deadlock does not end.
    std::thread::spawn(move || {
        let registry = registry(Policy::default());
        let slot = registry.enter();
        let woken = Arc::<AtomicUsize>::default();
        let waker = |inbox: &Arc<Inbox>| {
            let (registry, inbox) = (Arc::downgrade(&registry), Arc::downgrade(inbox));
            Waker::from(Arc::new(ComesBack { registry, inbox, woken: woken.clone() }))
        };
        let accepts = || _ = registry.poll_turn(&TaskContext::from_waker(&waker(&slot.post)));
        slot.post.wakes(&waker(&slot.post));
        slot.post.wakes(&waker(&slot.post));
        accepts();
        accepts();
        slot.post.post(ALONE, Mail::Timer).expect("there is room");
        assert_eq!(woken.load(Relaxed), 1);
        registry.set_policy(Arc::new(Policy::default()));
        assert_eq!(woken.load(Relaxed), 3);
        accepts();
        registry.order_all(Order::Drain);
        assert_eq!(woken.load(Relaxed), 5);
        accepts();
        let inbox = slot.post.clone();
        drop(slot);
        assert_eq!(woken.load(Relaxed), 6);
        drop(inbox);
        done.send(()).expect("the test waits");
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("it comes to an end");
}
