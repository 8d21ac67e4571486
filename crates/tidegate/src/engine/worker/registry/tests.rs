//! A waker may call back when it is woken or dropped; and whom a lack of memory costs what.

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
            TaskWaker::from(Arc::new(ComesBack { registry, inbox, woken: woken.clone() }))
        };
        let accepts = || _ = registry.poll_turn(&TaskContext::from_waker(&waker(&slot.inbox)));
        slot.inbox.wakes(&waker(&slot.inbox));
        slot.inbox.wakes(&waker(&slot.inbox));
        accepts();
        accepts();
        slot.inbox.post(ALONE, Mail::Timer).expect("there is room");
        assert_eq!(woken.load(Relaxed), 1);
        registry.set_policy(Arc::new(Policy::default()));
        assert_eq!(woken.load(Relaxed), 3);
        accepts();
        registry.order_all(Order::Drain);
        assert_eq!(woken.load(Relaxed), 5);
        accepts();
        let inbox = slot.inbox.clone();
        drop(slot);
        assert_eq!(woken.load(Relaxed), 6);
        drop(inbox);
        done.send(()).expect("the test waits");
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("it comes to an end");
}

/// Connections that are served, in the order in which they were looked after last.
fn served(registry: &Arc<ConnectionRegistry>, count: usize) -> Vec<RegistrySlot> {
    let looked_after = |_| {
        let slot = registry.enter();
        assert_eq!(slot.inbox.waiting(), None);
        slot
    };
    (0..count).map(looked_after).collect()
}

/// Which of them are to close for lack of memory; those that were named before are not named again.
fn shed(slots: &[RegistrySlot]) -> Vec<usize> {
    let is_named = |slot: &RegistrySlot| {
        let shed = slot.inbox.last_order() == Some(Order::Shed);
        if shed {
            assert!(matches!(slot.inbox.take(), Some(crate::proto::Event::Shed)));
        }
        shed
    };
    slots.iter().enumerate().filter(|(_, slot)| is_named(slot)).map(|(at, _)| at).collect()
}

fn turn(registry: &ConnectionRegistry) -> AcceptStep {
    registry.poll_turn(&TaskContext::from_waker(TaskWaker::noop()))
}

#[test]
fn for_lack_of_memory_accepting_pauses_and_only_in_the_end_the_longest_idle_are_closed() {
    const AFTER: Duration = Duration::from_millis(200);
    let registry = registry(Policy { shed_after: Some(AFTER), ..Policy::default() });
    let unserved = registry.enter(); // nobody knows since when it rests
    let slots = served(&registry, 40);
    slots[0].inbox.post(ALONE, Mail::Timer).expect("there is room"); // it does not rest
    registry.relieve();
    assert_eq!(turn(&registry), AcceptStep::Accept(Admission::Admit), "nothing has failed");

    registry.io_counters[0].no_memory.add(1); // of a thread that serves connections
    registry.relieve();
    assert!(matches!(turn(&registry), AcceptStep::Wait(Some(_))));
    assert_eq!(shed(&slots), [0; 0], "others may give memory back");

    std::thread::sleep(AFTER);
    registry.counters.no_memory.add(1); // of the others
    registry.relieve();
    assert_eq!(shed(&slots), [1, 2, 3], "a sixteenth of 40, and not the one that has something to do");
    assert_eq!(unserved.inbox.last_order(), None);

    registry.io_counters[0].no_memory.add(1);
    registry.io_counters[0].recovered.add(1);
    registry.relieve();
    assert_eq!(shed(&slots), [0; 0], "there is memory again");
}

#[test]
fn without_a_limit_nobody_is_closed_for_lack_of_memory() {
    let registry = registry(Policy { shed_after: None, ..Policy::default() });
    let slots = served(&registry, 2);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        registry.io_counters[0].no_memory.add(1);
        registry.relieve();
        assert!(matches!(turn(&registry), AcceptStep::Wait(Some(_))), "accepting pauses");
    }
    assert_eq!(shed(&slots), [0; 0]);
}
