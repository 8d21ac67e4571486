//! The interface through which a session answers.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_os::file::FileRange;

use super::connection::Context;
use super::dial::{DialError, DialRequest};
use super::mail::{Address, OffloadError, SessionWaker};
use super::panics::{Contained, contain};
use super::queue::SendQueue;
use super::rare::RareState;
use super::session_timers::TimerId;
use super::spliced::Spliced;
use super::timestamp::Timestamp;
use crate::policy::LONGEST;
use crate::proto::session::{Mail, Session};
use crate::types::{Activity, Dial};

/// Where a session puts its output. Valid during one call.
///
/// Nothing is sent during the call; the engine sends afterwards, as much as possible in one operation. The outbox is
/// bounded: above the high watermark of [`Policy::outbox`](crate::Policy::outbox) the connection stops receiving until
/// the peer has accepted enough; what one call adds beyond that is kept, so a session with much output checks
/// [`is_full`](Self::is_full) and continues in [`on_drained`](crate::Session::on_drained).
pub struct Outbox<'a> {
    pub(super) queue: &'a mut SendQueue,
    /// Bytes queued by the layers around the session.
    pub(super) ahead: usize,
    /// Number of layers around the session that is called.
    pub(super) layer: u32,
    pub(super) state_of_session: &'a mut SessionState,
    pub(super) context: &'a Context<'a>,
}

impl std::fmt::Debug for Outbox<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("queued", &self.queued()).finish_non_exhaustive()
    }
}

/// State that a session has set besides its output.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    /// When the timer without a key fires.
    pub(super) wake: Option<Timestamp>,
    /// What only few connections have.
    pub(super) rare: Option<Box<RareState>>,
    pub(super) awaits: Activity,
    /// The server drains: close as soon as nothing is in flight.
    pub(super) leaving: bool,
    /// A full outbox does not hold input back.
    pub(super) takes_input_while_full: bool,
    pub(super) splicing: Splicing,
}

/// What a connection does with pipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Splicing {
    /// Nothing: its engine or transport cannot.
    #[default]
    Unable,
    /// It sends from pipes.
    Sends,
    /// It sends from pipes, and could receive into them if the session wanted that.
    Able,
    /// It sends from pipes, and receives into them what the session has room for.
    Receives,
}

