//! Datagram sockets: one datagram a call, several a call (`recvmmsg(2)`, `sendmmsg(2)`), and several in one
//! (`UDP_SEGMENT`, `UDP_GRO`; `udp(7)`).
//!
//! [`DatagramBuffer`] and [`Outgoing`] own everything the kernel is pointed to, so a call is safe whatever its caller
//! does between two calls.

use std::io;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::call::{poll, retry};
use super::poll::{Readiness, mask};
use crate::datagram::{Arrival, OutgoingDatagram, prepare};
#[cfg(target_os = "linux")]
use crate::terms::Joining;
use crate::terms::{DatagramOptions, PortSharing};

/// A UDP socket.
#[derive(Debug)]
pub struct DatagramSocket {
    pub(crate) socket: Socket,
}

/// Whether several sockets can share a port and the datagrams that arrive there (`SO_REUSEPORT`).
pub const SHARES_PORT: bool = true;

impl DatagramSocket {
    /// Binds. Port 0 lets the system pick one.
    ///
    /// With [`PortSharing::Shared`] the first of the sockets must have been bound as [`PortSharing::Own`] and
    /// [opened](Self::share_port) then: so a port that somebody else has is not shared by mistake.
    pub fn bind(addr: SocketAddr, port: PortSharing, options: &DatagramOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        if port == PortSharing::Shared {
            socket.set_reuse_port(true)?;
        }
        prepare(&socket, options)?;
        socket.bind(&addr.into())?;
        Ok(Self { socket })
    }

    /// A socket that talks to one peer only.
    pub fn connect(to: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        prepare(&socket, options)?;
        socket.connect(&to.into())?;
        Ok(Self { socket })
    }

