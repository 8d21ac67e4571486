//! Parts of files: sent by the thread itself when the ring reports that the socket can take more.

use std::io;

use bytes::Bytes;
use tidegate_os::descriptor::OwnedFd;
use tidegate_os::file::FileRange;
use tidegate_os::ring::{Completion as Raw, Handle, Payload};
use tidegate_os::socket::{Blocking, More, is_out_of_descriptors, send_file, set_blocking};

use super::{Completion, Kind, Uring, key};
use crate::policy::sends::FILE_QUANTUM;
use crate::proto::Token;

impl Uring {
    /// Sends what the socket takes of a part of a file, and returns the rest.
    pub(super) fn go_on_with_file(
        &mut self,
        socket: &Handle,
        unsent: Payload,
        more: More,
    ) -> (io::Result<usize>, Option<Payload>) {
        let Payload::File { rest, .. } = unsent else { return (Ok(0), Some(unsent)) };
        match self.send_from(socket, &rest, more) {
            Ok(n) => (Ok(n), whole(rest).advance(n)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                (Ok(0), Some(whole(rest)))
            }
            Err(e) if e.kind() == io::ErrorKind::Unsupported => match piece(rest) {
                Ok(payload) => (Ok(0), Some(payload)),
                Err(e) => (Err(e), None),
            },
            Err(e) => (Err(e), Some(whole(rest))),
        }
    }

    /// Has a part of a file sent as soon as the socket takes it.
    pub(super) fn begin_file(&mut self, token: Token, socket: &Handle, file: Payload) {
        match socket {
            Handle::Direct(slot) if self.installs && !self.doubles.contains_key(&slot.index()) => {
                self.ring.install(slot, file, key(Kind::Installed, token));
            }
            _ => self.ring.poll_writable(socket, file, key(Kind::Writable, token)),
        }
    }

    /// A slot has a descriptor besides, or gets none. Without one, files are read.
    pub(super) fn installed(&mut self, token: Token, mut raw: Raw) -> Completion<Self> {
        if let Err(e) = &raw.result {
            self.installs = is_out_of_descriptors(e); // there may be one again
        }
        self.fresh = raw.made.take();
        may_go_on(token, Raw { result: Ok(0), ..raw })
    }

    /// Sends from a file without waiting. `Unsupported` if the socket has no descriptor to send to.
    fn send_from(&mut self, socket: &Handle, range: &FileRange, more: More) -> io::Result<usize> {
        match (socket, self.fresh.take()) {
            (Handle::Plain(fd), _) => send_at_once(fd, range, more),
            (Handle::Direct(slot), Some(Handle::Plain(fd))) => {
                send_at_once(self.doubles.entry(slot.index()).insert_entry(fd).get(), range, more)
            }
            (Handle::Direct(slot), _) => match self.doubles.get(&slot.index()) {
                Some(fd) => send_at_once(fd, range, more),
                None => Err(io::ErrorKind::Unsupported.into()),
            },
        }
    }
}

/// Sends from a file without waiting. Only that: the ring waits for sockets that can wait, and gives up on others
/// (EAGAIN).
fn send_at_once(socket: &OwnedFd, range: &FileRange, more: More) -> io::Result<usize> {
    set_blocking(socket, Blocking::Never)?;
    let sent = send_file(socket, range, more);
    set_blocking(socket, Blocking::Waits)?;
    sent
}

/// A part of a file of which nothing was read.
pub(super) fn whole(range: FileRange) -> Payload {
    Payload::File { read: Bytes::new(), rest: range }
}

/// The same, with its beginning read.
pub(super) fn piece(mut range: FileRange) -> io::Result<Payload> {
    let mut read = vec![0; range.len().min(FILE_QUANTUM)];
    let n = range.read(&mut read)?;
    read.truncate(n);
    range.advance(n);
    Ok(Payload::File { read: read.into(), rest: range })
}

/// The completion of a socket to which a file is sent.
pub(super) fn may_go_on(token: Token, raw: Raw) -> Completion<Uring> {
    match raw.payload {
        Some(unsent) => Completion::MayGoOn { token, outcome: raw.result.map(drop), unsent },
        None => Completion::Ignored,
    }
}
