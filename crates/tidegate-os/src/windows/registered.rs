//! Registered I/O of this system: its functions, sockets that are made for it, and a thread's requests beside its
//! overlapped operations.

use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawSocket, BorrowedSocket, FromRawSocket, RawSocket};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    INVALID_SOCKET, RIO_BUF, RIO_EXTENSION_FUNCTION_TABLE, RIO_NOTIFICATION_COMPLETION, RIORESULT,
    SIO_GET_MULTIPLE_EXTENSION_FUNCTION_POINTER, WSA_FLAG_NO_HANDLE_INHERIT, WSA_FLAG_OVERLAPPED,
    WSA_FLAG_REGISTERED_IO, WSAEOPNOTSUPP, WSAID_MULTIPLE_RIO, WSASocketW,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::overlapped::{
    self, AcceptAt, Closing, Done, Notifier, OperationQueue, Outcome, OverlappedSocket, Queue, QueueSetup,
    SocketKind,
};
use super::port::{AcceptPort, CompletionPort};
use super::socket::Listener;
use super::winsock::{control, handle, last_error, start};
use crate::endpoint::Endpoint;
use crate::payload::Payload;
pub use crate::rio::RequestSetup;
use crate::rio::{self, Functions, NotifyByPort, RequestQueue, Requests, RioBuf, RioResult};

// The structures of `rio` are those of the system.
const _: () = {
    assert!(size_of::<RioBuf>() == size_of::<RIO_BUF>());
    assert!(size_of::<RioResult>() == size_of::<RIORESULT>());
    assert!(size_of::<NotifyByPort>() == size_of::<RIO_NOTIFICATION_COMPLETION>());
    assert!(std::mem::offset_of!(RioBuf, length) == std::mem::offset_of!(RIO_BUF, Length));
    assert!(std::mem::offset_of!(RioResult, request) == std::mem::offset_of!(RIORESULT, RequestContext));
};

/// The functions of this system, asked for once; the error code where it has none.
static FUNCTIONS: LazyLock<Result<Functions, i32>> =
    LazyLock::new(|| ask().map_err(|e| e.raw_os_error().unwrap_or(WSAEOPNOTSUPP)));

fn ask() -> io::Result<Functions> {
    let socket = open(Domain::IPV4, SocketKind::Registered)?;
    let bytes = size_of::<RIO_EXTENSION_FUNCTION_TABLE>() as u32;
    let mut table = RIO_EXTENSION_FUNCTION_TABLE { cbSize: bytes, ..Default::default() };
    // SAFETY: what comes back is a table of functions, or of none.
    unsafe {
        control(&socket, SIO_GET_MULTIPLE_EXTENSION_FUNCTION_POINTER, &WSAID_MULTIPLE_RIO, &mut table)
    }?;
    from_table(&table).ok_or_else(|| io::Error::from_raw_os_error(WSAEOPNOTSUPP))
}

/// The table of the system as that of [`rio`]; `None` if a function is missing.
fn from_table(table: &RIO_EXTENSION_FUNCTION_TABLE) -> Option<Functions> {
    // SAFETY: each pair of types is the same function of mswsock.h; the structures behind their pointers are alike, see
    // above; handles are numbers of the size of a pointer. The functions stay as long as Winsock is loaded, which the
    // standard library keeps it.
    unsafe {
        use std::mem::transmute;
        Some(Functions {
            register_buffer: table.RIORegisterBuffer?,
            deregister_buffer: table.RIODeregisterBuffer?,
            create_completion_queue: transmute::<
                unsafe extern "system" fn(u32, *const RIO_NOTIFICATION_COMPLETION) -> isize,
                unsafe extern "system" fn(u32, *const NotifyByPort) -> isize,
            >(table.RIOCreateCompletionQueue?),
            resize_completion_queue: table.RIOResizeCompletionQueue?,
            close_completion_queue: table.RIOCloseCompletionQueue?,
            create_request_queue: table.RIOCreateRequestQueue?,
            receive: transmute::<
                unsafe extern "system" fn(isize, *const RIO_BUF, u32, u32, *const c_void) -> i32,
                rio::RequestFn,
            >(table.RIOReceive?),
            send: transmute::<
                unsafe extern "system" fn(isize, *const RIO_BUF, u32, u32, *const c_void) -> i32,
                rio::RequestFn,
            >(table.RIOSend?),
            dequeue_completion: transmute::<
                unsafe extern "system" fn(isize, *mut RIORESULT, u32) -> u32,
                unsafe extern "system" fn(isize, *mut RioResult, u32) -> u32,
            >(table.RIODequeueCompletion?),
            notify: table.RIONotify?,
            last_error,
        })
    }
}