/// Appends a copy, and never fails: the session learns of connection errors by `on_close`.
impl io::Write for Outbox<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.queue.push_copy(bytes);
        Ok(bytes.len())
    }

    /// Appends a copy of all pieces with one allocation.
    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.queue.push_copies(pieces.iter().map(|piece| &**piece));
        Ok(pieces.iter().map(|piece| piece.len()).sum())
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

    /// Appends a part of a file. On Linux the kernel sends it from the page cache (`sendfile(2)`), and output appended
    /// before it shares its first segment; `iocp` and `overlapped` pass it to the system with the bytes around it (on
    /// server editions of Windows). Elsewhere, and through a layer or the fast path, it is read in pieces as the peer
    /// accepts them. Its bytes count towards the watermarks of the outbox like others, though they occupy no memory.
    ///
    /// Costs: a file that is not in the page cache blocks its I/O thread while the disk is read; to avoid that, read it
    /// by [`offload`](Self::offload) first. What the kernel has taken and not yet sent is the file's page cache
    /// (`sendfile(2)`): writing to the file in place changes it; replacing it by a rename is safe. A file that was
    /// truncated, or cannot be read, ends the connection with a reset, because the peer was promised bytes that do not
    /// exist.
    pub fn file(&mut self, range: FileRange) {
        self.queue.push_file(range);
    }

    /// Whether bytes in pipes are sent as they are: the connection can, and no layer has to see them.
    pub(crate) fn sends_spliced(&self) -> bool {
        self.layer == 0 && self.state_of_session.splicing != Splicing::Unable
    }

    /// Appends bytes that lie in a pipe; they are read where they cannot be sent from it.
    pub(crate) fn splice(&mut self, spliced: Spliced) -> io::Result<()> {
        if self.sends_spliced() {
            self.queue.push_spliced(spliced);
        } else {
            self.queue.push_shared(spliced.read()?);
        }
        Ok(())
    }

    /// From now on at most `room` bytes may be received into a pipe, where the connection can do that. With no room
    /// left, the session's [work](Activity::Work) holds the connection back, also if no input is left.
    pub(crate) fn set_splice_room(&mut self, room: usize) {
        let state = &mut *self.state_of_session;
        if self.layer == 0 && matches!(state.splicing, Splicing::Able | Splicing::Receives) {
            state.splicing = Splicing::Receives;
            state.rare_mut().splice_room = room;
        }
    }

    /// Bytes appended that the kernel has not taken yet.
    #[inline]
    #[must_use]
    pub fn queued(&self) -> usize {
        self.ahead + self.queue.len()
    }

    /// Whether the high watermark is reached: stop producing; [`on_drained`](crate::Session::on_drained) follows.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued() >= self.context.policy.outbox.high
    }

    /// The time of this event, read once for each batch of events.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.context.now
    }

    /// Sets the session's timer: [`Mail::Timer`] arrives at `when`. Replaces an earlier setting. Never early. On
    /// `epoll`, `select` and `uring` late by at most 1/64 ms and what the system needs to wake a thread (on Linux 50 µs
    /// of timer slack, unless the thread that starts the others has less: `PR_SET_TIMERSLACK`, prctl(2)); on the other
    /// models by one more millisecond.
    pub fn wake_at(&mut self, when: Instant) {
        self.state_of_session.wake = Some(when.into());
    }

    /// Cancels [`wake_at`](Self::wake_at).
    pub fn wake_never(&mut self) {
        self.state_of_session.wake = None;
    }

    /// Sets a timer with a key: [`Mail::KeyedTimer`] arrives at `when`. Replaces the timer with the same key. A session
    /// may have any number of them, besides the one of [`wake_at`](Self::wake_at), with the same precision. Timers fire
    /// in the order of their times, and those with equal times in the order in which they were set.
    ///
    /// Costs: nothing for a session without timers, about 100 bytes for each timer, and time logarithmic in their
    /// number.
    ///
    /// Keys are private to the session: keys of a layer and of the session [inside](Self::layered) it do not collide,
    /// see [`is_inner_timer`](Self::is_inner_timer).
    pub fn set_timer(&mut self, key: u64, when: Instant) {
        self.state_of_session.set_timer(TimerId { layer: self.layer, key: Some(key) }, when);
    }

    /// Sets a timer for a part of the session that shares its [keys](Self::set_timer): [`Mail::Wake`] arrives at
    /// `when`. Replaces an earlier setting.
    pub(crate) fn set_wake_up(&mut self, when: Instant) {
        self.state_of_session.set_timer(TimerId { layer: self.layer, key: None }, when);
    }

    /// Cancels the timer with this key; `false` if there was none.
    pub fn cancel_timer(&mut self, key: u64) -> bool {
        self.state_of_session.cancel_timer(TimerId { layer: self.layer, key: Some(key) })
    }

    /// For a layer with keyed timers: whether the [`Mail::KeyedTimer`] being delivered belongs to the session
    /// [inside](Self::layered) and must be passed on to it. A layer without keyed timers passes on all.
    #[must_use]
    pub fn is_inner_timer(&self) -> bool {
        self.state_of_session.rare().fired > self.layer
    }

    /// Sets what the session is in the middle of; remains until changed. Unconsumed input counts as [`Activity::Input`]
    /// by itself, an offloaded job as [`Activity::Work`].
    pub fn set_activity(&mut self, what: Activity) {
        self.state_of_session.awaits = what;
    }

    /// From now on input is received and delivered also while the outbox is full. For sessions whose input does not
    /// become output of the same connection (the peer of a linked connection may not read before it could write), or
    /// that bound both themselves, as async code does.
    pub fn takes_input_while_full(&mut self) {
        self.state_of_session.takes_input_while_full = true;
    }

    /// Whether input waits until the outbox has drained: it is full, and the session has not called
    /// [`takes_input_while_full`](Self::takes_input_while_full). For a layer that buffers input for the session inside.
    #[must_use]
    pub fn holds_input(&self) -> bool {
        self.is_full() && !self.state_of_session.takes_input_while_full
    }

    /// Whether the session is at [work](Activity::Work): input that it has left waits until that is done. For a layer
    /// that buffers input for the session inside.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.state_of_session.awaits == Activity::Work
    }

    /// Whether the server is stopping: the connection closes once the session [awaits](Self::set_activity) nothing and
    /// everything is sent. A protocol with a shutdown message sends it now. [`on_drain`](crate::Session::on_drain) is
    /// called when it begins.
    #[inline]
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state_of_session.leaving
    }

    /// Runs a long job on a worker thread; its result arrives as [`Mail::Done`], in the order in which jobs finish.
    ///
    /// # Errors
    /// [`OffloadError`] when the queue is full ([`Policy::offload`](crate::Policy::offload)) or no thread could be
    /// started; the job was not run.
    pub fn offload<T: Any + Send>(
        &mut self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(), OffloadError> {
        let address = self.address();
        self.context.workers.run(Box::new(move || {
            let mail = contain(job).map_or(Mail::JobPanicked, |result| Mail::Done(Box::new(result)));
            // Only a thread that has stopped does not take it, and then nobody waits. The value is the session's.
            drop(address.post(mail).map_err(|refused| Contained::new(refused.message)));
        }))?;
        self.state_of_session.rare_mut().jobs += 1;
        Ok(())
    }

    /// Dials an address (also as text, as [`Server::bind`](crate::Server::bind) takes one) or a [`Dial`] on the I/O
    /// thread of this session, and gives the connection to `session`. Names of hosts are not looked up, because that
    /// blocks: [offload](Self::offload) it. Afterwards, or if it is not established `within` this time, this session
    /// receives [`Mail::Dialled`]; until then it counts as [at work](Activity::Work), so that a stop waits for it.
    /// [`Dial::thread`] is ignored. The service must declare that its sessions dial
    /// ([`ServiceOptions::dials`](crate::ServiceOptions::dials)), which reserves connections within
    /// [`Policy::max_connections`](crate::Policy::max_connections).
    ///
    /// The models without event loops have no I/O thread to share: `blocking` starts a thread, a worker of `pool`
    /// blocks until connected, and `tokio` starts a task.
    ///
    /// # Errors
    /// The text is not an address, the thread has stopped, or [`Policy::mail_queue`](crate::Policy::mail_queue) dials
    /// are already pending; `session` is dropped, and no mail follows. A failed connect is reported by mail;
    /// [`io::ErrorKind::QuotaExceeded`] means that all permits are taken and one may become free soon.
    pub fn dial(
        &mut self,
        dial: impl TryInto<Dial, Error: Into<DialError>>,
        within: Duration,
        session: impl Session,
    ) -> Result<(), DialError> {
        let dial = dial.try_into().map_err(Into::into)?;
        let until = self.now().checked_add(within).unwrap_or_else(|| self.now() + LONGEST);
        let request = DialRequest::of(self.address(), dial, until, Box::new(session));
        self.context.mail_sink.dial(request)?;
        self.state_of_session.rare_mut().jobs += 1;
        Ok(())
    }

    /// For a layer that encodes the output of the session inside: the outbox to call that session with. Its output goes
    /// to `layer_buffer`, and everything else to this connection. It is full when this one is; the layer moves the
    /// buffer's content into this outbox after each call, so that the limits apply as they do without a layer.
    pub fn layered<'b>(&'b mut self, layer_buffer: &'b mut LayerBuffer) -> Outbox<'b> {
        Outbox {
            ahead: self.queued(),
            layer: self.layer + 1,
            queue: &mut layer_buffer.0,
            state_of_session: &mut *self.state_of_session,
            context: self.context,
        }
    }

    /// For a layer: it buffers this many bytes that the session inside has not consumed. They count as unconsumed
    /// input, with all its effects ([`Policy::input_bytes`](crate::Policy::input_bytes) among them). Remains until
    /// changed.
    pub fn set_buffered(&mut self, bytes: usize) {
        // The session inside may buffer too: neither replaces the other's number.
        let depth = usize::from(self.layer > 0);
        if bytes > 0 || self.state_of_session.rare.is_some() {
            self.state_of_session.rare_mut().kept[depth] = bytes;
        }
    }

    /// Bytes that may be appended before the outbox [is full](Self::is_full).
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.context.policy.outbox.high.saturating_sub(self.queued())
    }

    /// A waker for this session, usable from any thread: the session receives [`Mail::Wake`]. Calls before its delivery
    /// are merged, and it always arrives: [`Policy::mail_queue`](crate::Policy::mail_queue) does not bound it.
    #[must_use]
    pub fn waker(&mut self) -> Waker {
        let address = self.address();
        let waker = &mut self.state_of_session.rare_mut().waker;
        waker.get_or_insert_with(|| Arc::new(SessionWaker::new(address))).clone().into()
    }

    /// Where the mail of this session goes.
    pub(crate) fn address(&self) -> Address {
        Address { mail_sink: self.context.mail_sink.clone(), token: self.context.token }
    }
}

/// Output of a session inside a layer that the layer has not encoded yet; see [`Outbox::layered`]. An empty one owns no
/// memory.
#[derive(Debug, Default)]
pub struct LayerBuffer(SendQueue);

impl LayerBuffer {
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves bytes from the front into `into`, as many as fit; returns their number. Parts of files are read.
    ///
    /// # Errors
    /// A file cannot be read, or was truncated ([`io::ErrorKind::UnexpectedEof`]); the layer ends the connection.
    pub fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.copy_into(into)
    }

    /// Drops its content.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_taken_in_steps_of_any_size() {
        let mut layer_buffer = LayerBuffer::default();
        layer_buffer.0.push_copy(b"ab");
        layer_buffer.0.push_shared(Bytes::from_static(b"cdefg"));
        layer_buffer.0.push_copy(b"h");
        let (mut all, mut step) = (Vec::new(), [0; 3]);
        while !layer_buffer.is_empty() {
            let n = layer_buffer.take(&mut step).unwrap();
            all.extend_from_slice(&step[..n]);
        }
        assert_eq!((all.as_slice(), layer_buffer.take(&mut step).unwrap()), (&b"abcdefgh"[..], 0));
    }
}
