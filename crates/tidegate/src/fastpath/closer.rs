//! A dedicated thread that closes sockets another process can delay.
//!
//! Closing the last handle of a TCP socket with `SO_LINGER` blocks until its data is sent (`socket(7)`), and closing a
//! file on FUSE blocks on its owner. Unix sockets have the same problem: descriptors queued in one are closed with it,
//! and any process that can connect can queue some. So a socket to another process is wrapped in a [`PeerSocket`] as
//! soon as it exists, and is never closed on an I/O thread or under a lock. The number of such sockets is bounded; a
//! user whose sockets block the closing thread delays nobody else.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, SendError, Sender};

use tidegate_os::abstract_socket;

/// A thread that closes sockets. It ends when nothing can need it any more.
#[derive(Debug)]
pub(crate) struct Closer {
    most: usize,
    count: Arc<AtomicUsize>,
    thread: Sender<Contents>,
}

/// A socket to another process, and the descriptors received over it. Dropping it shuts it down and closes everything
/// on the closing thread.
#[derive(Debug)]
pub(crate) struct PeerSocket {
    /// Always `Some` until dropped.
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
    /// Creates one for about this many sockets, open or being closed.
    pub(super) fn start(most: usize) -> io::Result<Self> {
        let (thread, receiver) = mpsc::channel::<Contents>();
        let named = std::thread::Builder::new().name("tidegate-closer".into());
        named.spawn(move || receiver.iter().for_each(Contents::close))?;
        Ok(Self { most, count: Arc::default(), thread })
    }

    /// Whether there is room for one more socket; call this before creating it.
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

    /// Opens the descriptors received with the first message, to be closed with the socket.
    pub(super) fn open_descriptors(&mut self, message: &mut [u8]) -> io::Result<&[OwnedFd]> {
        let contents = self.contents.as_mut().expect("taken only when dropped");
        contents.descriptors = abstract_socket::peek_descriptors(&contents.socket, message)?;
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
        self.descriptors.iter().for_each(abstract_socket::close_at_once);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
