//! Bytes on their way out, and what a session may do with them.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_os::file::FileRange;

use super::connection::Context;
use super::dial::DialRequest;
use super::mail::{Mailbox, MailboxError, OffloadError, SessionWaker};
use super::panics::contain;
use super::queue::Queue;
use super::session_timers::{SessionTimers, TimerId};
use crate::policy::LONGEST;
use crate::service::{Activity, Dial, Mail, Session};

/// Where a session puts its answer. Valid during one call.
///
/// Nothing is sent while the call runs; the engine sends afterwards, as much as it can in one
/// operation. The outbox is bounded: above the high watermark of
/// [`Policy::outbox`](crate::Policy::outbox) the connection receives nothing more until the peer
/// took enough; what one call adds beyond that is kept, so a session with much to say checks
/// [`is_full`](Self::is_full) and goes on in [`on_drained`](crate::Session::on_drained).
pub struct Outbox<'a> {
    pub(super) queue: &'a mut Queue,
    /// Bytes that the layer around has queued already.
    pub(super) ahead: usize,
    /// Layers around the session that is called.
    pub(super) layer: u32,
    pub(super) state_of_session: &'a mut SessionState,
    pub(super) context: &'a Context<'a>,
}

/// What a session has asked for besides sending.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    pub(super) timers: SessionTimers,
    /// The layers around whoever has set the timer that fires now.
    pub(super) fired: u32,
    pub(super) awaits: Activity,
    /// The server drains: close as soon as nothing is in flight.
    pub(super) leaving: bool,
    /// A full outbox does not hold input back.
    pub(super) takes_input_while_full: bool,
    /// Offloaded jobs and dials whose result has not come back.
    pub(super) jobs: u32,
    /// Input that a layer keeps for the session inside, and what that one keeps for itself.
    pub(super) kept: [usize; 2],
    /// What wakes the session, if it has asked for that.
    pub(super) waker: Option<Arc<SessionWaker>>,
}

/// Appends a copy, and never fails: what goes wrong with the connection, its session learns by `on_close`.
impl io::Write for Outbox<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.queue.push_copy(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends a copy, and never fails.
impl fmt::Write for Outbox<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.queue.push_copy(text.as_bytes());
        Ok(())
    }
}

