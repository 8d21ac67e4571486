//! `epoll(7)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::poll::Readiness;

/// An epoll instance. It is given what has a descriptor, and no numbers:
///
/// ```compile_fail,E0277
/// # fn f(epoll: &tidegate_os::epoll::Epoll) {
/// epoll.add_level(7, 1);
/// # }
/// ```
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// One report of [`Epoll::wait`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct EpollEvent(libc::epoll_event);

impl EpollEvent {
    /// An empty report, to fill an array with.
    pub const EMPTY: EpollEvent = EpollEvent(libc::epoll_event { events: 0, u64: 0 });

    /// The number the descriptor was added with.
    pub fn key(&self) -> u64 {
        self.0.u64
    }

    /// Data, end of stream or an error can be read.
    pub fn readable(&self) -> bool {
        self.0.events
            & (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32
            != 0
    }

    /// The socket takes data again, or the connection attempt has ended.
    pub fn writable(&self) -> bool {
        self.0.events & (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// The peer finished sending, the connection broke, or there is an urgent byte, which ends a read early: a short
    /// read is not the last one.
    pub fn ended(&self) -> bool {
        self.0.events & (libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: epoll_create1 just returned this descriptor and nobody else owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Has waits poll the queue of the network card that sockets are behind for so long before they sleep
    /// (`EPIOCSPARAMS`, `ioctl_eventpoll(2)`).
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] before Linux 6.9.
    pub fn set_busy_poll(&self, time: Duration) -> io::Result<()> {
        /// `struct epoll_params`
        #[repr(C)]
        struct Parameters {
            micros: u32,
            budget: u16,
            prefer: u8,
            padding: u8,
        }
        const SET_PARAMETERS: u64 = 0x4008_8a01;
        // The kernel takes at most i32::MAX, and its own default where the budget is 0.
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX).min(i32::MAX as u32);
        let parameters = Parameters { micros, budget: 0, prefer: 0, padding: 0 };
        // SAFETY: the request reads one `struct epoll_params`, which `parameters` is; other kernels refuse the number.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), SET_PARAMETERS as _, &raw const parameters) } {
            0 => Ok(()),
            _ => Err(match io::Error::last_os_error() {
                e if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "epoll polls network cards (EPIOCSPARAMS) since Linux 6.9: leave busy_poll out",
                ),
                e => e,
            }),
        }
    }

    /// Reports every change of a stream socket once (edge-triggered, both directions), until it is closed.
    pub fn add_stream(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_ADD,
            fd.as_fd(),
            libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET,
            key,
        )
    }

    /// Reports as long as the descriptor is readable (level-triggered).
    pub fn add_level(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), libc::EPOLLIN, key)
    }

    /// Reports as long as the descriptor is ready for any of what is wanted, or broken (level-triggered).
    pub fn add_level_for(&self, fd: impl AsFd, wanted: Readiness, key: u64) -> io::Result<()> {
        let events = [(wanted.readable, libc::EPOLLIN), (wanted.writable, libc::EPOLLOUT)];
        let events = events.into_iter().filter(|(wants, _)| *wants).fold(0, |all, (_, event)| all | event);
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), events, key)
    }

    /// Reports a listener that several instances share to about one of them.
    pub fn add_listener(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), libc::EPOLLIN | libc::EPOLLEXCLUSIVE, key)
    }

    /// Stops reporting a descriptor.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_fd(), 0, 0)
    }

    fn control(&self, op: libc::c_int, fd: BorrowedFd<'_>, events: libc::c_int, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: `event` lives through the call; epoll copies it.
        let rc = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits and fills `reports` from the front; 0 after the timeout or a signal.
    ///
    /// Timeouts have nanosecond resolution (`epoll_pwait2`, Linux 5.11); before that they are
    /// rounded up to milliseconds.
    pub fn wait(&self, reports: &mut [EpollEvent], timeout: Option<Duration>) -> io::Result<usize> {
        let capacity = libc::c_int::try_from(reports.len()).unwrap_or(libc::c_int::MAX);
        let events = reports.as_mut_ptr().cast::<libc::epoll_event>();
        let whole_ms = timeout.is_none_or(|t| t.subsec_nanos() % 1_000_000 == 0);
        let mut n = -1;
        let mut done = false;
        if let Some(t) = timeout.filter(|_| !whole_ms) {
            let t = libc::timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos().into() };
            // SAFETY: `events` points to `capacity` elements laid out as epoll_event (transparent),
            // `t` lives through the call, and no signal mask is given.
            n = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.fd.as_raw_fd(),
                    events,
                    capacity,
                    &raw const t,
                    0,
                    0,
                ) as libc::c_int
            };
            done = n >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS);
        }
        if !done {
            let ms = timeout.map_or(-1, |t| {
                libc::c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
            });
            // SAFETY: as above.
            n = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events, capacity, ms) };
        }
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(0),
                e => Err(e),
            },
        }
    }
}
