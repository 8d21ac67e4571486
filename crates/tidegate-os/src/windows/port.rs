//! I/O completion ports.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::windows::io::{AsRawSocket, AsSocket};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, INVALID_HANDLE_VALUE, WAIT_TIMEOUT};
use windows_sys::Win32::System::IO::{
    CreateIoCompletionPort, GetQueuedCompletionStatusEx, OVERLAPPED, OVERLAPPED_ENTRY,
    PostQueuedCompletionStatus,
};

use super::descriptor::BorrowedFd;
use super::lookout::Lookout;
use super::overlapped::{BEHIND, Notifier, OfQueue, Operation, PlacedOperation, WOKEN};
use super::socket::Listener;
use super::winsock::milliseconds;
use crate::porter;
use crate::rio::NotifyByPort;

/// A port. Closed when dropped.
#[derive(Debug)]
struct PortHandle(HANDLE);

// SAFETY: a handle of the kernel, which any thread may use.
unsafe impl Send for PortHandle {}
// SAFETY: as above.
unsafe impl Sync for PortHandle {}

impl PortHandle {
    fn new() -> io::Result<Self> {
        // SAFETY: makes a port and attaches nothing. One thread at a time takes completions.
        let port = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, std::ptr::null_mut(), 0, 1) };
        if port.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(port)) }
    }

    fn attach(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both handles are open for the call.
        let port = unsafe { CreateIoCompletionPort(socket.as_raw_socket() as HANDLE, self.0, 0, 0) };
        if port.is_null() { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Queues a packet without an operation.
    fn post(&self, key: usize) {
        // SAFETY: the port is open, and passes on what it is given. Fails only without memory; then the waiting thread
        // is woken by the next packet.
        unsafe { PostQueuedCompletionStatus(self.0, 0, key, std::ptr::null()) };
    }

    /// Takes packets; none after the timeout.
    fn take(&self, into: &mut [OVERLAPPED_ENTRY], timeout: Option<Duration>) -> io::Result<usize> {
        let mut taken = 0;
        // SAFETY: pointer and length describe `into`, whose entries the call overwrites from the front.
        let good = unsafe {
            GetQueuedCompletionStatusEx(
                self.0,
                into.as_mut_ptr(),
                into.len() as u32,
                &raw mut taken,
                milliseconds(timeout),
                0,
            )
        };
        match good {
            0 => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(WAIT_TIMEOUT as i32) => Ok(0),
                e => Err(e),
            },
            _ => Ok(taken as usize),
        }
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { CloseHandle(self.0) };
    }
}

/// Room for packets.
fn entries(count: usize) -> Vec<OVERLAPPED_ENTRY> {
    // SAFETY: integers and a pointer that nobody follows: all zeroes are a value.
    vec![unsafe { std::mem::zeroed() }; count.max(1)]
}

/// A thread's port.
pub struct CompletionPort {
    handle: Arc<PortHandle>,
    entries: Vec<OVERLAPPED_ENTRY>,
    /// A packet with the key of announcements has arrived.
    announced: bool,
    /// The acceptor has it, to tell that too few accepts are posted.
    joined: bool,
}

/// The key of packets that are not of an operation but say that something else is there.
const ANNOUNCEMENT: usize = 1;
/// The key of packets that say that too few accepts are posted.
const TOO_FEW: usize = 2;

impl CompletionPort {
    /// A new one, from which at most `events` packets are taken at once.
    pub fn new(events: usize) -> io::Result<Self> {
        Ok(Self {
            handle: Arc::new(PortHandle::new()?),
            entries: entries(events),
            announced: false,
            joined: false,
        })
    }

    /// A way for completion queues of Registered I/O to say here that they are not empty. `packet` is only passed on.
    pub(super) fn announce(&self, packet: &mut OVERLAPPED) -> NotifyByPort {
        // SAFETY: who asks keeps the packet, and this port, as long as the completion queue (`RegisteredQueue`).
        unsafe { NotifyByPort::new(self.handle.0, ANNOUNCEMENT, std::ptr::from_mut(packet).cast()) }
    }

    /// Whether something was announced since this was asked last.
    pub(super) fn take_announced(&mut self) -> bool {
        std::mem::take(&mut self.announced)
    }
}

