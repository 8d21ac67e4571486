//! Changing limits while a server runs.

use super::{Policy, PolicyError};

impl Policy {
    /// Whether a server that runs under this policy can go on under another one: what was laid out at the start has to stay.
    ///
    /// # Errors
    /// The first limit that is fixed and differs.
    pub fn check_change(&self, to: &Self) -> Result<(), PolicyError> {
        let fixed = [
            ("accept.backlog", self.accept.backlog == to.accept.backlog),
            ("accept.posted", self.accept.posted.is_some() == to.accept.posted.is_some()),
            ("accept.reuse", self.accept.reuse == to.accept.reuse),
            ("accept.fast_open", self.accept.fast_open == to.accept.fast_open),
            ("accept.defer", self.accept.defer == to.accept.defer),
            ("buffer_bytes", self.buffer_bytes == to.buffer_bytes),
            ("buffers", self.buffers == to.buffers),
            ("lock_memory", self.lock_memory == to.lock_memory),
            ("threads", self.threads == to.threads),
            ("thread_stack_bytes", self.thread_stack_bytes == to.thread_stack_bytes),
            ("events_per_wait", self.events_per_wait == to.events_per_wait),
            ("busy_poll", self.busy_poll == to.busy_poll),
            ("fast_path", self.fast_path == to.fast_path),
            ("offload", self.offload == to.offload),
            ("mail_queue", self.mail_queue == to.mail_queue),
            ("socket_send_buffer", self.socket_send_buffer == to.socket_send_buffer),
            ("socket_receive_buffer", self.socket_receive_buffer == to.socket_receive_buffer),
        ];
        match fixed.into_iter().find(|(_, same)| !same) {
            Some((name, _)) => Err(PolicyError::Fixed(name)),
            None => Ok(()),
        }
    }

    /// The same limits as far as they can be changed while a server runs; the others as they are in `running`.
    #[must_use]
    pub fn as_far_as_possible(self, running: &Self) -> Self {
        let accept = super::Accept { batch: self.accept.batch, ..running.accept };
        Self {
            accept,
            buffer_bytes: running.buffer_bytes,
            buffers: running.buffers,
            lock_memory: running.lock_memory,
            threads: running.threads,
            thread_stack_bytes: running.thread_stack_bytes,
            events_per_wait: running.events_per_wait,
            busy_poll: running.busy_poll,
            fast_path: running.fast_path,
            offload: running.offload,
            mail_queue: running.mail_queue,
            socket_send_buffer: running.socket_send_buffer,
            socket_receive_buffer: running.socket_receive_buffer,
            ..self
        }
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
