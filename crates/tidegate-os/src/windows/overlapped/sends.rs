//! Sends: several may be in flight on one socket, and their bytes leave in the order in which they were posted.
//!
//! Winsock keeps that order. So one that was not taken whole, or not at all, must have nothing behind it: while it is
//! in flight in part, or was refused and is not reported yet, those that follow are not posted but come back, too.

use std::collections::HashMap;
use std::io::{self, ErrorKind};

use windows_sys::Win32::Networking::WinSock::{WSABUF, WSASend};

use super::super::descriptor::RawFd;
use super::super::winsock::{check, handle};
use super::calls::describe;
use super::queue::Queue;
use super::{Done, Notifier, OperationData, Outcome, OverlappedSocket, Payload};
use crate::transmit::{Transmission, TransmitStart};

/// Lists that are kept for other sockets, at most.
const SPARE: usize = 64;

/// The sends of a queue, by socket.
#[derive(Default)]
pub(super) struct Sends {
    /// The places of those that are in flight, in the order in which they were posted.
    in_flight: HashMap<RawFd, Vec<usize>>,
    /// Lists of sockets that have none in flight any more, for others.
    spare: Vec<Vec<usize>>,
    /// How many were not taken, and are not reported yet.
    refused: HashMap<RawFd, usize>,
}

impl Sends {
    pub(super) fn are_in_flight(&self, socket: RawFd) -> bool {
        self.in_flight.contains_key(&socket)
    }

    /// The places of those of a socket.
    pub(super) fn of(&self, socket: RawFd) -> &[usize] {
        self.in_flight.get(&socket).map_or(&[], Vec::as_slice)
    }

    /// The socket goes; the places of what is in flight on it.
    pub(super) fn forget(&mut self, socket: RawFd) -> Vec<usize> {
        self.refused.remove(&socket);
        self.in_flight.remove(&socket).unwrap_or_default()
    }

    pub(super) fn came_back(&mut self, socket: RawFd, place: usize) {
        let Some(places) = self.in_flight.get_mut(&socket) else { return };
        places.retain(|&other| other != place);
        if places.is_empty()
            && let Some(list) = self.in_flight.remove(&socket)
            && self.spare.len() < SPARE
        {
            self.spare.push(list);
        }
    }

    /// One is in flight, behind the others of its socket.
    fn went(&mut self, socket: RawFd, place: usize) {
        let list = self.in_flight.entry(socket);
        list.or_insert_with(|| self.spare.pop().unwrap_or_default()).push(place);
    }

    /// One that was not taken is reported.
    pub(super) fn was_reported(&mut self, socket: RawFd) {
        let Some(refused) = self.refused.get_mut(&socket) else { return };
        *refused -= 1;
        if *refused == 0 {
            self.refused.remove(&socket);
        }
    }
}

impl<N: Notifier> Queue<N> {
    /// Whether it takes parts of files among what is to be sent.
    pub fn sends_files(&self) -> bool {
        self.extensions.transmit.send_files()
    }

    /// Sends it, behind what is in flight on the socket; of a file only so much as one operation may have. What cannot
    /// follow that comes back as a send of nothing.
    pub fn send(&mut self, socket: &OverlappedSocket, payload: Payload, key: u64) {
        self.check(socket);
        let fd = socket.raw();
        let before = self.sends.of(fd).last().copied();
        let in_part =
            |place| self.table.operations.get(place).is_some_and(|operation| operation.sends_in_part());
        if self.sends.refused.contains_key(&fd) || before.is_some_and(in_part) {
            return self.refuse(fd, key, (Ok(0), Some(payload)));
        }
        let held = match payload {
            Payload::Parts(parts) => {
                let most = parts.step();
                match Transmission::begin(*parts, &self.extensions.transmit, most) {
                    TransmitStart::Transmission(transmission) => {
                        OperationData::Transmit(Box::new(transmission))
                    }
                    TransmitStart::Head(parts) => OperationData::Send(Payload::Parts(Box::new(parts))),
                }
            }
            payload => OperationData::Send(payload),
        };
        let submitted = self.submit((key, fd), held, |operation, _, extensions| {
            let mut slices = [const { WSABUF { len: 0, buf: std::ptr::null_mut() } }; Payload::MAX_PIECES];
            let overlapped = &raw mut operation.overlapped;
            let count = match &operation.held {
                // SAFETY: the socket is open; the transmission and the OVERLAPPED are owned by the table until the
                // operation has ended.
                OperationData::Transmit(transmission) => unsafe {
                    return transmission.start(&extensions.transmit, handle(fd), overlapped.cast());
                },
                OperationData::Send(payload) => describe(payload, &mut slices),
                _ => 0,
            };
            // SAFETY: the socket is open; the array is copied by the call; the bytes are shared ones that the operation
            // holds until it has ended, and Winsock only reads them; the OVERLAPPED is owned by the table.
            check(unsafe {
                WSASend(handle(fd), slices.as_ptr(), count, std::ptr::null_mut(), 0, overlapped, None)
            })
        });
        match submitted {
            Ok(place) => {
                self.sends.went(fd, place);
                if let Some(before) = before.and_then(|place| self.table.operations.get_mut(place)) {
                    before.is_followed = true;
                }
            }
            Err((held, e)) => {
                let unsent = match held {
                    OperationData::Send(payload) => Some(payload),
                    OperationData::Transmit(transmission) => {
                        Some(Payload::Parts(Box::new(transmission.give_back())))
                    }
                    held => {
                        self.release(held);
                        None
                    }
                };
                // Behind others it must not be sent again before those are known to have been taken.
                self.refuse(fd, key, (Err(e), unsent));
            }
        }
    }