    /// One that another process made and bound, with these options from now on, there too.
    pub fn adopt(socket: OwnedFd, options: &DatagramOptions) -> io::Result<Self> {
        let socket = Socket::from(socket);
        if socket.r#type()? != Type::DGRAM || socket.local_addr()?.as_socket().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no bound UDP socket"));
        }
        prepare(&socket, options)?;
        Ok(Self { socket })
    }

    /// A second descriptor of it, to be given to another process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Lets further sockets of this user bind to the same port.
    pub fn share_port(&self) -> io::Result<()> {
        self.socket.set_reuse_port(true)
    }

    /// Wakes every thread that sleeps in a receive of this socket; when nothing is queued, receives return an
    /// [arrival](DatagramBuffer::get) from nobody from now on.
    ///
    /// Linux does that although it answers `ENOTCONN` (`inet_shutdown`: "wake up other listeners").
    pub fn wake_receivers(&self) {
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    /// Receives at most `most` datagrams into `inbox` with one call, and returns how many. Waits, if at all, for the
    /// first one only.
    pub fn receive(&self, inbox: &mut DatagramBuffer, most: usize) -> io::Result<usize> {
        let most = most.clamp(1, inbox.headers.len());
        inbox.reset(most);
        let got = retry(|| receive_call(self.socket.as_fd(), &mut inbox.headers[..most]));
        inbox.got = *got.as_ref().unwrap_or(&0);
        got
    }

    /// Sends messages from the front with one call and returns how many the kernel took; an error is that of the first.
    pub fn send<'a>(
        &self,
        outgoing: &mut Outgoing,
        messages: impl Iterator<Item = OutgoingDatagram<'a>>,
    ) -> io::Result<usize> {
        outgoing.fill(messages);
        retry(|| send_call(self.socket.as_fd(), &mut outgoing.headers))
    }

    /// Waits until something can be received or sent, as `wanted`; whether it can.
    pub fn wait(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<bool> {
        let mut socket = [libc::pollfd { fd: self.socket.as_raw_fd(), events: mask(wanted), revents: 0 }];
        match poll(&mut socket, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Finds out whether this kernel sends and receives several datagrams as one (Linux 4.18 and 5.0).
#[cfg(target_os = "linux")]
pub fn probe_segments() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    set_joining(&socket, Joining::On)?;
    set_udp_option(&socket, libc::UDP_SEGMENT, 0)
}

#[cfg(target_os = "linux")]
pub(crate) fn set_joining(socket: &Socket, joining: Joining) -> io::Result<()> {
    match (joining, set_udp_option(socket, libc::UDP_GRO, (joining == Joining::On).into())) {
        (Joining::Off, _) => Ok(()), // a kernel that does not know it does not join
        (Joining::On, set) => set,
    }
}

#[cfg(target_os = "linux")]
fn set_udp_option(socket: &Socket, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the option is an int (`udp(7)`), and `value` outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the one control message that is used, a segment size, aligned as `cmsg(3)` wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control([u8; 24]);

impl Control {
    pub(crate) const EMPTY: Self = Self([0; 24]);

    /// Tells the kernel where to cut; returns the message and its length.
    #[cfg(target_os = "linux")]
    pub(crate) fn segment(bytes: u16) -> (Self, usize) {
        let mut control = Self::EMPTY;
        // SAFETY: plain arithmetic; the header and two bytes fit into the 24 aligned bytes of `control`
        // (CMSG_SPACE(2) is 24 on 64-bit systems and 16 on 32-bit ones).
        unsafe {
            let header = control.0.as_mut_ptr().cast::<libc::cmsghdr>();
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(bytes);
            (control, libc::CMSG_SPACE(2) as usize)
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn segment(_: u16) -> (Self, usize) {
        (Self::EMPTY, 0)
    }
}

/// The segment size in a received control message, if there is one.
#[cfg(target_os = "linux")]
pub(crate) fn segment_of(control: &[u8]) -> Option<usize> {
    const SIZE: usize = size_of::<libc::c_int>();
    // SAFETY: plain arithmetic.
    let (head, all) = unsafe { (libc::CMSG_LEN(0) as usize, libc::CMSG_LEN(SIZE as u32) as usize) };
    if control.len() < all {
        return None;
    }
    // SAFETY: there are enough bytes, and any are a valid header of integers.
    let header = unsafe { control.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_UDP, libc::UDP_GRO) {
        return None;
    }
    let value = control[head..all].try_into().map(libc::c_int::from_ne_bytes).ok()?;
    usize::try_from(value).ok().filter(|&bytes| bytes > 0)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn segment_of(_: &[u8]) -> Option<usize> {
    None
}

/// Whether an error says that an earlier datagram did not get where it was to go: no news of the socket (`udp(7)`,
/// ECONNREFUSED).
pub fn is_report(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::ConnectionRefused
}

/// Room for received datagrams.
pub struct DatagramBuffer {
    each: usize,
    got: usize,
    bytes: Vec<u8>,
    addresses: Vec<Name>,
    controls: Vec<Control>,
    /// Each points to one of `addresses`, `slices` and `controls`; each slice to a part of `bytes`. None of these
    /// vectors ever grows.
    headers: Vec<Header>,
    _slices: Vec<libc::iovec>,
}

// SAFETY: the pointers lead only into memory that this value owns on the heap; it moves with the value.
unsafe impl Send for DatagramBuffer {}

impl DatagramBuffer {
    /// Room for `count` datagrams of `each` bytes. Only what is received into is really taken from the system.
    pub fn new(count: usize, each: usize) -> Self {
        let count = count.max(1);
        let mut bytes = vec![0u8; count.saturating_mul(each)]; // too much is no memory, and never too little
        let mut addresses = vec![[0; size_of::<Name>()]; count];
        let mut controls = vec![Control::EMPTY; count];
        let mut slices: Vec<_> = (0..count)
            .map(|at| libc::iovec { iov_base: bytes[at * each..].as_mut_ptr().cast(), iov_len: each })
            .collect();
        let headers = (0..count)
            .map(|at| {
                let mut header = empty_header();
                header.msg_hdr.msg_name = addresses[at].as_mut_ptr().cast();
                header.msg_hdr.msg_iov = &raw mut slices[at];
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = (&raw mut controls[at]).cast();
                header
            })
            .collect();
        Self { each, got: 0, bytes, addresses, controls, headers, _slices: slices }
    }

    /// What the kernel writes over in each call.
    fn reset(&mut self, most: usize) {
        self.got = 0;
        for header in &mut self.headers[..most] {
            header.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            header.msg_hdr.msg_flags = 0;
        }
    }

    /// Number `at` of what the last receive brought.
    #[allow(clippy::unnecessary_cast, reason = "the length of control messages is a u32 on some systems")]
    pub fn get(&self, at: usize) -> Option<Arrival<'_>> {
        if at >= self.got {
            return None;
        }
        let header = &self.headers[at];
        let length = (header.msg_len as usize).min(self.each);
        let control = &self.controls[at].0[..(header.msg_hdr.msg_controllen as usize).min(24)];
        Some(Arrival {
            from: address(
                &self.addresses[at][..(header.msg_hdr.msg_namelen as usize).min(size_of::<Name>())],
            ),
            bytes: &self.bytes[at * self.each..][..length],
            segment: segment_of(control).unwrap_or(length),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

/// Room for an address of either family, as the kernel writes it.
pub(crate) type Name = [u8; size_of::<libc::sockaddr_in6>()];

/// The address in what the kernel wrote.
#[inline]
pub(crate) fn address(name: &[u8]) -> Option<SocketAddr> {
    let family = name.get(offset_of!(libc::sockaddr_in, sin_family)..)?;
    let family = libc::sa_family_t::from_ne_bytes(*family.first_chunk()?);
    if libc::c_int::from(family) == libc::AF_INET && name.len() >= size_of::<libc::sockaddr_in>() {
        // SAFETY: there are enough bytes, and any are valid integers.
        let v4 = unsafe { name.as_ptr().cast::<libc::sockaddr_in>().read_unaligned() };
        let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        return Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into());
    }
    if libc::c_int::from(family) == libc::AF_INET6 && name.len() >= size_of::<libc::sockaddr_in6>() {
        // SAFETY: as above.
        let v6 = unsafe { name.as_ptr().cast::<libc::sockaddr_in6>().read_unaligned() };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        let port = u16::from_be(v6.sin6_port);
        return Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into());
    }
    None
}

/// What one sending call needs besides the bytes; kept between calls for its memory.
#[derive(Default)]
pub struct Outgoing {
    headers: Vec<Header>,
    slices: Vec<libc::iovec>,
    addresses: Vec<Option<SockAddr>>,
    controls: Vec<(Control, usize)>,
}

// SAFETY: all pointers are made anew by `fill` before the kernel looks at them.
unsafe impl Send for Outgoing {}

impl Outgoing {
    fn fill<'a>(&mut self, messages: impl Iterator<Item = OutgoingDatagram<'a>>) {
        self.headers.clear();
        self.slices.clear();
        self.addresses.clear();
        self.controls.clear();
        for message in messages {
            let (base, iov_len) = (message.bytes.as_ptr().cast_mut().cast(), message.bytes.len());
            self.slices.push(libc::iovec { iov_base: base, iov_len });
            self.addresses.push(message.to.map(SockAddr::from));
            self.controls.push(message.segment.map_or((Control::EMPTY, 0), Control::segment));
        }
        // Only now that nothing moves any more.
        for at in 0..self.slices.len() {
            let mut header = empty_header();
            header.msg_hdr.msg_iov = &raw mut self.slices[at];
            header.msg_hdr.msg_iovlen = 1;
            if let Some(to) = &self.addresses[at] {
                header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = to.len();
            }
            if self.controls[at].1 > 0 {
                header.msg_hdr.msg_control = (&raw mut self.controls[at].0).cast();
                header.msg_hdr.msg_controllen = self.controls[at].1 as _;
            }
            self.headers.push(header);
        }
    }
}

#[cfg(target_os = "linux")]
use libc::mmsghdr as Header;

/// What Linux calls `mmsghdr`.
#[cfg(not(target_os = "linux"))]
struct Header {
    msg_hdr: libc::msghdr,
    msg_len: libc::c_uint,
}

fn empty_header() -> Header {
    // SAFETY: plain old data, for which all zero bytes are a valid value.
    unsafe { std::mem::zeroed() }
}

fn receive_call(fd: BorrowedFd<'_>, headers: &mut [Header]) -> io::Result<usize> {
    #[cfg(target_os = "linux")]
    if headers.len() > 1 {
        // SAFETY: pointer and length describe the slice; everything its headers point to is owned by the
        // `DatagramBuffer` they are part of, which is borrowed mutably for the call.
        let n = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        return usize::try_from(n).map_err(|_| io::Error::last_os_error());
    }
    // SAFETY: as above, for the first header.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut headers[0].msg_hdr, 0) };
    headers[0].msg_len = u32::try_from(n).map_err(|_| io::Error::last_os_error())?;
    Ok(1)
}

fn send_call(fd: BorrowedFd<'_>, headers: &mut [Header]) -> io::Result<usize> {
    #[cfg(target_os = "linux")]
    if headers.len() > 1 {
        let (pointer, length) = (headers.as_mut_ptr(), headers.len() as libc::c_uint);
        // SAFETY: pointer and length describe the slice; what the headers point to is owned by the `Outgoing`, or
        // borrowed from the caller for longer than the call. The kernel only reads it.
        let n = unsafe { libc::sendmmsg(fd.as_raw_fd(), pointer, length, libc::MSG_NOSIGNAL as _) };
        return usize::try_from(n).map_err(|_| io::Error::last_os_error());
    }
    let Some(first) = headers.first() else { return Ok(0) };
    // SAFETY: as above, for the first header.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const first.msg_hdr, libc::MSG_NOSIGNAL) };
    if n >= 0 { Ok(1) } else { Err(io::Error::last_os_error()) }
}