impl Notifier for CompletionPort {
    type Acceptor = AcceptPort;

    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        let handle = self.handle.clone();
        move || handle.post(0)
    }

    fn attach(&self, socket: BorrowedFd<'_>, _: OfQueue) -> io::Result<()> {
        self.handle.attach(socket)
    }

    fn prepare(&mut self, operation: &mut Operation) {
        operation.home = self.handle.0;
    }

    fn finished(&mut self, _: &Operation) {}

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        _: &Slab<PlacedOperation>,
        into: &mut VecDeque<usize>,
        _: OfQueue,
    ) -> io::Result<()> {
        let taken = self.handle.take(&mut self.entries, timeout)?;
        for entry in &self.entries[..taken] {
            if entry.lpCompletionKey == ANNOUNCEMENT {
                self.announced = true;
                continue;
            }
            if entry.lpCompletionKey == TOO_FEW {
                into.push_back(BEHIND);
                continue;
            }
            let operation = entry.lpOverlapped.cast::<Operation>();
            // SAFETY: any other packet with an OVERLAPPED is of an operation that this queue's table still owns: it
            // stays there until this packet was taken, and each operation has one. The OVERLAPPED is its first field.
            into.push_back(if operation.is_null() { WOKEN } else { unsafe { (*operation).place } });
        }
        Ok(())
    }

    fn join(&mut self, acceptor: &AcceptPort) {
        if !std::mem::replace(&mut self.joined, true) {
            let handle = self.handle.clone();
            acceptor.lookout.join(move || handle.post(TOO_FEW));
        }
    }

    fn listener(acceptor: &Arc<AcceptPort>) -> Arc<Listener> {
        acceptor.listener.clone()
    }
}

/// A listener whose accepts are posted by several threads.
///
/// A socket reports to one port only, and each thread has its own. So accepts are reported to a separate port, and
/// a thread that does nothing else passes each packet on to the port of who posted it.
pub struct AcceptPort {
    listener: Arc<Listener>,
    handle: Arc<PortHandle>,
    /// Tells the ports of the threads that post accepts when there are too few.
    lookout: Lookout,
    porter: Option<std::thread::JoinHandle<()>>,
}

impl AcceptPort {
    /// Has the accepts of a listener reported here.
    ///
    /// # Errors
    /// The socket reports to another port already: a socket cannot be given to a second one.
    pub fn new(listener: Arc<Listener>) -> io::Result<Self> {
        let handle = Arc::new(PortHandle::new()?);
        handle.attach(listener.as_socket()).map_err(|e| {
            io::Error::new(
                e.kind(),
                format!(
                    "{e}; the listening socket belongs to another completion port, of a server that runs: choose \
                     another model or port"
                ),
            )
        })?;
        let lookout = Lookout::new(listener.clone())?;
        let own = handle.clone();
        let porter = std::thread::Builder::new().name("tidegate-porter".into()).spawn(move || carry(&own))?;
        Ok(Self { listener, handle, lookout, porter: Some(porter) })
    }
}

/// Passes packets on until one without an operation comes.
fn carry(port: &PortHandle) {
    let mut entries = entries(64);
    let take = |into: &mut Vec<*mut OVERLAPPED>, timeout: Option<Duration>| {
        let taken = port.take(&mut entries, timeout)?;
        for entry in &entries[..taken] {
            if entry.lpOverlapped.is_null() {
                return Ok(ControlFlow::Break(()));
            }
            into.push(entry.lpOverlapped);
        }
        Ok(ControlFlow::Continue(()))
    };
    porter::carry(take, |&packet| {
        let operation = packet.cast::<Operation>();
        // SAFETY: the operation stays in the table of who posted it until the packet that is sent here was taken there,
        // and its port is open until then; `home` is not written any more.
        unsafe { PostQueuedCompletionStatus((*operation).home, 0, 0, packet) != 0 }
    });
}

impl Drop for AcceptPort {
    fn drop(&mut self) {
        self.handle.post(0);
        if let Some(porter) = self.porter.take() {
            let _ = porter.join(); // it does not panic
        }
    }
}
