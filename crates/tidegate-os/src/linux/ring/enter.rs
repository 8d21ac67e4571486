//! The way into the kernel: `io_uring_enter(2)`, through a registered ring descriptor where the kernel has that.
//!
//! The crate remembers a registered descriptor only in a borrowed `Submitter`, so this call is made here.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, types};

/// `IORING_REGISTER_RING_FDS` and its opposite, `linux/io_uring.h`; Linux 5.18.
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;
/// Lets the kernel choose the place.
const ANY_PLACE: u32 = u32::MAX;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// How a ring is named in each call. Belongs to the thread that registered it.
#[derive(Debug)]
pub(super) struct Enter {
    /// Place in the thread's table of registered rings: saves the look-up of the descriptor in each call.
    place: Option<u32>,
}

impl Enter {
    /// Registers the descriptor of `ring` for the calling thread, if this kernel can.
    pub(super) fn new(ring: &IoUring) -> Self {
        let mut update = Update { offset: ANY_PLACE, reserved: 0, data: ring.as_raw_fd() as u64 };
        let place = register(ring, REGISTER_RING_FDS, &mut update).then_some(update.offset);
        Self { place }
    }

    pub(super) fn is_registered(&self) -> bool {
        self.place.is_some()
    }

    /// Hands over what is queued and waits for a completion, at most for `limit`.
    pub(super) fn enter(&self, ring: &mut IoUring, limit: Option<Duration>) -> io::Result<usize> {
        // Not to wait at all is cheaper than to wait for no time.
        let want = u32::from(limit != Some(Duration::ZERO));
        let limit = limit.map(types::Timespec::from);
        let mut args = types::SubmitArgs::new();
        if let Some(limit) = &limit {
            args = args.timespec(limit);
        }
        self.call(ring, want, EnterFlags::GETEVENTS, &args)
    }

    /// The same, but waits at least for `pause` (`min_wait_usec`, io_uring_enter(2)), unless the queue of completions
    /// fills up.
    pub(super) fn enter_later(
        &self,
        ring: &mut IoUring,
        pause: Duration,
        limit: Option<Duration>,
    ) -> io::Result<usize> {
        /// Without any limit the kernel wakes the thread at the end of the pause, whether something came or not
        /// (`io_cqring_min_timer_wakeup` in its `io_uring/io_uring.c`).
        const NO_LIMIT: Duration = Duration::from_secs(3600);
        let want = ring.params().sq_entries();
        let limit = types::Timespec::from(limit.unwrap_or(NO_LIMIT));
        let pause = u32::try_from(pause.as_micros()).unwrap_or(u32::MAX).max(1);
        let args = types::SubmitArgs::new().timespec(&limit).min_wait_usec(pause);
        self.call(ring, want, EnterFlags::GETEVENTS, &args)
    }

    /// Hands over what is queued, and looks for nothing.
    pub(super) fn submit(&self, ring: &mut IoUring) -> io::Result<usize> {
        if ring.submission().is_empty() {
            return Ok(0);
        }
        self.call(ring, 0, EnterFlags::empty(), &types::SubmitArgs::new())
    }

    fn call(
        &self,
        ring: &mut IoUring,
        want: u32,
        flags: EnterFlags,
        args: &types::SubmitArgs<'_, '_>,
    ) -> io::Result<usize> {
        let queued = {
            let mut queue = ring.submission();
            queue.sync();
            queue.len()
        };
        let Some(place) = self.place else {
            return match flags.is_empty() {
                true => ring.submitter().submit(),
                false => ring.submitter().submit_with_args(want as usize, args),
            };
        };
        /// `IORING_ENTER_REGISTERED_RING`.
        const REGISTERED_RING: u32 = 1 << 4;
        let flags = (flags | EnterFlags::EXT_ARG).bits() | REGISTERED_RING;
        // SAFETY: the queue holds entries that `Ring::try_push` vouched for; `args` is the extended argument of
        // this kernel interface (EXT_ARG) with its own size, and it and the time it points to outlive the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                place,
                queued as libc::c_uint,
                want as libc::c_uint,
                flags,
                std::ptr::from_ref(args),
                size_of_val(args),
            )
        };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Forgets the registration: it would keep the ring alive as long as the thread.
    pub(super) fn close(&mut self, ring: &IoUring) {
        if let Some(offset) = self.place.take() {
            register(ring, UNREGISTER_RING_FDS, &mut Update { offset, reserved: 0, data: 0 });
        }
    }
}

fn register(ring: &IoUring, what: libc::c_uint, update: &mut Update) -> bool {
    let one: libc::c_uint = 1;
    let (ring, update) = (ring.as_raw_fd(), std::ptr::from_mut(update));
    // SAFETY: both operations read (and the first writes) one `struct io_uring_rsrc_update`, which `update` is.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, what, update, one) };
    done == 1
}
