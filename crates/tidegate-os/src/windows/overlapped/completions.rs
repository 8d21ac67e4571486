//! Operations that have ended, and what became of them.

use std::io;
use std::time::Duration;

use super::super::descriptor::BorrowedFd;
use super::super::pool::Buffer;
use super::super::status;
use super::calls::{connected, receive_now, update_accepted};
use super::queue::Queue;
use super::table::end_all;
use super::{
    BEHIND, Done, Notifier, Operation, OperationData, OperationQueue, Outcome, OverlappedSocket, Payload,
    PendingAccept, WOKEN,
};
use crate::socket::{confirm_end, is_exhaustion, is_lost_connection};

impl<N: Notifier> Queue<N> {
    /// Waits until something has ended, or an outcome is there anyway.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_more = !self.ready.is_empty() || !self.refusals.is_empty() || !self.table.ended.is_empty();
        let timeout = if has_more { Some(Duration::ZERO) } else { timeout };
        self.table.wait(timeout)?;
        // Sends are reported before what the peer answered to them: an answer, or a reset, may end the connection.
        let receives =
            |place: &usize| self.table.operations.get(*place).is_some_and(|operation| operation.receives());
        self.table.ended.make_contiguous().sort_by_key(receives);
        Ok(())
    }

    /// The next outcome.
    #[allow(
        clippy::should_implement_trait,
        reason = "none is not the end: there is more after the next wait"
    )]
    pub fn next(&mut self) -> Option<Done> {
        if let Some(done) = self.ready.pop_front() {
            return Some(done);
        }
        if let Some((socket, done)) = self.refusals.pop_front() {
            self.sends.was_reported(socket);
            return Some(done);
        }
        loop {
            let place = self.table.ended.pop_front()?;
            if place == WOKEN {
                return Some(Done { key: 0, outcome: Outcome::Woken });
            }
            if place == BEHIND {
                return Some(Done { key: 0, outcome: Outcome::Behind });
            }
            if let Some(send) = self.send_to_report_first(place) {
                self.held_back.entry(send).or_default().push(place);
                continue;
            }
            let operation = self.table.take(place)?;
            if operation.sends() {
                self.send_was_reported(place, operation.socket);
            }
            if let Some(done) = self.finish(operation) {
                return Some(done);
            }
        }
    }

    fn finish(&mut self, operation: Operation) -> Option<Done> {
        let Operation { overlapped, key, socket, held, is_followed, polls, .. } = operation;
        let result = status::outcome(overlapped.Internal as i32, overlapped.InternalHigh);
        // SAFETY: it is open: an operation forgets its socket when the owner closes it (`Queue::close`), which needs
        // the queue that is borrowed here.
        let socket = socket.map(|socket| unsafe { BorrowedFd::borrow_raw(socket) });
        let outcome = match held {
            OperationData::Nothing => {
                Outcome::Connected(result.and_then(|_| socket.map_or(Ok(()), connected)))
            }
            OperationData::Receive(_) if polls => Outcome::Received(result.map(|_| None)),
            OperationData::Receive(buffer) => Outcome::Received(self.received(socket, result, buffer)),
            OperationData::Send(payload) => match result {
                Ok(n) => Outcome::Sent(Ok(n), payload.advance(n)),
                // It can be sent again only if nothing of it was.
                Err(e) => Outcome::Sent(Err(e), (overlapped.InternalHigh == 0).then_some(payload)),
            },
            OperationData::Transmit(transmission) => {
                let (sent, left) = transmission.finish(result);
                Outcome::Sent(sent, Payload::left(left))
            }
            OperationData::Accept(accept) => Outcome::Accepted(self.accepted(accept, result)),
            OperationData::Disconnect(socket) => {
                self.shelf.arrive(result.is_ok().then_some(socket));
                return None;
            }
            OperationData::Datagram(_) => return None, // another kind of queue has those
        };
        Some(Done { key, outcome: if is_followed { Self::followed(outcome) } else { outcome } })
    }

    fn received(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        result: io::Result<usize>,
        buffer: Option<Buffer>,
    ) -> io::Result<Option<Buffer>> {
        self.pinned -= usize::from(buffer.is_some());
        let outcome = match (result, buffer) {
            (Ok(n), Some(buffer)) => Ok((n, buffer)),
            (Err(e), Some(buffer)) => {
                self.pool.recycle(buffer);
                Err(e)
            }
            (Err(e), None) => Err(e),
            (Ok(_), None) => self.take_what_is_there(socket),
        };
        self.filled(socket, outcome)
    }

    /// What a receive into a buffer means; without bytes it is the end.
    pub(super) fn filled(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        outcome: io::Result<(usize, Buffer)>,
    ) -> io::Result<Option<Buffer>> {
        match outcome? {
            (0, buffer) => {
                self.pool.recycle(buffer);
                socket.map_or(Ok(()), |socket| confirm_end(&socket)).map(|()| None)
            }
            (n, buffer) => Ok(Some(Buffer { filled: n as u32, ..buffer })),
        }
    }

    /// Receives without waiting: a receive without a buffer has completed, so there is data, or the end; or there may
    /// be more.
    pub(super) fn take_what_is_there(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
    ) -> io::Result<(usize, Buffer)> {
        let socket = socket.ok_or(io::ErrorKind::ConnectionAborted)?; // closed meanwhile
        let buffer = self.pool.take().ok_or(io::ErrorKind::ResourceBusy)?;
        let received = receive_now(socket, self.pool.whole(&buffer));
        match received {
            Ok(n) => Ok((n, buffer)),
            Err(e) => {
                self.pool.recycle(buffer);
                Err(e)
            }
        }
    }

    fn accepted(&mut self, accept: PendingAccept, result: io::Result<usize>) -> io::Result<OverlappedSocket> {
        self.pinned -= usize::from(accept.first.is_some());
        if accept.used {
            self.note_use(&result);
        }
        let made = result.and_then(|n| {
            update_accepted(&accept.socket, &accept.listener)?;
            accept.socket.set_nonblocking(true)?;
            accept.socket.set_tcp_nodelay(true)?;
            Ok(n)
        });
        match (made, accept.first) {
            (Ok(n), Some(first)) if n > 0 => {
                let first = Buffer { filled: n as u32, ..first };
                Ok(OverlappedSocket::accepted(accept.socket, self.pool.id(), Some(first)))
            }
            (made, first) => {
                first.into_iter().for_each(|buffer| self.pool.recycle(buffer));
                made.map(|_| OverlappedSocket::accepted(accept.socket, self.pool.id(), None))
            }
        }
    }
}

impl<N: Notifier> Queue<N> {
    /// An accept with a socket that had a connection before has ended.
    fn note_use(&mut self, result: &io::Result<usize>) {
        match result {
            Ok(_) => self.shelf.note_used(),
            Err(e) => self
                .note_refusal(e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error)),
        }
    }

    /// The system did not accept with such a socket. Unless that was for want of memory, or about this one connection,
    /// it never will.
    pub(super) fn note_refusal(&mut self, why: io::Error) {
        if !is_lost_connection(&why) && !is_exhaustion(&why) {
            self.shelf.give_up(why);
        }
    }
}

impl<N: Notifier> Drop for Queue<N> {
    fn drop(&mut self) {
        self.stop_accepting();
        self.stop_disconnecting();
        let all = end_all(
            self,
            |queue| &mut queue.table,
            |queue, time| {
                queue.wait(Some(time))?;
                while queue.next().is_some() {}
                Ok(())
            },
        );
        if !all {
            self.pool.leak();
        }
    }
}
