//! Closes what another process has a hand in, on a thread that does nothing else.
//!
//! Whoever closes the last handle of a TCP socket with `SO_LINGER` waits until its data is sent (`socket(7)`), and
//! whoever closes a file of a FUSE waits for its owner. A Unix socket is no better: descriptors that wait in its queue
//! are closed with it, and anybody who can connect can put some there. So a socket to another process is a
//! [`PeerSocket`] from its first moment on, and never closed by an I/O thread or under a lock. How many there are is
//! bounded; a user who holds up the thread that closes for him holds up nobody else.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, SendError, Sender};

use tidegate_os::meeting;

/// A thread that closes. It ends when nothing is left that could need it.
#[derive(Debug)]
pub(crate) struct Closer {
    most: usize,
    count: Arc<AtomicUsize>,
    thread: Sender<Contents>,
}

/// A socket to another process, and what came through it. Dropping it hangs up, and has all of it closed elsewhere.
#[derive(Debug)]
pub(super) struct PeerSocket {
    /// Always there; taken when dropped.
    contents: Option<Contents>,
    thread: Sender<Contents>,
}

/// In the order in which they are closed.
#[derive(Debug)]
struct Contents {
    descriptors: Vec<OwnedFd>,
    socket: UnixStream,
    _counted: Counted,
}

/// Counts one socket until it is closed.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Closer {
    /// For about so many sockets, open or being closed.
    pub(super) fn start(most: usize) -> io::Result<Self> {
        let (thread, receiver) = mpsc::channel::<Contents>();
        let named = std::thread::Builder::new().name("tidegate-closer".into());
        named.spawn(move || receiver.iter().for_each(Contents::close))?;
        Ok(Self { most, count: Arc::default(), thread })
    }

    /// Whether one more can be held: to be asked before there is one.
    pub(super) fn has_room(&self) -> bool {
        self.count.load(SeqCst) < self.most
    }

    pub(super) fn hold(&self, socket: UnixStream) -> PeerSocket {
        self.count.fetch_add(1, SeqCst);
        let counted = Counted(self.count.clone());
        let contents = Contents { descriptors: Vec::new(), socket, _counted: counted };
        PeerSocket { contents: Some(contents), thread: self.thread.clone() }
    }
}

impl PeerSocket {
    pub(super) fn socket(&self) -> &UnixStream {
        &self.contents.as_ref().expect("taken only when dropped").socket
    }

    /// Opens what came with the first message, to be closed with the socket.
    pub(super) fn open_descriptors(&mut self, message: &mut [u8]) -> io::Result<&[OwnedFd]> {
        let contents = self.contents.as_mut().expect("taken only when dropped");
        contents.descriptors = meeting::peek_descriptors(&contents.socket, message)?;
        Ok(&contents.descriptors)
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(contents) = self.contents.take() else { return };
        let _ = contents.socket.shutdown(Shutdown::Both); // the other end sees it at once
        if let Err(SendError(contents)) = self.thread.send(contents) {
            std::mem::forget(contents); // the thread has panicked: rather a descriptor lost than this thread held up
        }
    }
}

impl Contents {
    fn close(self) {
        self.descriptors.iter().for_each(meeting::close_at_once);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
