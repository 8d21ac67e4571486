//! Overlapped operations that report through events: a thread waits for at most 64 of them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use slab::Slab;
use windows_sys::Win32::Foundation::{HANDLE, WAIT_FAILED};
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::descriptor::BorrowedFd;
use super::event::EventObject;
use super::lookout::Lookout;
use super::overlapped::{BEHIND, Notifier, OfQueue, Operation, PlacedOperation, WOKEN};
use super::socket::Listener;
use super::winsock::milliseconds;

/// Handles a thread can wait for at once (`MAXIMUM_WAIT_OBJECTS`).
const MOST: usize = 64;

/// The wake event, and the event that accepts, sends and dials share.
const OWN: usize = 2;

/// A thread's events: one for each receive, one for everything else, one to be woken by.
pub struct Events {
    wake_event: Arc<EventObject>,
    shared: Arc<SharedEvent>,
    /// The acceptor has it, to tell that too few accepts are posted.
    joined: bool,
    receives: Vec<EventObject>,
    /// Events that no receive has.
    free: Vec<usize>,
    handles: [HANDLE; MOST],
}

/// The event that accepts, sends and dials of a thread share, and the signal that too few accepts are posted.
struct SharedEvent {
    event: EventObject,
    /// Accepts that are posted.
    accepts: AtomicUsize,
    too_few: AtomicBool,
}

impl SharedEvent {
    /// Too few accepts are posted. Who has none is not woken: it is full, or it has used up all and knows.
    fn notify(&self) {
        if self.accepts.load(Ordering::Relaxed) > 0 {
            self.too_few.store(true, Ordering::Release);
            self.event.set();
        }
    }
}

impl Events {
    /// Receives that can be armed at once.
    pub const RECEIVES: usize = MOST - OWN;

    /// For the calling thread.
    pub fn new() -> io::Result<Self> {
        let wake_event = Arc::new(EventObject::new()?);
        let shared = SharedEvent {
            event: EventObject::new()?,
            accepts: AtomicUsize::new(0),
            too_few: AtomicBool::new(false),
        };
        let receives = (0..Self::RECEIVES).map(|_| EventObject::new()).collect::<io::Result<Vec<_>>>()?;
        let mut handles = [wake_event.handle(); MOST];
        handles[1] = shared.event.handle();
        for (handle, event) in handles[OWN..].iter_mut().zip(&receives) {
            *handle = event.handle();
        }
        let free = (0..Self::RECEIVES).rev().collect();
        Ok(Self { wake_event, shared: Arc::new(shared), joined: false, receives, free, handles })
    }

    /// Appends what has ended, whether the wake event was set, and whether too few accepts are posted.
    fn collect(&self, operations: &Slab<PlacedOperation>, into: &mut VecDeque<usize>) {
        if self.wake_event.wait(Some(Duration::ZERO)) {
            self.wake_event.reset();
            into.push_back(WOKEN);
        }
        if self.shared.too_few.swap(false, Ordering::Acquire) {
            into.push_back(BEHIND);
        }
        into.extend(operations.iter().filter(|(_, operation)| operation.has_ended()).map(|(place, _)| place));
        fence(Ordering::Acquire); // what the kernel wrote before it said so
    }
}

impl Notifier for Events {
    type Acceptor = EventAcceptor;

    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        let wake_event = self.wake_event.clone();
        move || wake_event.set()
    }

    fn attach(&self, _: BorrowedFd<'_>, _: OfQueue) -> io::Result<()> {
        Ok(()) // each operation says where it reports
    }

    fn prepare(&mut self, operation: &mut Operation) {
        operation.event = if operation.receives() { self.free.pop() } else { None };
        let event = operation.event.map_or(&self.shared.event, |at| &self.receives[at]);
        operation.overlapped.hEvent = event.handle();
        self.shared.accepts.fetch_add(operation.accepts().into(), Ordering::Relaxed);
    }

    fn finished(&mut self, operation: &Operation) {
        if let Some(at) = operation.event {
            self.receives[at].reset();
            self.free.push(at);
        }
        self.shared.accepts.fetch_sub(operation.accepts().into(), Ordering::Relaxed);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        operations: &Slab<PlacedOperation>,
        into: &mut VecDeque<usize>,
        _: OfQueue,
    ) -> io::Result<()> {
        // First reset, then look: what ends after the look sets it again. (To begin an operation resets it, too.)
        self.shared.event.reset();
        self.collect(operations, into);
        if !into.is_empty() {
            return Ok(());
        }
        // SAFETY: all handles belong to events of `self`.
        let waited =
            unsafe { WaitForMultipleObjects(MOST as u32, self.handles.as_ptr(), 0, milliseconds(timeout)) };
        if waited == WAIT_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.collect(operations, into);
        Ok(())
    }

    fn join(&mut self, acceptor: &EventAcceptor) {
        if !std::mem::replace(&mut self.joined, true) {
            let shared = self.shared.clone();
            acceptor.lookout.join(move || shared.notify());
        }
    }

    fn listener(acceptor: &Arc<EventAcceptor>) -> Arc<Listener> {
        acceptor.listener.clone()
    }
}

/// A listener whose accepts are posted by several threads, each of which has [`Events`].
///
/// That a connection has found no accept sets no event that threads wait for themselves: it would take the place of a
/// connection in each, and wake those that are full.
pub struct EventAcceptor {
    listener: Arc<Listener>,
    lookout: Lookout,
}

impl EventAcceptor {
    /// Notifies threads when a connection finds no accept.
    pub fn new(listener: Arc<Listener>) -> io::Result<Self> {
        let lookout = Lookout::new(listener.clone())?;
        Ok(Self { listener, lookout })
    }
}
