//! `WSAEventSelect`: an event for each socket, and a thread that waits for at most 64 of them.

use std::io;
use std::os::windows::io::{AsRawSocket, AsSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{HANDLE, WAIT_FAILED, WAIT_OBJECT_0};
use windows_sys::Win32::Networking::WinSock::WSA_MAXIMUM_WAIT_EVENTS;
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::descriptor::{BorrowedFd, RawFd};
use super::event::EventObject;
pub use super::network::News;
use super::network::{OF_CONNECTION, OF_LISTENER, settled_before, signal_by_event, take_news};
use super::poll::Readiness;
use super::socket::Listener;
use super::winsock::milliseconds;

/// Events a thread can wait for at once.
const MOST: usize = WSA_MAXIMUM_WAIT_EVENTS as usize;

/// What an event is for.
enum EventOwner {
    Waker,
    /// The event of a listener is shared by all threads that wait for it.
    Listener {
        listener: Arc<Listener>,
        event: Arc<EventObject>,
        tells: ListenerTells,
    },
    Socket {
        socket: RawFd,
        event: EventObject,
        before: News,
    },
}

/// When the event of a listener is to be set up again.
///
/// It may have been set for a connection that another thread has accepted by now. Wine's server may note such a one
/// even after that, and then sets the event with each look at the socket, until the next connection is accepted
/// (`accept_socket` and `poll_socket` in its `server/sock.c`). So who is woken in vain again and again has ever longer
/// pauses.
#[derive(Default)]
struct ListenerTells {
    state: TellState,
    /// How often in a row nobody accepted a connection, and how many were accepted before.
    in_vain: u32,
    accepted: u64,
}

#[derive(Default)]
enum TellState {
    #[default]
    Notified,
    /// The wait has reset the event: nobody else is woken by it.
    Woken,
    NotBefore(Instant),
}

impl ListenerTells {
    /// So often it is set up at once.
    const PROMPT: u32 = 3;
    /// The longest pause is 1,024 times the first.
    const FIRST_PAUSE: Duration = Duration::from_millis(1);
    const MOST_DOUBLINGS: u32 = 10;

    /// The pause for who was woken, with so many connections accepted by now.
    fn pause(&mut self, accepted: u64) -> Option<Duration> {
        let in_vain = std::mem::replace(&mut self.accepted, accepted) == accepted;
        self.in_vain = if in_vain { self.in_vain.saturating_add(1) } else { 0 };
        let doublings = self.in_vain.checked_sub(Self::PROMPT + 1)?;
        Some(Self::FIRST_PAUSE * 2_u32.pow(doublings.min(Self::MOST_DOUBLINGS)))
    }

    /// Whether it is due now; otherwise how long to wait for that, if it is due at all.
    fn look(&mut self, accepted: u64) -> Result<(), Option<Duration>> {
        let left = match self.state {
            TellState::Notified => return Err(None),
            TellState::Woken => self.pause(accepted).unwrap_or_default(),
            TellState::NotBefore(at) => at.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            self.state = TellState::Notified;
            return Ok(());
        }
        self.state = TellState::NotBefore(Instant::now() + left);
        Err(Some(left))
    }
}

/// A thread's events: one to be woken by, one of the listener, the rest for sockets.
pub struct EventSet {
    wake_event: Arc<EventObject>,
    owners: Vec<EventOwner>,
    /// Of the owners, in their order.
    handles: Vec<HANDLE>,
    /// Events that no socket has.
    free: Vec<EventObject>,
}

impl EventSet {
    /// Sockets that it holds besides a listener: one of the 64 events is the wake event.
    pub const SOCKETS: usize = MOST - 2;

    /// For the calling thread.
    pub fn new() -> io::Result<Self> {
        let wake_event = Arc::new(EventObject::new()?);
        let handles = vec![wake_event.handle()];
        Ok(Self { wake_event, owners: vec![EventOwner::Waker], handles, free: Vec::new() })
    }

    /// Wakes the thread that waits, from any thread.
    pub fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        let wake_event = self.wake_event.clone();
        move || wake_event.set()
    }

    fn put(&mut self, owner: EventOwner, event: HANDLE) -> usize {
        self.owners.push(owner);
        self.handles.push(event);
        self.owners.len() - 1
    }

    /// Adds a listener and returns its position. Of several sets with the same one, a connection wakes one.
    pub fn push_listener(&mut self, listener: &Arc<Listener>) -> io::Result<usize> {
        let event = listener.arrival()?;
        signal_by_event(listener.as_socket(), &event, OF_LISTENER)?;
        let handle = event.handle();
        Ok(self.put(
            EventOwner::Listener { listener: listener.clone(), event, tells: ListenerTells::default() },
            handle,
        ))
    }

    /// Adds a socket and returns its position. To be taken out before it is closed.
    ///
    /// # Errors
    /// There are [`SOCKETS`](Self::SOCKETS) already, or the system has no memory for one more event.
    pub fn push(&mut self, socket: BorrowedFd<'_>, wanted: Readiness) -> io::Result<usize> {
        if self.owners.len() >= MOST {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "a thread waits for 64 events at most: raise threads",
            ));
        }
        let event = self.free.pop().map_or_else(EventObject::new, Ok)?;
        signal_by_event(socket, &event, OF_CONNECTION)?;
        let before = settled_before(socket, wanted);
        if before.is_any() {
            event.set();
        }
        let handle = event.handle();
        Ok(self.put(EventOwner::Socket { socket: socket.as_raw_socket(), event, before }, handle))
    }

    /// Removes a position; the last one takes its place.
    pub fn swap_remove(&mut self, at: usize) {
        self.handles.swap_remove(at);
        match self.owners.swap_remove(at) {
            EventOwner::Waker => {}
            // Who is woken for a connection and does not take it passes it on.
            EventOwner::Listener { listener, event, .. } => {
                let _ = signal_by_event(listener.as_socket(), &event, OF_LISTENER);
            }
            EventOwner::Socket { event, .. } => {
                event.reset();
                self.free.push(event);
            }
        }
    }

    /// Waits, and appends who has news, by position. None after the timeout.
    pub fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<(usize, News)>) -> io::Result<()> {
        let pause = self.report_again()?;
        let (mut from, mut limit) = (0, milliseconds([timeout, pause].into_iter().flatten().min()));
        while let Some(at) = self.next_set(from, limit)? {
            let news = self.news(at)?;
            if news.is_any() {
                into.push((at, news));
            }
            (from, limit) = (at + 1, 0);
        }
        Ok(())
    }

    /// Has the listener reported again, level-triggered: connections that were left, or that arrived meanwhile. If that
    /// has to wait, how long.
    fn report_again(&mut self) -> io::Result<Option<Duration>> {
        let mut pause = None;
        for owner in &mut self.owners {
            if let EventOwner::Listener { listener, event, tells } = owner {
                match tells.look(listener.accepted()) {
                    Ok(()) => signal_by_event(listener.as_socket(), event, OF_LISTENER)?,
                    Err(left) => pause = left,
                }
            }
        }
        Ok(pause)
    }

    /// The first position from `from` on whose event is set.
    fn next_set(&self, from: usize, limit: u32) -> io::Result<Option<usize>> {
        let handles = &self.handles[from..];
        if handles.is_empty() {
            return Ok(None);
        }
        // SAFETY: all handles belong to events of `self`, and there are at most 64.
        let waited = unsafe { WaitForMultipleObjects(handles.len() as u32, handles.as_ptr(), 0, limit) };
        if waited == WAIT_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = waited.wrapping_sub(WAIT_OBJECT_0) as usize;
        Ok((at < handles.len()).then_some(from + at))
    }

    fn news(&mut self, at: usize) -> io::Result<News> {
        let readable = News { ready: Readiness::READ, ended: false };
        match &mut self.owners[at] {
            EventOwner::Waker => {
                self.wake_event.reset();
                Ok(readable)
            }
            EventOwner::Listener { tells, .. } => {
                tells.state = TellState::Woken;
                Ok(readable)
            }
            EventOwner::Socket { socket, event, before } => {
                let before = std::mem::take(before);
                // SAFETY: the event was set up for this socket in `push`, which says that it has to be taken out before
                // it is closed; one that was closed all the same is an error, or has another event, which is not reset.
                let news = unsafe { take_news(*socket, event)? };
                Ok(News { ready: news.ready.or(before.ready), ended: news.ended })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::socket::{Blocking, ListenOptions};

    #[test]
    fn a_connection_is_reported_after_spurious_wakes() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(16)).unwrap();
        let listener = Arc::new(listener);
        let mut set = EventSet::new().unwrap();
        let at = set.push_listener(&listener).unwrap();
        let (event, mut news) = (listener.arrival().unwrap(), Vec::new());
        for _ in 0..8 {
            event.set();
            set.wait(Some(Duration::ZERO), &mut news).unwrap();
        }
        let address = listener.local_addr().unwrap().addr().unwrap();
        for _ in 0..2 {
            news.clear();
            let _client = TcpStream::connect(address).unwrap();
            let begun = Instant::now();
            while news.is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                set.wait(Some(Duration::from_secs(1)), &mut news).unwrap();
            }
            assert!(news[0].0 == at && news[0].1.ready.readable, "{news:?}");
            listener.accept(Blocking::Never).unwrap();
        }
    }

    #[test]
    fn who_is_woken_in_vain_has_ever_longer_pauses() {
        let mut tells = ListenerTells::default();
        let mut pause = |accepted| tells.pause(accepted).map_or(0, |pause| pause.as_millis());
        let pauses: Vec<_> = (0..16).map(|_| pause(0)).collect();
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        assert_eq!([1, 1, 1, 1, 1].map(&mut pause), [0, 0, 0, 0, 1]);
    }
}