    /// A send that was not taken: those that follow are not either, until that is reported.
    fn refuse(&mut self, fd: RawFd, key: u64, (outcome, unsent): (io::Result<usize>, Option<Payload>)) {
        *self.sends.refused.entry(fd).or_default() += 1;
        self.refusals.push_back((fd, Done { key, outcome: Outcome::Sent(outcome, unsent) }));
    }

    /// What became of a send that others followed: if some of it was not taken, those may have been, and the stream is
    /// broken. The peer, if there still is one, must not take it for the whole.
    pub(super) fn followed(outcome: Outcome) -> Outcome {
        use ErrorKind::{ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
        let is_lost = |e: &io::Error| matches!(e.kind(), ConnectionAborted | ConnectionReset | TimedOut);
        match outcome {
            Outcome::Sent(Err(e), _) if is_lost(&e) => Outcome::Sent(Err(e), None),
            Outcome::Sent(Err(_), _) | Outcome::Sent(_, Some(_)) => {
                Outcome::Sent(Err(UnexpectedEof.into()), None)
            }
            outcome => outcome,
        }
    }

    /// A send on the same socket that has ended before this receive, but was not reported yet: the answer to it, or a
    /// reset, may end the connection, and then nobody would count what was sent.
    pub(super) fn send_to_report_first(&self, place: usize) -> Option<usize> {
        let receive = self.table.operations.get(place).filter(|operation| operation.receives())?;
        let has_ended =
            |send: &usize| self.table.operations.get(*send).is_some_and(|operation| operation.has_ended());
        self.sends.of(receive.socket?).iter().copied().find(has_ended)
    }

    /// Lets the receives go on that waited for this send, if any did.
    pub(super) fn send_was_reported(&mut self, place: usize, socket: Option<RawFd>) {
        if let Some(socket) = socket {
            self.sends.came_back(socket, place);
        }
        for receive in self.held_back.remove(&place).into_iter().flatten().rev() {
            self.table.ended.retain(|&other| other != receive); // it may have been found again
            self.table.ended.push_front(receive);
        }
    }
}

#[cfg(test)]
mod tests {
    use windows_sys::Win32::Foundation::ERROR_CRC;
    use windows_sys::Win32::Networking::WinSock::WSAECONNRESET;

    use super::super::super::port::CompletionPort;
    use super::*;

    #[test]
    fn what_others_followed_is_whole_or_an_error() {
        let rest = || Some(Payload::One(bytes::Bytes::from_static(b"rest")));
        let failed = |code: u32| io::Error::from_raw_os_error(code as i32);
        let followed = |outcome, unsent| {
            let Outcome::Sent(outcome, None) =
                Queue::<CompletionPort>::followed(Outcome::Sent(outcome, unsent))
            else {
                panic!("nothing of it may be sent behind the others")
            };
            outcome.map_err(|e| e.kind())
        };
        assert_eq!(followed(Ok(3), None), Ok(3));
        assert_eq!(followed(Ok(3), rest()), Err(ErrorKind::UnexpectedEof));
        // Of a file that cannot be read it is not known how much was taken.
        assert_eq!(followed(Err(failed(ERROR_CRC)), None), Err(ErrorKind::UnexpectedEof));
        // There is no peer any more: that is why it ended.
        assert_eq!(followed(Err(failed(WSAECONNRESET as u32)), rest()), Err(ErrorKind::ConnectionReset));
    }
}
