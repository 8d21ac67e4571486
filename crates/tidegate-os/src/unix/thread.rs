//! Threads that fail to start, rather than end the process, when memory, maps or process numbers run out
//! (`pthread_create(3)`).
//!
//! A thread of the standard library maps its alternate signal stack after it has been started, and aborts the process
//! if it gets none (`sys/pal/unix/stack_overflow.rs`: "failed to allocate an alternative stack"). All that a thread of
//! this module needs is mapped by `pthread_create`, which reports what it lacks. The price: a stack overflow still ends
//! the process at the guard page, but without the message of the standard library.

use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::process::ResourceLimit;
use crate::pages::{Pages, Residence};

/// What a thread runs.
type ThreadBody = Box<dyn FnOnce() + Send>;

/// Memory maps left to libraries, large allocations and the heaps of threads.
const RESERVED_MAPS: usize = 2_000;

/// The stack and its guard.
const MAPS_PER_THREAD: usize = 2;

/// `vm.max_map_count` where it cannot be read: what Linux has had as its default since 2.6.
const USUAL_MAPS: usize = 65_530;

/// Threads of this module that are alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Bytes that threads under way have been promised ([`Headroom`]).
static PROMISED: AtomicUsize = AtomicUsize::new(0);

/// Starts a detached thread. A panic of `run` ends that thread only.
///
/// # Errors
/// The process has [as many threads as it may have](most_threads), or the system refuses one more (`EAGAIN`: memory,
/// maps, `RLIMIT_NPROC`, `pids.max`).
pub fn start(name: &str, stack_bytes: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let alive = Alive::enter()?;
    let name = CString::new(name).unwrap_or_default();
    let run: ThreadBody = Box::new(move || {
        let _alive = alive;
        set_name(&name);
        // The hook has printed it. The payload may panic when dropped; what that leaves is left.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
            && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
        {
            std::mem::forget(second);
        }
    });
    let mut attributes = Attributes::new()?;
    attributes.detached_with_stack(stack_bytes)?;
    let run = Box::into_raw(Box::new(run));
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: `thread` and the initialised attributes are valid during the call; `main_of` is given the only pointer to
    // `run`.
    let code =
        unsafe { libc::pthread_create(thread.as_mut_ptr(), &raw const attributes.0, main_of, run.cast()) };
    if code != 0 {
        // SAFETY: no thread was made, so the pointer from `Box::into_raw` above still has this one owner.
        drop(unsafe { Box::from_raw(run) });
        return Err(io::Error::from_raw_os_error(code));
    }
    Ok(())
}

extern "C" fn main_of(run: *mut c_void) -> *mut c_void {
    // SAFETY: `start` made it from a `Box<Run>` and gave it to this thread alone.
    let run = unsafe { Box::from_raw(run.cast::<ThreadBody>()) };
    run(); // does not unwind
    std::ptr::null_mut()
}

/// Initialised `pthread_attr_t`.
struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
        // SAFETY: valid for writing one `pthread_attr_t`.
        check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: `pthread_attr_init` has succeeded.
        Ok(Self(unsafe { attributes.assume_init() }))
    }

    fn detached_with_stack(&mut self, bytes: usize) -> io::Result<()> {
        let page = super::process::page_bytes();
        let bytes = bytes.max(libc::PTHREAD_STACK_MIN).next_multiple_of(page);
        // SAFETY: initialised by `new`, and borrowed exclusively.
        check(unsafe { libc::pthread_attr_setstacksize(&raw mut self.0, bytes) })?;
        // SAFETY: as above.
        check(unsafe { libc::pthread_attr_setdetachstate(&raw mut self.0, libc::PTHREAD_CREATE_DETACHED) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, and not used afterwards. It cannot fail for such attributes.
        unsafe { libc::pthread_attr_destroy(&raw mut self.0) };
    }
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

#[cfg(target_os = "linux")]
fn set_name(name: &CString) {
    // SAFETY: the name ends with a zero and outlives the call, which copies 15 bytes at most. It is only a name,
    // whatever the outcome.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

#[cfg(not(target_os = "linux"))]
fn set_name(_: &CString) {}

/// A thread's share of [`most_threads`]; given back when dropped.
struct Alive;

impl Alive {
    fn enter() -> io::Result<Self> {
        let most = most_threads().unwrap_or(usize::MAX);
        let one_more = |alive| (alive < most).then_some(alive + 1);
        match ALIVE.fetch_update(Relaxed, Relaxed, one_more) {
            Ok(_) => Ok(Self),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("{most} threads run, and memory maps or process numbers allow no more"),
            )),
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Relaxed);
    }
}

/// Address space promised to somebody who is about to use it: keep it until it has been mapped.
#[derive(Debug)]
pub struct Headroom(usize);

impl Headroom {
    /// Promises `bytes`, if the process can map them now beside what was promised to others and `reserve`, which is for
    /// the small allocations that cannot fail without ending it.
    ///
    /// Where `RLIMIT_AS` bounds the address space what is left of it is computed from `/proc/self/statm`. Mapping the
    /// bytes for a moment would tell the same, but in this moment the allocations of other threads would not have the
    /// reserve. Without such a limit or without `/proc` it is tried, which obeys `vm.overcommit_memory` as well.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn promise(bytes: usize, reserve: usize) -> io::Result<Self> {
        let before = PROMISED.fetch_add(bytes, Relaxed);
        let promise = Self(bytes);
        let all = before.saturating_add(bytes).saturating_add(reserve);
        match free_address_space() {
            Some(free) if all <= free => {}
            Some(_) => return Err(io::ErrorKind::OutOfMemory.into()),
            None => drop(Pages::new(all, Residence::Pageable)?),
        }
        Ok(promise)
    }
}

