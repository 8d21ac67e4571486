//! Unix sockets with abstract names (`unix(7)`): there is no file, a name lasts as long as its socket, and it is known
//! only in the network namespace that the socket is in.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::unix::call::{count, poll, retry};
use crate::unix::rights;
pub use crate::unix::user::{own_user, user_of};

/// Most descriptors that [`peek_descriptors`] gives: one more than a message has that is any good.
const MOST_PEEKED: usize = 3;

/// Listens under an abstract name; nothing waits.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if somebody has the name already.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Lets nobody in any more; nothing waits. Returns who has connected and was not accepted: to close these may take
/// long. The name is free when the listener is closed.
pub fn shut_down(listener: &UnixListener) -> Vec<UnixStream> {
    let _ = SockRef::from(listener).shutdown(Shutdown::Both); // nobody else gets into the queue
    std::iter::from_fn(|| Some(listener.accept().ok()?.0)).collect()
}

/// Connects to an abstract name at once or not at all; nothing waits.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if nobody listens there, [`io::ErrorKind::WouldBlock`] if too many wait
/// already.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(socket.into())
}

/// Copies the beginning of what has come, which stays where it is, and with it the descriptors, which are not opened.
/// Nothing waits.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if nothing has come yet.
pub fn peek(socket: &UnixStream, message: &mut [u8]) -> io::Result<usize> {
    let (at, length, look) = (message.as_mut_ptr(), message.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: pointer and length describe `message`, which is borrowed exclusively.
    retry(|| count(unsafe { libc::recv(socket.as_raw_fd(), at.cast(), length, look) }))
}

/// Opens the descriptors that came with the first message, a few at most. The message stays where it is and keeps a
/// handle of each, so that none of these is the last; nothing waits.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if nothing has come yet.
pub fn peek_descriptors(socket: &UnixStream, message: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let look = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    Ok(rights::receive(socket, message, MOST_PEEKED, look)?.1)
}

/// Which of these sockets the other end has closed, or shut down both ways. Nothing waits.
pub fn ended<'a>(sockets: impl Iterator<Item = &'a UnixStream>) -> io::Result<Vec<bool>> {
    let entry = |socket: &UnixStream| libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    let mut all: Vec<_> = sockets.map(entry).collect();
    retry(|| poll(&mut all, Some(Duration::ZERO)))?;
    Ok(all.iter().map(|one| one.revents & (libc::POLLHUP | libc::POLLERR) != 0).collect())
}

/// Takes back that the close of a socket waits until its data is sent (`SO_LINGER`); of what is no socket, nothing.
/// It may wait for the lock of the socket.
pub fn close_at_once(descriptor: &impl AsFd) {
    let _ = SockRef::from(descriptor).set_linger(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_while_its_socket_lives_and_says_whose_it_is() {
        let name = format!("tidegate-test-{}", std::process::id());
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen(&name).unwrap();
        assert_eq!(listen(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(user_of(&connect(&name).unwrap()).unwrap(), own_user());
        assert_eq!(user_of(&listener.accept().unwrap().0).unwrap(), own_user());
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn who_was_not_accepted_outlives_the_listener() {
        let name = format!("tidegate-test-close-{}", std::process::id());
        let listener = listen(&name).unwrap();
        let callers = [(); 3].map(|()| connect(&name).unwrap());
        let left = shut_down(&listener);
        drop(listener);
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!((left.len(), ended(callers.iter()).unwrap()), (3, vec![false; 3]));
        drop(left);
        assert_eq!(ended(callers.iter()).unwrap(), [true; 3]);
        drop(listen(&name).unwrap());
    }

    #[test]
    fn a_look_takes_nothing_away() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut message = [0; 16];
        assert_eq!(peek(&there, &mut message).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let file = std::fs::File::open("/dev/null").unwrap();
        crate::handover::send(&here, b"look", &[file.as_fd(); 2]).unwrap();
        for _ in 0..2 {
            assert_eq!(peek(&there, &mut message).unwrap(), 4);
            assert_eq!(peek_descriptors(&there, &mut message).unwrap().len(), 2);
        }
        crate::handover::send(&here, b"more", &[file.as_fd(); 9]).unwrap();
        assert_eq!(peek_descriptors(&there, &mut message).unwrap().len(), 2, "of the first message");
        assert_eq!(crate::handover::receive(&there, &mut message).unwrap().1.len(), 2);
        let many = peek_descriptors(&there, &mut message).unwrap().len();
        assert!((3..9).contains(&many), "{many}");
        assert_eq!(ended([&here, &there].into_iter()).unwrap(), [false, false]);
        drop(here);
        assert_eq!(ended([&there].into_iter()).unwrap(), [true]);
    }
}
