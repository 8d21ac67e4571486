//! Overlapped operations that report through events: a thread waits for at most 64 of them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use slab::Slab;
use windows_sys::Win32::Foundation::{HANDLE, WAIT_FAILED};
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::descriptor::BorrowedFd;
use super::event::EventObject;
use super::overlapped::{Notifier, OfQueue, Operation, PlacedOperation, WOKEN};
use super::socket::Listener;
use super::winsock::milliseconds;

/// Handles a thread can wait for at once (`MAXIMUM_WAIT_OBJECTS`).
const MOST: usize = 64;

/// The wake event, and the event that accepts, sends and dials share.
const OWN: usize = 2;

/// A thread's events: one for each receive, one for everything else, one to be woken by.
pub struct Events {
    wake_event: Arc<EventObject>,
    shared: EventObject,
    receives: Vec<EventObject>,
    /// Events that no receive has.
    free: Vec<usize>,
    handles: [HANDLE; MOST],
}

impl Events {
    /// Receives that can be armed at once.
    pub const RECEIVES: usize = MOST - OWN;

    /// For the calling thread.
    pub fn new() -> io::Result<Self> {
        let (wake_event, shared) = (Arc::new(EventObject::new()?), EventObject::new()?);
        let receives = (0..Self::RECEIVES).map(|_| EventObject::new()).collect::<io::Result<Vec<_>>>()?;
        let mut handles = [wake_event.handle(); MOST];
        handles[1] = shared.handle();
        for (handle, event) in handles[OWN..].iter_mut().zip(&receives) {
            *handle = event.handle();
        }
        Ok(Self { wake_event, shared, receives, free: (0..Self::RECEIVES).rev().collect(), handles })
    }

    /// Wakes the thread that waits, from any thread.
    pub fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        let wake_event = self.wake_event.clone();
        move || wake_event.set()
    }

    /// Appends what has ended, and whether the wake event was set.
    fn collect(&self, operations: &Slab<PlacedOperation>, into: &mut VecDeque<usize>) {
        if self.wake_event.wait(Some(Duration::ZERO)) {
            self.wake_event.reset();
            into.push_back(WOKEN);
        }
        into.extend(operations.iter().filter(|(_, operation)| operation.has_ended()).map(|(place, _)| place));
        fence(Ordering::Acquire); // what the kernel wrote before it said so
    }
}

impl Notifier for Events {
    type Acceptor = Listener;

    fn attach(&self, _: BorrowedFd<'_>, _: OfQueue) -> io::Result<()> {
        Ok(()) // each operation says where it reports
    }

    fn prepare(&mut self, operation: &mut Operation) {
        operation.event = if operation.receives() { self.free.pop() } else { None };
        let event = operation.event.map_or(&self.shared, |at| &self.receives[at]);
        operation.overlapped.hEvent = event.handle();
    }

    fn finished(&mut self, operation: &Operation) {
        if let Some(at) = operation.event {
            self.receives[at].reset();
            self.free.push(at);
        }
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        operations: &Slab<PlacedOperation>,
        into: &mut VecDeque<usize>,
        _: OfQueue,
    ) -> io::Result<()> {
        // First reset, then look: what ends after the look sets it again. (To begin an operation resets it, too.)
        self.shared.reset();
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

    fn join(&mut self, _: &Listener) {} // it has few accepts posted, and is not notified

    fn listener(acceptor: &Arc<Listener>) -> Arc<Listener> {
        acceptor.clone()
    }
}
