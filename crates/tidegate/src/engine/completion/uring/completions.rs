//! What completions of the kernel mean to the loop.

use std::io;

use tidegate_os::ring::{Completion as Raw, Handle, Payload};
use tidegate_os::socket::is_out_of_memory;

use super::files::may_go_on;
use super::shared::RingBuffer;
use super::{Completion, SendResult, Uring};
use crate::proto::Token;

/// What a completion is about; the high bits of its key. The ring keeps the highest bit for itself.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Kind {
    Ignored,
    Waker,
    /// Into the table.
    AcceptDirect,
    /// As an ordinary descriptor.
    AcceptPlain,
    Dial,
    Receive,
    /// A look for a reset that a receive may have missed.
    LookedForReset,
    /// The same over a Unix socket, also for the end.
    LookedForEnd,
    Send,
    Finish,
    /// A close that was chained to a send; the index is its slot.
    Closed,
    /// Something was asked to stop; a chained send was.
    Stopped,
    StoppedSending,
    /// A socket that a file goes to can take more.
    Writable,
    /// A slot got a descriptor besides, for files to be sent to.
    Installed,
    /// A socket was sent to another ring; the index is its slot, the generation the thread of that ring.
    HandedOn,
    /// Another ring has sent a socket.
    Handed,
    /// An offer of shared memory was answered; a peer has woken this side of one.
    Answered,
    Notify,
}

const KIND_SHIFT: u32 = 56;

pub(super) fn key(kind: Kind, token: Token) -> u64 {
    (kind as u64) << KIND_SHIFT | token.to_u64()
}

pub(super) const NOBODY: Token = Token { index: 0, generation: 0 };

impl Uring {
    /// What it means to the loop. It is taken apart at once, for receives and sends, which are most: moved as a whole
    /// it would be copied each time.
    #[inline(always)]
    pub(super) fn completion(&mut self, raw: Raw) -> Completion<Self> {
        let Raw { key, result, made, more, buffer, payload } = raw;
        let (kind, token) = (key >> KIND_SHIFT, Token::from_u64(key & ((1 << KIND_SHIFT) - 1)));
        if kind == Kind::Receive as u64 {
            let outcome = result.map(|_| buffer.map(RingBuffer::Kernel));
            return Completion::Received { token, sequence: None, outcome, ended: !more };
        }
        if kind == Kind::Send as u64 {
            let (outcome, unsent) = sent(result, payload);
            return Completion::Sent { token, sequence: None, outcome, unsent };
        }
        self.other_completion(kind, token, Raw { key, result, made, more, buffer, payload })
    }

    #[inline(never)]
    fn other_completion(&mut self, kind: u64, token: Token, raw: Raw) -> Completion<Self> {
        match kind {
            k if k == Kind::Writable as u64 => may_go_on(token, raw),
            k if k == Kind::Installed as u64 => self.installed(token, raw),
            k if k == Kind::AcceptDirect as u64 || k == Kind::AcceptPlain as u64 => self.accepted(raw),
            k if k == Kind::Dial as u64 => Completion::Dialled { token, outcome: raw.result.map(drop) },
            k if k == Kind::Finish as u64 => {
                Completion::SendFinished { token, outcome: raw.result.map(drop) }
            }
            k if k == Kind::LookedForReset as u64 || k == Kind::LookedForEnd as u64 => match raw.result {
                // What the look itself had no memory for says nothing of the stream.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_out_of_memory(&error) => {
                    Completion::Reset { token, error }
                }
                Ok(0) if k == Kind::LookedForEnd as u64 => Completion::Ended { token },
                _ => Completion::Ignored,
            },
            k if k == Kind::Stopped as u64 => Completion::Stopped { token, found: found(&raw) },
            k if k == Kind::StoppedSending as u64 => {
                Completion::StoppedSending { token, found: found(&raw) > 0 }
            }
            k if k == Kind::Waker as u64 => {
                if let Some(waker) = self.waker.as_ref().filter(|_| !raw.more) {
                    self.ring.poll_multi(waker, key(Kind::Waker, NOBODY));
                }
                Completion::Woken
            }
            k if k == Kind::HandedOn as u64 => {
                // A slot that the close has freed is counted when that has completed.
                let outcome = raw.made.map_or(Ok(()), |handle| Err(handle.into()));
                Completion::HandedOn { to: token.generation as usize, outcome }
            }
            k if k == Kind::Handed as u64 => self.handed(raw),
            k if k == Kind::Answered as u64 => Completion::Dialled { token, outcome: Ok(()) },
            k if k == Kind::Notify as u64 => self.notified(token, &raw),
            k if k == Kind::Closed as u64 => {
                if raw.result.is_ok() {
                    self.direct -= 1; // otherwise the chain is broken, and the socket open
                }
                Completion::Ignored
            }
            _ => Completion::Ignored,
        }
    }

    /// A socket that another ring has sent.
    fn handed(&mut self, raw: Raw) -> Completion<Self> {
        let Some(socket) = raw.made else { return Completion::Ignored }; // the kernel sends none without a slot
        self.count(&socket);
        Completion::Handed { socket: socket.into() }
    }

    fn accepted(&mut self, raw: Raw) -> Completion<Self> {
        let made = raw.made.ok_or(io::ErrorKind::InvalidData);
        let outcome = raw.result.and_then(|_| Ok(made?)).map(|socket| {
            self.count(&socket);
            let peer = match &socket {
                Handle::Direct(_) => None,
                Handle::Plain(fd) => tidegate_os::socket::peer_addr(fd).ok(),
            };
            (socket.into(), peer)
        });
        Completion::Accepted { outcome, ended: !raw.more }
    }
}

/// How many operations a request to stop has found (IORING_ASYNC_CANCEL_ALL). A reset completes in the same way, and
/// finds none.
fn found(raw: &Raw) -> u32 {
    raw.result.as_ref().map_or(0, |&n| n)
}

/// What the kernel took of a send, and what is left of it.
#[inline]
fn sent(result: io::Result<u32>, payload: Option<Payload>) -> SendResult<Uring> {
    match result {
        Ok(n) => (Ok(n as usize), payload.and_then(|payload| payload.advance(n as usize))),
        Err(e) => (Err(e), payload), // nothing of it was taken
    }
}