/// Whether this system has Registered I/O.
///
/// # Errors
/// It has not; the error with which it was refused.
pub fn probe() -> io::Result<()> {
    functions().map(drop)
}

fn functions() -> io::Result<Functions> {
    FUNCTIONS.map_err(|code| {
        let why = io::Error::from_raw_os_error(code);
        io::Error::new(io::ErrorKind::Unsupported, format!("this system has no Registered I/O ({why})"))
    })
}

/// A TCP socket. Registered I/O wants those that were made for it: not what `accept` makes.
pub(super) fn open(domain: Domain, kind: SocketKind) -> io::Result<Socket> {
    if kind == SocketKind::Plain {
        return Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
    }
    start()?;
    let flags = WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT | WSA_FLAG_REGISTERED_IO;
    let (stream, tcp) = (Type::STREAM.into(), Protocol::TCP.into());
    // SAFETY: no protocol information and no group.
    let socket = unsafe { WSASocketW(domain.into(), stream, tcp, std::ptr::null(), 0, flags) };
    if socket == INVALID_SOCKET {
        return Err(last_error());
    }
    // SAFETY: just made, and nobody else has it.
    Ok(unsafe { Socket::from_raw_socket(socket as RawSocket) })
}

/// A socket with its request queue.
pub struct Registered {
    queue: RequestQueue,
    overlapped: OverlappedSocket,
}

/// Bytes that were received: into registered memory, or with the accept.
pub enum Bytes {
    /// Through a request.
    Requested(rio::RioBuffer),
    /// With the accept.
    First(overlapped::Buffer),
}

/// How a thread looks for completions of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyMode {
    /// The completion port reports them.
    Notified,
    /// It asks, and never sleeps.
    Polls,
}

/// A thread's requests, and its accepts and dials.
pub struct RegisteredQueue {
    // In this order: requests end before the port that reports them.
    requests: Requests,
    operations: Queue<CompletionPort>,
    look: NotifyMode,
    _packet: Box<OVERLAPPED>,
}

impl RegisteredQueue {
    /// For the calling thread. `setup` is for requests, `first` for what comes with accepts.
    ///
    /// # Errors
    /// This system has no Registered I/O, or no memory that can be registered.
    pub fn new(setup: &RequestSetup, first: &QueueSetup, look: NotifyMode) -> io::Result<Self> {
        let functions = functions()?;
        let operations = Queue::new(CompletionPort::new(setup.events)?, first)?;
        // SAFETY: integers and handles: all zeroes are a value.
        let mut packet: Box<OVERLAPPED> = Box::new(unsafe { std::mem::zeroed() });
        let notify = (look == NotifyMode::Notified).then(|| operations.notify().announce(&mut packet));
        let requests = Requests::new(functions, setup, notify)?;
        Ok(Self { requests, operations, look, _packet: packet })
    }

    /// Makes a connection to `to`, after what is to be done `before` with its socket; the outcome comes under `key`.
    ///
    /// # Errors
    /// As [`Queue::connect`], and as [`Requests::open`].
    pub fn connect(
        &mut self,
        to: &Endpoint,
        from: Option<std::net::SocketAddr>,
        key: u64,
        before: impl FnOnce(&BorrowedSocket<'_>),
    ) -> io::Result<Registered> {
        // The request queue comes first: a connection attempt that is under way could not be taken back if there is
        // none to be had.
        let (requests, mut queue) = (&mut self.requests, None);
        let overlapped = self.operations.connect(to, from, key, |socket| {
            before(socket);
            // SAFETY: the socket is borrowed, so it is open.
            queue = Some(unsafe { requests.open(handle(socket.as_raw_socket())) }?);
            Ok(())
        });
        match (overlapped, queue) {
            (Ok(overlapped), Some(queue)) => Ok(Registered { queue, overlapped }),
            (Ok(overlapped), None) => self.register(overlapped),
            (Err(e), queue) => {
                queue.into_iter().for_each(|queue| self.requests.close(queue));
                Err(e)
            }
        }
    }

    /// Gives an accepted socket its request queue.
    ///
    /// # Errors
    /// As [`Requests::open`].
    pub fn register(&mut self, overlapped: OverlappedSocket) -> io::Result<Registered> {
        // SAFETY: `overlapped` owns its socket, so it is open.
        match unsafe { self.requests.open(handle(overlapped.raw())) } {
            Ok(queue) => Ok(Registered { queue, overlapped }),
            Err(e) => {
                self.operations.close(overlapped, Closing::Reset); // its first data goes back to the pool
                Err(e)
            }
        }
    }
}

impl OperationQueue for RegisteredQueue {
    type Socket = Registered;
    type Buffer = Bytes;
    type Acceptor = AcceptPort;

    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        self.operations.wake_event()
    }

