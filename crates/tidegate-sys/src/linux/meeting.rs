//! Unix sockets with abstract names (`unix(7)`): there is no file, a name lasts as long as its socket, and it is known only in the
//! network namespace that the socket is in.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use socket2::{Domain, SockAddr, Socket, Type};

/// Listens under an abstract name; nothing waits.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if somebody has the name already.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to an abstract name at once or not at all; nothing waits.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if nobody listens there, [`io::ErrorKind::WouldBlock`] if too many wait already.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(socket.into())
}

/// The user that the process at the other end ran as when it connected, or listened (`SO_PEERCRED`).
pub fn user_of(socket: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// The user that this process runs as.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
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
}
