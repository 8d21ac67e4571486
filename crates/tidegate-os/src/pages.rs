//! Memory in whole pages, which can be kept from being paged out.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::system::memory::{lock, map, unmap};
pub use crate::terms::Residence;

/// Zeroed memory in whole pages; given back when dropped.
#[derive(Debug)]
pub struct Pages {
    at: NonNull<u8>,
    bytes: usize,
    #[cfg(all(test, windows))]
    residence: Residence,
}

// SAFETY: plain memory that nobody else knows; shared and exclusive access follow the borrow of the owner.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` (more than none), rounded up to whole pages by the system.
    ///
    /// # Errors
    /// When there is no memory or address space; with [`Residence::Locked`] also when RLIMIT_MEMLOCK is too low or
    /// nothing may be locked, and on Windows when the working set cannot be raised by as much.
    pub fn new(bytes: usize, residence: Residence) -> io::Result<Self> {
        let pages = Self {
            at: map(bytes)?,
            bytes,
            #[cfg(all(test, windows))]
            residence,
        };
        if residence == Residence::Locked {
            lock(&pages)?;
        }
        Ok(pages)
    }

    /// Whether they are locked.
    #[cfg(all(test, windows))]
    pub(crate) fn residence(&self) -> Residence {
        self.residence
    }

    /// The first byte, for a kernel interface that is given addresses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Leaves the memory where it is, for good, because the kernel may still write there; nothing is left of these.
    pub fn leak(&mut self) {
        self.bytes = 0;
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped, zeroed by the system, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped by `new` with this size, and no slice of it is alive: they borrow `self`.
            unsafe { unmap(self.at, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_can_be_written_to_the_last_byte() {
        let mut pages = Pages::new(3 * 4096, Residence::Pageable).unwrap();
        assert!(pages.iter().all(|&byte| byte == 0));
        pages[3 * 4096 - 1] = 7;
        assert_eq!(pages.last(), Some(&7));
    }

    #[test]
    fn leaked_pages_stay() {
        let mut pages = Pages::new(4096, Residence::Pageable).unwrap();
        let at = pages.as_ptr();
        pages.leak();
        assert!(pages.is_empty());
        drop(pages);
        // SAFETY: the memory of pages that were leaked is nobody's else.
        unsafe { at.write_volatile(7) };
    }

    #[test]
    fn no_pages_are_an_error() {
        assert!(Pages::new(0, Residence::Pageable).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn locked_pages_are_all_in_memory() {
        // Every process may lock as little as this, but in a sandbox that forbids it.
        match Pages::new(4 * 4096, Residence::Locked) {
            Ok(pages) => {
                let kib = locked_kib(&pages).expect("locked");
                assert!(kib >= 16, "{kib} of 16 KiB are in memory");
            }
            Err(e) => {
                let most = crate::process::locked_memory_limit();
                assert!(most.is_some_and(|most| most < 64 * 1024), "{e}, with a limit of {most:?} bytes");
            }
        }
        let pageable = Pages::new(64 * 4096, Residence::Pageable).unwrap();
        assert_eq!(locked_kib(&pageable), None);
    }

    #[test]
    #[cfg(windows)]
    fn pages_can_be_locked_past_the_first_working_set() {
        // A process begins with a minimum working set of about 200 KiB.
        let pages = Pages::new(4 << 20, Residence::Locked).unwrap();
        assert_eq!(pages.len(), 4 << 20);
    }

    /// What is in memory of the mapping that has these pages, if it is locked. The sum of the process changes with
    /// other tests, and so does the proportional share (`Locked`) while another one forks.
    #[cfg(target_os = "linux")]
    fn locked_kib(pages: &Pages) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let first = pages.as_ptr() as u64;
        let (mut inside, mut kib) = (false, None);
        for line in smaps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let address = |text| u64::from_str_radix(text, 16);
            if let Some((Ok(from), Ok(to))) = range.map(|(from, to)| (address(from), address(to))) {
                inside = (from..to).contains(&first);
            } else if let (true, Some(rss)) = (inside, line.strip_prefix("Rss:")) {
                kib = rss.trim().trim_end_matches(" kB").parse().ok();
            } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
                return kib.filter(|_| flags.split_whitespace().any(|flag| flag == "lo"));
            }
        }
        panic!("no mapping at {first:x}")
    }
}