    fn listener(acceptor: &Arc<AcceptPort>) -> Arc<Listener> {
        CompletionPort::listener(acceptor)
    }

    fn overlapped(socket: &Registered) -> &OverlappedSocket {
        &socket.overlapped
    }

    fn accept(&mut self, acceptor: &Arc<AcceptPort>, key: u64, at: AcceptAt) {
        self.operations.accept(acceptor, key, at);
    }

    fn stop_accepting(&self) {
        self.operations.stop_accepting();
    }

    fn drop_silent(&self, limit: Duration) {
        self.operations.drop_silent(limit);
    }

    fn receive(&mut self, socket: &Registered, key: u64) {
        if socket.overlapped.has_first() {
            self.operations.receive(&socket.overlapped, key);
        } else {
            self.requests.receive(&socket.queue, key);
        }
    }

    fn send(&mut self, socket: &Registered, payload: Payload, key: u64) {
        self.requests.send(&socket.queue, payload, key);
    }

    fn finish_sending(&self, socket: &Registered) -> io::Result<()> {
        self.operations.finish_sending(&socket.overlapped)
    }

    fn close(&mut self, socket: Registered, how: Closing) {
        self.operations.close(socket.overlapped, how);
        self.requests.close(socket.queue);
    }

    /// A queue that polls does not wait.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.requests.collect()?;
        let timeout =
            if self.requests.has_ready() || self.look == NotifyMode::Polls || timeout == Some(Duration::ZERO)
            {
                Some(Duration::ZERO)
            } else {
                self.requests.arm()?;
                timeout
            };
        self.operations.wait(timeout)?;
        if self.operations.notify_mut().take_announced() {
            self.requests.reported();
        }
        self.requests.collect()
    }

    fn next(&mut self) -> Option<Done<Registered, Bytes>> {
        if let Some(rio::RioDone { key, outcome }) = self.requests.take() {
            let outcome = match outcome {
                rio::RioOutcome::Received(outcome) => {
                    Outcome::Received(outcome.map(|b| b.map(Bytes::Requested)))
                }
                rio::RioOutcome::Sent(outcome, rest) => Outcome::Sent(outcome, rest),
            };
            return Some(Done { key, outcome });
        }
        let Done { key, outcome } = self.operations.next()?;
        let outcome = match outcome {
            Outcome::Woken => Outcome::Woken,
            Outcome::Behind => Outcome::Behind,
            Outcome::Accepted(outcome) => Outcome::Accepted(outcome.and_then(|socket| self.register(socket))),
            Outcome::Connected(outcome) => Outcome::Connected(outcome),
            Outcome::Received(outcome) => Outcome::Received(outcome.map(|b| b.map(Bytes::First))),
            Outcome::Sent(outcome, rest) => Outcome::Sent(outcome, rest),
        };
        Some(Done { key, outcome })
    }

    fn bytes<'a>(&'a self, bytes: &'a Bytes) -> &'a [u8] {
        match bytes {
            Bytes::Requested(buffer) => self.requests.bytes(buffer),
            Bytes::First(buffer) => self.operations.bytes(buffer),
        }
    }

    fn recycle(&mut self, bytes: Bytes) {
        match bytes {
            Bytes::Requested(buffer) => self.requests.recycle(buffer),
            Bytes::First(buffer) => self.operations.recycle(buffer),
        }
    }

    fn set_posted(&mut self, posted: bool) {
        self.requests.set_posted(posted);
    }
}
