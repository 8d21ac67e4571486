//! Messages with descriptors (`SCM_RIGHTS`, `unix(7)`; control messages: `cmsg(3)`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::call::{count, retry};

/// Room for one control message with so many descriptors, aligned as its header has to be.
fn room(descriptors: usize) -> Vec<u64> {
    // SAFETY: plain arithmetic.
    let bytes = unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as u32) };
    vec![0; (bytes as usize).div_ceil(size_of::<u64>())]
}

fn header(slice: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: integers and pointers that may be null: all zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slice;
    header.msg_iovlen = 1;
    header
}

/// Sends a message, and with it descriptors (few enough for one message); how much of it was taken.
pub(crate) fn send(
    socket: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut slice = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = room(descriptors.len());
    let mut header = header(&mut slice);
    if !descriptors.is_empty() {
        let bytes = size_of_val(descriptors) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: plain arithmetic for the lengths. `control` is aligned and has room for one header and `bytes` bytes
        // behind it, which is all that is written; nothing else refers to it meanwhile.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let numbers = libc::CMSG_DATA(first).cast::<RawFd>();
            for (at, descriptor) in descriptors.iter().enumerate() {
                numbers.add(at).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    // SAFETY: the header points to `slice`, which describes `message`, and to `control`; all outlive the call, which
    // only reads them.
    retry(|| count(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) }))
}

/// Receives into `message`, and the descriptors that came with it. Of more than `most` the first ones are opened:
/// `most` of them, or a few more.
pub(crate) fn receive(
    socket: &UnixStream,
    message: &mut [u8],
    most: usize,
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut slice = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    let mut control = room(most);
    let mut header = header(&mut slice);
    let bytes = retry(|| {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(control.as_slice()) as _;
        // SAFETY: the header points to `slice`, which describes `message`, and to `control`, whose length it has; all
        // are borrowed exclusively for the call.
        count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })
    })?;
    Ok((bytes, opened(&header)))
}

/// The descriptors that a receive has opened.
#[allow(clippy::unnecessary_cast, reason = "lengths are of other types on other systems")]
fn opened(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    let end = header.msg_control.cast::<u8>().wrapping_add(header.msg_controllen as usize);
    // SAFETY: `receive` was given this header by the kernel, which has written whole control messages into the room
    // that it points to; none is followed past its end. Each number in them is a descriptor that was opened for this
    // process just now, and is owned by nobody else.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if ((*at).cmsg_level, (*at).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let numbers = libc::CMSG_DATA(at);
                let length = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let length = length.min((end as usize).saturating_sub(numbers as usize));
                let numbers = numbers.cast::<RawFd>();
                for n in 0..length / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(numbers.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    descriptors
}
