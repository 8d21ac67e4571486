//! Bytes on their way from one socket to another through a pipe, without a copy in user space (`splice(2)`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::terms::More;
use crate::unix::call::{check, count};

/// Whether sockets can be spliced on this system.
pub const SPLICES: bool = true;

/// Neither end waits: an empty socket and a full one are [`io::ErrorKind::WouldBlock`].
const FLAGS: libc::c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;

/// A pipe, and how many bytes lie in it.
#[derive(Debug)]
pub struct SplicePipe {
    read: File,
    write: OwnedFd,
    bytes: usize,
}

impl SplicePipe {
    /// Makes an empty one with room for `capacity` bytes, where each of its slots takes a whole page of 4 KiB.
    ///
    /// # Errors
    /// No descriptor or memory is left, or the user has as many pages in pipes as allowed (`pipe(7)`,
    /// `pipe-user-pages-soft`).
    pub fn new(capacity: usize) -> io::Result<Self> {
        let mut ends = [-1; 2];
        // SAFETY: the kernel writes two descriptors into the array, which outlives the call.
        check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) })?;
        // SAFETY: pipe2 just returned these two descriptors and nobody else owns them.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let capacity = libc::c_int::try_from(capacity).unwrap_or(libc::c_int::MAX);
        // SAFETY: no pointers, and the descriptor is borrowed for the call.
        check(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) })?;
        Ok(Self { read: read.into(), write, bytes: 0 })
    }

    /// Bytes that lie in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing lies in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Moves at most `most` bytes from a non-blocking socket into it; 0 means that the peer finished sending. Fewer
    /// bytes than asked for may also mean that its slots are full.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket has nothing or the pipe is full; what
    /// [`cannot_splice`] says; what the system says of the socket.
    pub fn fill_from(&mut self, socket: &impl AsFd, most: usize) -> io::Result<usize> {
        let n = splice(socket, &self.write, most, FLAGS)?;
        self.bytes += n;
        Ok(n)
    }

    /// Moves what lies in it into a non-blocking socket; may take less than all.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket takes nothing now; what [`cannot_splice`] says; what the system says
    /// of the socket.
    pub fn drain_to(&mut self, socket: &impl AsFd, more: More) -> io::Result<usize> {
        let hold = match more {
            More::No => 0,
            More::CloseFollows | More::BytesFollow => libc::SPLICE_F_MORE,
        };
        let n = splice(&self.read, socket, self.bytes, FLAGS | hold)?;
        self.bytes = self.bytes.saturating_sub(n);
        Ok(n)
    }

    /// Reads what lies in it into memory: the way out where the socket cannot be spliced to.
    ///
    /// # Errors
    /// What the system says; a pipe that has its bytes is always readable.
    pub fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut all = vec![0; self.bytes];
        self.read.read_exact(&mut all)?;
        self.bytes = 0;
        Ok(all)
    }
}

fn splice(from: &impl AsFd, to: &impl AsFd, most: usize, flags: libc::c_uint) -> io::Result<usize> {
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    // SAFETY: both offsets are null, as pipes and sockets need it, and both descriptors are borrowed for the call.
    count(unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), most, flags) })
}

/// Whether a splice failed because this kind of socket, or this system, has none: the bytes are to be copied.
#[must_use]
pub fn cannot_splice(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    const CAPACITY: usize = 64 * 1024;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// Waits until something can be done.
    fn soon<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match step() {
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn bytes_go_from_socket_to_socket_and_the_end_behind_them() {
        let ((mut from, socket), (to, mut reader)) = (connected(), connected());
        to.set_nonblocking(true).unwrap();
        reader.set_nonblocking(false).unwrap();
        let mut pipe = SplicePipe::new(CAPACITY).unwrap();
        assert_eq!(pipe.fill_from(&socket, CAPACITY).unwrap_err().kind(), ErrorKind::WouldBlock);
        from.write_all(b"0123456789").unwrap();
        assert_eq!(soon(|| pipe.fill_from(&socket, 4)).unwrap(), 4);
        assert_eq!((pipe.len(), soon(|| pipe.fill_from(&socket, CAPACITY)).unwrap()), (4, 6));
        assert_eq!((pipe.drain_to(&to, More::No).unwrap(), pipe.is_empty()), (10, true));
        let mut seen = [0; 10];
        reader.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
        from.shutdown(Shutdown::Write).unwrap();
        assert_eq!(soon(|| pipe.fill_from(&socket, CAPACITY)).unwrap(), 0);
    }

    #[test]
    fn a_full_socket_takes_no_more_and_nothing_is_lost() {
        let ((mut from, socket), (to, mut reader)) = (connected(), connected());
        to.set_nonblocking(true).unwrap();
        let filler = [7; CAPACITY];
        let mut filled = 0;
        while let Ok(n) = (&to).write(&filler) {
            filled += n;
        }
        from.write_all(b"behind it").unwrap();
        let mut pipe = SplicePipe::new(CAPACITY).unwrap();
        assert_eq!(soon(|| pipe.fill_from(&socket, CAPACITY)).unwrap(), 9);
        assert_eq!(pipe.drain_to(&to, More::No).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(pipe.len(), 9);
        reader.set_nonblocking(false).unwrap();
        std::io::copy(&mut (&mut reader).take(filled as u64), &mut io::sink()).unwrap();
        assert_eq!(soon(|| pipe.drain_to(&to, More::No)).unwrap(), 9);
        let mut seen = [0; 9];
        reader.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"behind it");
    }

    #[test]
    fn what_lies_in_it_may_be_read() {
        let (mut from, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        from.write_all(b"abc").unwrap();
        let mut pipe = SplicePipe::new(CAPACITY).unwrap();
        assert_eq!(pipe.fill_from(&socket, CAPACITY).unwrap(), 3);
        assert_eq!((pipe.read_all().unwrap(), pipe.len()), (b"abc".to_vec(), 0));
        assert!(pipe.read_all().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_spliced_is_known_by_its_error() {
        let (mut from, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        from.write_all(b"abc").unwrap();
        let mut pipe = SplicePipe::new(CAPACITY).unwrap();
        assert_eq!(pipe.fill_from(&socket, CAPACITY).unwrap(), 3);
        let file = tempfile::NamedTempFile::new().unwrap();
        let appended_to = File::options().append(true).open(file.path()).unwrap(); // splice(2): EINVAL
        let e = pipe.drain_to(&appended_to, More::No).unwrap_err();
        assert!(cannot_splice(&e), "{e}");
        assert!(!cannot_splice(&ErrorKind::WouldBlock.into()));
        assert_eq!(pipe.read_all().unwrap(), b"abc");
    }
}