impl Outbox<'_> {
    /// Appends a copy of `bytes`.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        self.queue.push_copy(bytes);
    }

    /// Appends bytes without copying them.
    #[inline]
    pub fn share(&mut self, bytes: Bytes) {
        self.queue.push_shared(bytes);
    }

    /// Appends a part of a file. On Linux the kernel takes it from its page cache to the socket (`sendfile(2)`), and
    /// what was appended before it leaves in one segment with its beginning; `iocp` and `overlapped` hand it to the
    /// system with the bytes around it (on server editions of Windows). Elsewhere, and through a layer or the fast
    /// path, it is read in pieces as the peer takes them. Its bytes count for the marks of the outbox as others do,
    /// though they occupy no memory.
    ///
    /// Costs: a file that is not in the page cache holds its I/O thread up while the disk is read; a session that minds
    /// has it read by [`offload`](Self::offload) first. What the kernel has taken and not yet sent is the file's own
    /// memory (`sendfile(2)`): writing to the file in its place changes it; one that is replaced by renaming another is
    /// safe. A file that has become shorter, or cannot be read, ends the connection with a reset: its peer was promised
    /// bytes that do not exist.
    pub fn file(&mut self, range: FileRange) {
        self.queue.push_file(range);
    }

    /// Bytes that were appended and that the kernel has not yet taken.
    #[inline]
    #[must_use]
    pub fn queued(&self) -> usize {
        self.ahead + self.queue.len()
    }

    /// Whether the high watermark is reached: stop producing, [`on_drained`](crate::Session::on_drained) follows.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued() >= self.context.policy.outbox.high
    }

    /// The time of this event. Read once for a batch of events; a session needs no clock of its own for deadlines.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.context.now
    }

    /// Asks for [`Mail::Timer`] at `when`, in place of what was asked for before. Never early. On `epoll`, `select` and
    /// `uring` late by at most 1/64 ms and what the system needs to wake a thread (on Linux 50 µs of timer slack,
    /// unless [`exact_sleeps`](crate::system::exact_sleeps) was called before the threads were started); on the other
    /// models by a millisecond more.
    pub fn wake_at(&mut self, when: Instant) {
        self.state_of_session.timers.wake_at(Some(when));
    }

    /// Takes back what [`wake_at`](Self::wake_at) asked for.
    pub fn wake_never(&mut self) {
        self.state_of_session.timers.wake_at(None);
    }

    /// Asks for [`Mail::KeyedTimer`] with this key at `when`, in place of what was asked for under the same key
    /// before. A session has any number of them, beside the one of [`wake_at`](Self::wake_at), and all are as exact.
    /// Those that are due come in the order of their times, and those of one time as they were set.
    ///
    /// Costs: nothing for a session that has none, about 100 bytes for each that is set, and a step for each doubling
    /// of their number.
    ///
    /// Keys belong to the session that chose them: those that a layer and the session [inside](Self::layered) it have
    /// set never meet, see [`is_inner_timer`](Self::is_inner_timer).
    pub fn set_timer(&mut self, key: u64, when: Instant) {
        self.state_of_session.timers.set(TimerId { layer: self.layer, key }, when);
    }

    /// Takes back what [`set_timer`](Self::set_timer) asked for under this key; `false` if there was nothing.
    pub fn cancel_timer(&mut self, key: u64) -> bool {
        self.state_of_session.timers.cancel(TimerId { layer: self.layer, key })
    }

    /// For a layer that sets timers under keys itself: whether the [`Mail::KeyedTimer`] it is being shown is one of
    /// the session [inside](Self::layered), and is to be passed on to it. A layer that sets none passes all on.
    #[must_use]
    pub fn is_inner_timer(&self) -> bool {
        self.state_of_session.fired > self.layer
    }

    /// Says what the session is in the middle of; holds until it says something else. Input that was left unconsumed
    /// counts as [`Activity::Input`] by itself, an offloaded job as [`Activity::Work`].
    pub fn set_activity(&mut self, what: Activity) {
        self.state_of_session.awaits = what;
    }

    /// From now on input is received and shown also while the outbox is full. For sessions whose input does not become
    /// output of the same connection: the peer of one that links two connections may read nothing before it could
    /// write.
    pub fn takes_input_while_full(&mut self) {
        self.state_of_session.takes_input_while_full = true;
    }

    /// Whether the server is stopping: the connection closes once the session [awaits](Self::set_activity) nothing and
    /// everything is sent. A protocol that can say so tells its peer now. [`on_drain`](crate::Session::on_drain) says
    /// when it begins.
    #[inline]
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state_of_session.leaving
    }

    /// Runs a job that takes long on a thread of its own kind; what it returns comes back as
    /// [`Mail::Done`], in the order in which jobs end.
    ///
    /// # Errors
    /// [`OffloadError`] when the queue is full ([`Policy::offload`](crate::Policy::offload)) or no thread could be
    /// started; the job was not run.
    pub fn offload<T: Any + Send>(
        &mut self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(), OffloadError> {
        let Mailbox { office, token } = self.mailbox();
        self.context.workers.run(Box::new(move || {
            let mail = contain(job).map_or(Mail::JobPanicked, |result| Mail::Done(Box::new(result)));
            // Only a thread that has stopped does not take it, and then nobody waits for it.
            let _ = office.post(token, mail);
        }))?;
        self.state_of_session.jobs += 1;
        Ok(())
    }

    /// Makes a connection on the I/O thread of this one, and gives it to `session`. Then, or when there is none
    /// `within` so long, this session gets [`Mail::Dialled`]; until then it counts as [at work](Activity::Work), so
    /// that a stop waits for it. [`Dial::thread`] is not looked at. The service must say that its sessions dial
    /// ([`Service::dials`](crate::Service::dials)), which sets places aside within
    /// [`Policy::max_connections`](crate::Policy::max_connections).
    ///
    /// On the models without loops there is no I/O thread to share: `blocking` starts a thread, a worker of `pool`
    /// waits for the connection, and `tokio` starts a task.
    ///
    /// # Errors
    /// The thread has stopped, or [`Policy::mail_queue`](crate::Policy::mail_queue) dials wait already; `session` is
    /// dropped, and no mail follows. That the connection cannot be made is told by mail;
    /// [`io::ErrorKind::QuotaExceeded`] says that all places are taken, and that there may be one soon.
    pub fn dial(&mut self, dial: Dial, within: Duration, session: impl Session) -> Result<(), MailboxError> {
        let until = self.now().checked_add(within).unwrap_or_else(|| self.now() + LONGEST);
        let request = DialRequest::of(self.mailbox(), dial, until, Box::new(session));
        self.context.office.dial(request)?;
        self.state_of_session.jobs += 1;
        Ok(())
    }

    /// For a layer that puts what the session inside says into another form: the outbox to call that session with. What
    /// it says goes to `draft`, and everything else to this connection. It is full when this one is; the layer empties
    /// the draft into this one after each call, so that the limits of the outbox hold as they do without a layer.
    pub fn layered<'b>(&'b mut self, draft: &'b mut LayerBuffer) -> Outbox<'b> {
        Outbox {
            ahead: self.queued(),
            layer: self.layer + 1,
            queue: &mut draft.0,
            state_of_session: &mut *self.state_of_session,
            context: self.context,
        }
    }

    /// For a layer: it has taken so many bytes that the session inside has not, or that are not enough for it yet. They
    /// count as input left unconsumed, with all that follows from it
    /// ([`Policy::input_bytes`](crate::Policy::input_bytes) among it). Holds until it says something else.
    pub fn set_buffered(&mut self, bytes: usize) {
        // The session inside may keep some, too: what one says does not replace what the other has said.
        let depth = usize::from(self.layer > 0);
        self.state_of_session.kept[depth] = bytes;
    }

    /// Bytes that may be appended before the outbox [is full](Self::is_full).
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.context.policy.outbox.high.saturating_sub(self.queued())
    }

    /// Wakes this session from any thread: it gets [`Mail::Wake`]. Several calls before that has arrived are one, and
    /// it always arrives: [`Policy::mail_queue`](crate::Policy::mail_queue) does not bound it.
    #[must_use]
    pub fn waker(&mut self) -> Waker {
        let mailbox = self.mailbox();
        self.state_of_session.waker.get_or_insert_with(|| Arc::new(SessionWaker::new(mailbox))).clone().into()
    }

    /// The address under which other sessions and threads reach this session.
    #[must_use]
    pub fn mailbox(&self) -> Mailbox {
        Mailbox { office: self.context.office.clone(), token: self.context.token }
    }
}

/// What a session inside a layer has said, and the layer has not yet put into its own form; see [`Outbox::layered`].
/// An empty one owns no memory.
#[derive(Debug, Default)]
pub struct LayerBuffer(Queue);

impl LayerBuffer {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves bytes from the front into `into`, as many as there are and it has room for; returns how many. Parts of
    /// files are read.
    ///
    /// # Errors
    /// A file cannot be read, or has become shorter ([`io::ErrorKind::UnexpectedEof`]); the layer ends the connection.
    pub fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.copy_into(into)
    }

    /// Drops what is in it.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_taken_in_steps_of_any_size() {
        let mut draft = LayerBuffer::default();
        draft.0.push_copy(b"ab");
        draft.0.push_shared(Bytes::from_static(b"cdefg"));
        draft.0.push_copy(b"h");
        let (mut all, mut step) = (Vec::new(), [0; 3]);
        while !draft.is_empty() {
            let n = draft.take(&mut step).unwrap();
            all.extend_from_slice(&step[..n]);
        }
        assert_eq!((all.as_slice(), draft.take(&mut step).unwrap()), (&b"abcdefgh"[..], 0));
    }
}
