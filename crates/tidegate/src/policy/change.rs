//! Changing limits while a server runs.

use super::{Policy, PolicyError, limit};

impl Policy {
    /// Checks that a running server can switch to another policy: limits that are fixed at the start must not change.
    ///
    /// # Errors
    /// The first fixed limit that differs.
    pub fn check_change(&self, to: &Self) -> Result<(), PolicyError> {
        limit::check_change(self, to)
    }

    /// Returns `wanted` with every fixed limit replaced by its value in `running`.
    #[must_use]
    pub fn as_far_as_possible(self, running: &Self) -> Self {
        limit::as_far_as_possible(self, running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_can_be_changed_to_as_far_as_possible_and_not_further() {
        let (running, other) = (Policy::connections(), Policy::throughput());
        let error = running.check_change(&other).unwrap_err();
        assert_eq!(error, PolicyError::Fixed("buffer_bytes"));
        let changed = other.clone().as_far_as_possible(&running);
        assert_eq!(running.check_change(&changed), Ok(()));
        assert_eq!((changed.when_full, changed.outbox), (other.when_full, other.outbox));
    }
}
