//! A blocking send that gives its thread back after a time.
//!
//! `SO_SNDTIMEO` would leave the stream in an unknown state (`setsockopt`, *Remarks*): how much was taken is not
//! known. So the send is an overlapped operation that goes on when the time is over; the next call waits for it
//! again.

use std::io;
use std::os::windows::io::AsRawSocket;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windows_sys::Win32::Foundation::ERROR_IO_PENDING;
use windows_sys::Win32::Networking::WinSock::{WSABUF, WSAGetOverlappedResult, WSASend};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::descriptor::BorrowedFd;
use super::event::EventObject;
use super::winsock::{handle, last_error};

/// Most bytes of one operation: they are copied, because the caller's may go while the operation is under way.
const MOST_BYTES: usize = 64 * 1024;

/// Most bytes of a buffer that is kept for the next operation: a quiet connection holds no more.
const KEPT_BYTES: usize = 4096;

/// One send at a time, with a time limit.
#[derive(Debug)]
pub(super) struct TimedSend {
    limit: Duration,
    event: EventObject,
    last: Mutex<LastSend>,
}

/// The operation, which stays for the next send, so that none but the first allocates.
#[derive(Debug, Default)]
struct LastSend {
    operation: Option<Box<TimedOperation>>,
    under_way: bool,
}

/// What the kernel may touch until the operation has come back. It does not move: it is boxed.
struct TimedOperation {
    overlapped: OVERLAPPED,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for TimedOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimedOperation").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

// SAFETY: memory that is only touched under the lock of `TimedSend`; the kernel does not care which thread waits.
unsafe impl Send for TimedOperation {}

impl TimedSend {
    pub(super) fn new(limit: Duration) -> io::Result<Self> {
        Ok(Self { limit, event: EventObject::new()?, last: Mutex::default() })
    }

    /// Sends, or waits for the send of the same bytes that an earlier call has begun on the same socket.
    pub(super) fn send(&self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !last.under_way {
            self.begin(last.operation.get_or_insert_with(TimedOperation::unused), socket, bytes)?;
            last.under_way = true;
        }
        if !self.event.wait(Some(self.limit)) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        last.under_way = false;
        let Some(operation) = &mut last.operation else { return Ok(0) };
        let sent = outcome(socket, operation);
        operation.bytes.clear();
        operation.bytes.shrink_to(KEPT_BYTES);
        sent
    }

    fn begin(&self, operation: &mut TimedOperation, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        operation.bytes.clear();
        operation.bytes.extend_from_slice(&bytes[..bytes.len().min(MOST_BYTES)]);
        operation.overlapped = no_overlapped();
        operation.overlapped.hEvent = self.event.handle();
        let buffer = WSABUF { len: operation.bytes.len() as u32, buf: operation.bytes.as_mut_ptr() };
        // SAFETY: `buffer` is copied by the call. The OVERLAPPED and the bytes lie on the heap until the operation has
        // come back: `send` keeps it until the event says so, and `drop` waits for that.
        let sent = unsafe {
            WSASend(
                handle(socket.as_raw_socket()),
                &raw const buffer,
                1,
                std::ptr::null_mut(),
                0,
                &raw mut operation.overlapped,
                None,
            )
        };
        match sent {
            0 => Ok(()), // the event is set all the same
            _ => match last_error() {
                e if e.raw_os_error() == Some(ERROR_IO_PENDING as i32) => Ok(()),
                e => Err(e),
            },
        }
    }
}

fn no_overlapped() -> OVERLAPPED {
    // SAFETY: integers and handles: all zeroes are a value.
    unsafe { std::mem::zeroed() }
}

impl TimedOperation {
    fn unused() -> Box<Self> {
        Box::new(Self { overlapped: no_overlapped(), bytes: Vec::new() })
    }
}

/// How an operation that has come back ended.
fn outcome(socket: BorrowedFd<'_>, operation: &TimedOperation) -> io::Result<usize> {
    let (mut bytes, mut flags) = (0, 0);
    // SAFETY: the socket is open for the call, and the OVERLAPPED is that of an operation that has come back: nobody
    // else has it, and the call only reads it.
    let good = unsafe {
        WSAGetOverlappedResult(
            handle(socket.as_raw_socket()),
            &raw const operation.overlapped,
            &raw mut bytes,
            0,
            &raw mut flags,
        )
    };
    if good == 0 { Err(last_error()) } else { Ok(bytes as usize) }
}

impl Drop for TimedSend {
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        if last.under_way {
            // Its socket was closed just before (fields are dropped in order), which cancels what is under way. The
            // memory goes after this, with the field.
            self.event.wait(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::socket::{Blocking, More, Stream};

    /// A peer that reads nothing, and a stream to it with a time limit.
    fn stuck() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Stream::dial(&listener.local_addr().unwrap().into(), None, Blocking::Waits).unwrap();
        stream.set_send_timeout(Some(Duration::from_millis(20))).unwrap();
        (listener.accept().unwrap().0, stream)
    }

    /// Sends until nothing more is taken, then lets the peer read; it has to get every byte once.
    fn gives_its_thread_back(send: impl Fn(&Stream, &[u8]) -> io::Result<usize>) {
        let (mut peer, stream) = stuck();
        let all: Vec<u8> = (0..64usize << 20).map(|at| (at / 7) as u8).collect();
        let mut sent = 0;
        let error = loop {
            match send(&stream, &all[sent..]) {
                Ok(n) => sent += n,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let reader = std::thread::spawn(move || {
            let mut heard = Vec::new();
            peer.read_to_end(&mut heard).unwrap();
            heard
        });
        sent += loop {
            match send(&stream, &all[sent..]) {
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
                taken => break taken.unwrap(),
            }
        };
        drop(stream);
        assert!(reader.join().unwrap() == all[..sent], "other bytes arrived than were taken");
    }

    #[test]
    fn a_send_without_room_gives_its_thread_back_however_it_is_called() {
        gives_its_thread_back(|stream, bytes| stream.send(bytes));
        gives_its_thread_back(|stream, bytes| {
            stream.send_vectored(&[IoSlice::new(bytes)], More::BytesFollow)
        });
    }
}