/// Bytes that the process may still map, if `RLIMIT_AS` says and `/proc` can be read. Allocates nothing once it was
/// called.
fn free_address_space() -> Option<usize> {
    static STATM: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/self/statm").ok());
    let limit = ResourceLimit::AddressSpace.soft()?;
    let mut text = [0; 128];
    let length = STATM.as_ref()?.read_at(&mut text, 0).ok()?;
    let pages = std::str::from_utf8(&text[..length]).ok()?.split_whitespace().next()?.parse::<u64>().ok()?;
    let used = pages * super::process::page_bytes() as u64;
    Some(usize::try_from(limit.saturating_sub(used)).unwrap_or(usize::MAX))
}

impl Drop for Headroom {
    fn drop(&mut self) {
        PROMISED.fetch_sub(self.0, Relaxed);
    }
}

/// Has the C library's allocator give all threads the same heap, if the address space of the process is limited
/// (`RLIMIT_AS`).
///
/// glibc otherwise reserves a heap of 64 MiB for each new thread (`mallopt(3)`, `M_ARENA_MAX`), out of the same room
/// that [`Headroom`] has just promised to somebody. Does nothing with another C library.
pub fn share_a_limited_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if ResourceLimit::AddressSpace.soft().is_some() {
        // SAFETY: it takes no pointer, takes the lock of the heap itself, and may be called at any time.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Threads of this module that the process may have at once; `None` where the system has no such limit.
///
/// On Linux each takes two memory maps out of `vm.max_map_count`; `kernel.threads-max` and `kernel.pid_max` count for
/// the whole system. Read once; without `/proc` the usual number of maps is assumed.
pub fn most_threads() -> Option<usize> {
    static MOST: LazyLock<Option<usize>> = LazyLock::new(|| {
        let known = cfg!(any(target_os = "linux", target_os = "android"));
        known.then(|| most_by(|path| std::fs::read_to_string(path).ok()))
    });
    *MOST
}

fn most_by(read: impl Fn(&str) -> Option<String>) -> usize {
    let number = |path| read(path)?.trim().parse::<usize>().ok();
    let maps = number("/proc/sys/vm/max_map_count").unwrap_or(USUAL_MAPS);
    let by_maps = maps.saturating_sub(RESERVED_MAPS.min(maps / 4)) / MAPS_PER_THREAD;
    let of_system = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"].map(number);
    of_system.into_iter().flatten().map(|n| n / 10 * 9).fold(by_maps, usize::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_runs_and_its_panic_stays_with_it() {
        let (sender, receiver) = mpsc::channel();
        let last = sender.clone();
        start("first", 128 * 1024, move || sender.send("ran").unwrap()).unwrap();
        assert_eq!(receiver.recv_timeout(DEADLINE), Ok("ran"));
        start("second", 512 * 1024, move || {
            let _last = last; // dropped when it unwinds
            panic!("of one thread");
        })
        .unwrap();
        assert_eq!(receiver.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_stack_that_cannot_be_mapped_is_an_error() {
        let never = || unreachable!("there is no such stack");
        let e = start("huge", 1 << 50, never).unwrap_err();
        assert!(matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EINVAL)), "{e}");
    }

    #[test]
    fn nobody_is_promised_what_is_not_there() {
        let before = PROMISED.load(Relaxed);
        assert!(Headroom::promise(1 << 60, 0).is_err());
        let promise = Headroom::promise(1 << 20, 4096).unwrap();
        assert!(PROMISED.load(Relaxed) >= 1 << 20);
        drop(promise);
        assert_eq!(PROMISED.load(Relaxed), before);
    }

    #[test]
    fn threads_are_counted_out_of_maps_and_process_numbers() {
        let system = |maps: Option<&str>, threads: Option<&str>| {
            let (maps, threads) = (maps.map(str::to_owned), threads.map(str::to_owned));
            most_by(move |path| match path {
                "/proc/sys/vm/max_map_count" => maps.clone(),
                "/proc/sys/kernel/threads-max" => threads.clone(),
                _ => None,
            })
        };
        assert_eq!(system(Some("65530\n"), None), 31_765);
        assert_eq!(system(None, None), 31_765, "without /proc");
        assert_eq!(system(Some("nonsense"), Some("1000")), 900);
        assert_eq!(
            system(Some("1000"), Some("100000")),
            375,
            "a small number is not eaten up by the reserve"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_takes_no_more_maps_than_it_is_counted_with() {
        const THREADS: usize = 200;
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let (ready, all) = mpsc::channel();
        let before = maps();
        let go: Vec<_> = (0..THREADS)
            .map(|_| {
                let (ready, (go, gate)) = (ready.clone(), mpsc::channel::<()>());
                start("waits", 128 * 1024, move || {
                    ready.send(()).unwrap();
                    let _ = gate.recv();
                })
                .unwrap();
                go
            })
            .collect();
        (0..THREADS).for_each(|_| all.recv_timeout(DEADLINE).unwrap());
        // Heaps of the allocator and the threads of other tests come on top.
        let used = maps() - before;
        assert!(used <= THREADS * MAPS_PER_THREAD + 150, "{used} maps for {THREADS} threads");
        drop(go);
    }
}
