//! Contains panics in the application's code, and in the destructors of its values.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs application code; `None` if it panicked.
///
/// State it left half-modified is the application's: the caller ends the connection or job it belongs to.
pub fn contain<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(discard_payload).ok()
}

/// A panic payload is an application value, too. One whose destructor keeps panicking is leaked.
#[cold]
fn discard_payload(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

/// An application value. Panics in its destructor are caught.
pub struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    /// Wraps a value.
    #[inline]
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Returns the value to the application.
    #[inline]
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.0.take().expect(UNTIL_DROPPED)
    }
}

const UNTIL_DROPPED: &str = "the value is there until its container is gone";

impl<T> Deref for Contained<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_ref().expect(UNTIL_DROPPED)
    }
}

impl<T> DerefMut for Contained<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(UNTIL_DROPPED)
    }
}

impl<T> Drop for Contained<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            let _ = contain(|| drop(value));
        }
    }
}

impl<T> From<T> for Contained<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Contained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{panic_any, resume_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Panics so many times in a row, with a bomb of its kind as what the panic carries.
    struct Bomb(usize, Arc<AtomicUsize>);

    impl Drop for Bomb {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            if self.0 > 0 {
                resume_unwind(Box::new(Self(self.0 - 1, self.1.clone()))); // as a panic, and prints nothing
            }
        }
    }

    #[test]
    fn a_destructor_that_panics_ends_there_and_so_does_what_its_panic_carries() {
        let dropped = Arc::new(AtomicUsize::new(0));
        drop(Contained::new(Bomb(1, dropped.clone())));
        assert_eq!(dropped.load(SeqCst), 2, "the value, and what its panic carried");
        drop(Contained::new(Bomb(9, dropped.clone())));
        assert_eq!(dropped.load(SeqCst), 4, "the value and one more; the rest is leaked");
        std::mem::forget(Contained::new(Bomb(9, dropped.clone())).into_inner());
        assert_eq!(dropped.load(SeqCst), 4, "what is given back is nobody's business here");
    }

    #[test]
    fn code_that_panics_gives_nothing() {
        assert_eq!(contain(|| 5), Some(5));
        assert_eq!(contain(|| -> u32 { resume_unwind(Box::new("on request")) }), None);
        assert_eq!(contain(|| -> u32 { panic_any(Contained::new(7_u32)) }), None);
    }
}
