//! The signal that too few accepts are posted: a connection came to a listening socket and found none (`FD_ACCEPT`,
//! which Winsock tells only of such connections; posting an accept lets it tell again).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use windows_sys::Win32::Networking::WinSock::{
    FD_ACCEPT, WSAEVENT, WSAEnumNetworkEvents, WSAEventSelect, WSANETWORKEVENTS,
};

use super::descriptor::AsRawFd;
use super::event::EventObject;
use super::socket::Listener;
use super::winsock::{check, handle};

/// Whom the signal is passed on to.
type Watchers = Arc<Mutex<Vec<Box<dyn Fn() + Send>>>>;

/// A thread that waits for the signal. Ends when dropped.
pub(super) struct Lookout {
    listener: Arc<Listener>,
    watchers: Watchers,
    event: Arc<EventObject>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    /// For a listening socket, which has one at most.
    pub(super) fn new(listener: Arc<Listener>) -> io::Result<Self> {
        let (event, over) = (Arc::new(EventObject::for_one()?), Arc::new(AtomicBool::new(false)));
        select(&listener, Some(&event))?;
        let mut lookout = Self { listener, watchers: Watchers::default(), event, over, thread: None };
        let (listener, event, over) = (lookout.listener.clone(), lookout.event.clone(), lookout.over.clone());
        let watchers = lookout.watchers.clone();
        let watch = move || {
            loop {
                event.wait(None);
                if over.load(Ordering::Relaxed) {
                    return;
                }
                if take_signal(&listener) {
                    watchers
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .iter()
                        .for_each(|notify| notify());
                }
            }
        };
        lookout.thread = Some(std::thread::Builder::new().name("tidegate-lookout".into()).spawn(watch)?);
        Ok(lookout)
    }

    /// Calls `tell` whenever a connection has found no accept, from now on.
    pub(super) fn join(&self, notify: impl Fn() + Send + 'static) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(notify));
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        let _ = select(&self.listener, None); // the socket may live on, and its event goes
        self.over.store(true, Ordering::Relaxed);
        self.event.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic
        }
    }
}

/// Has the signal set an event, or no longer does.
fn select(listener: &Listener, event: Option<&EventObject>) -> io::Result<()> {
    let (event, what) = event.map_or((0, 0), |event| (event.handle() as WSAEVENT, FD_ACCEPT as i32));
    // SAFETY: the socket and the event are open for the call; the event is deselected before it is dropped.
    check(unsafe { WSAEventSelect(handle(listener.as_raw_fd()), event, what) })
}

/// Whether it was the signal; takes it back.
fn take_signal(listener: &Listener) -> bool {
    let mut events = WSANETWORKEVENTS::default();
    // SAFETY: the socket is open; no event is to be reset; the structure outlives the call.
    let taken = check(unsafe { WSAEnumNetworkEvents(handle(listener.as_raw_fd()), 0, &raw mut events) });
    taken.is_ok() && events.lNetworkEvents & FD_ACCEPT as i32 != 0
}
