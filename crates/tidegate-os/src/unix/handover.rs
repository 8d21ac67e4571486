//! Passing descriptors between processes over a Unix socket (`SCM_RIGHTS`, `unix(7)`), and who is at its other end.
//!
//! On a socket with time limits a process that was stopped and goes on gets EINTR even without a handler (`signal(7)`),
//! so calls are repeated.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::rights;

/// Most descriptors in one message: what Linux allows (`SCM_MAX_FD`, `unix(7)`).
pub const MOST_DESCRIPTORS: usize = 253;

/// Sends `message` (not empty) together with descriptors, which stay open here too.
///
/// Fails with [`io::ErrorKind::InvalidInput`] for more than [`MOST_DESCRIPTORS`], and with [`io::ErrorKind::WriteZero`]
/// if the socket did not take the whole message: keep it short.
pub fn send(socket: &UnixStream, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    let sent = rights::send(socket, message, descriptors, NO_SIGNAL)?;
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives into `message`, and descriptors that came with it, closed on exec. 0 bytes mean that the other end is
/// closed.
pub fn receive(socket: &UnixStream, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    rights::receive(socket, message, MOST_DESCRIPTORS, CLOSE_ON_EXEC)
}

/// Whether the process at the other end runs as the same user as this one (`SO_PEERCRED`, `unix(7)`).
#[cfg(target_os = "linux")]
pub fn is_same_user(socket: &UnixStream) -> io::Result<bool> {
    use super::user::{own_user, user_of};
    Ok(user_of(socket)? == own_user())
}

/// Whether the process at the other end runs as the same user as this one: not known here, so nobody does.
#[cfg(not(target_os = "linux"))]
pub fn is_same_user(_: &UnixStream) -> io::Result<bool> {
    Ok(false)
}

#[cfg(any(target_os = "macos", target_os = "ios"))]
const NO_SIGNAL: libc::c_int = 0; // the standard library ignores SIGPIPE
#[cfg(not(any(target_os = "macos", target_os = "ios")))]
const NO_SIGNAL: libc::c_int = libc::MSG_NOSIGNAL;

#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: libc::c_int = libc::MSG_CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: libc::c_int = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{ListenOptions, Listener};
    use std::os::fd::AsFd;

    const OPTIONS: ListenOptions = ListenOptions::new(16);

    #[test]
    fn a_listener_arrives_as_the_same_socket() {
        let (here, there) = UnixStream::pair().unwrap();
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &OPTIONS).unwrap();
        send(&here, b"take it", &[listener.as_fd()]).unwrap();
        let mut message = [0; 16];
        let (n, mut descriptors) = receive(&there, &mut message).unwrap();
        assert_eq!((&message[..n], descriptors.len()), (&b"take it"[..], 1));
        let taken = Listener::adopt(descriptors.remove(0), &OPTIONS).unwrap();
        assert_eq!(taken.local_addr().unwrap(), listener.local_addr().unwrap());
        drop(here);
        assert_eq!(receive(&there, &mut message).unwrap().0, 0);
    }

    #[test]
    fn what_does_not_listen_is_not_adopted() {
        let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let (unix, _) = UnixStream::pair().unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for (fd, says) in [
            (OwnedFd::from(bound), "does not listen"),
            (unix.into(), "does not listen"),
            (datagrams.into(), "no stream socket"),
            (file.into(), "no socket"),
        ] {
            let e = Listener::adopt(fd, &OPTIONS).unwrap_err();
            assert!(e.to_string().contains(says), "{e}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pair_belongs_to_one_user() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert!(is_same_user(&here).unwrap());
    }
}
