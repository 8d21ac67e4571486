//! Pending work of a listener: callers that have sent nothing yet, and offers whose connection has not arrived.
//!
//! Nothing here blocks, and no descriptor of another process is opened or closed: messages are peeked at in the socket
//! queue, with the descriptors they carry. But a caller's socket is a descriptor of this process, so all callers are
//! let go once the process has none left: connections come first, and callers go on with TCP.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::abstract_socket;
use tidegate_os::socket::is_out_of_descriptors;

use super::closer::{Closer, PeerSocket};
use super::protocol::{HELLO_BYTES, name, parse, same};
use crate::policy::FastPath;
use crate::policy::accept::EXHAUSTION_PAUSE;
use crate::stats::Counters;

/// Limit per user; further callers are disconnected.
const MOST_OFFERS: usize = 512;
const MOST_CALLERS: usize = 64;
/// Offers for one connection: the right one, and others that processes of the same user sent under its address.
const MOST_FOR_ONE: usize = 4;
/// Sockets of one user being closed, above which no caller is accepted.
const MOST_CLOSING: usize = 64;
/// After the process had no descriptor, no caller is accepted for this time: a listener that pauses accepting tries it
/// again meanwhile, and is the first.
const SHORTAGE: Duration = EXHAUSTION_PAUSE.saturating_mul(2);

/// Shared configuration: which users may send offers, and the closing threads for each.
#[derive(Debug)]
pub(super) struct RendezvousContext {
    pub(super) addr: SocketAddr,
    pub(super) limits: FastPath,
    /// This process's user, and the one additional user allowed.
    trusted: Vec<(u32, Closer)>,
    others: Closer,
}

impl RendezvousContext {
    pub(super) fn new(addr: SocketAddr, limits: FastPath) -> io::Result<Self> {
        let own = abstract_socket::own_user();
        let users = [Some(own), limits.also_user.filter(|&user| user != own)].into_iter().flatten();
        let most = MOST_OFFERS + MOST_CALLERS + MOST_CLOSING;
        let trusted: io::Result<_> = users.map(|user| Ok((user, Closer::start(most)?))).collect();
        Ok(Self { addr, limits, trusted: trusted?, others: Closer::start(MOST_CLOSING)? })
    }

    /// Whether a caller of any user can be accepted.
    fn has_room(&self) -> bool {
        self.others.has_room() && self.trusted.iter().all(|(_, closer)| closer.has_room())
    }

    fn trusted(&self, user: Option<u32>) -> Option<&(u32, Closer)> {
        self.trusted.iter().find(|(trusted, _)| Some(*trusted) == user)
    }
}

/// A process that has connected and not sent anything yet.
#[derive(Debug)]
struct PendingCaller {
    socket: PeerSocket,
    user: u32,
    since: Instant,
}

/// An offer whose connection has not arrived.
#[derive(Debug)]
pub(super) struct PendingHandshake {
    pub(super) socket: PeerSocket,
    user: u32,
    since: Instant,
    from: SocketAddr,
    pub(super) to: SocketAddr,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// `None` while another process holds the name: the predecessor, which will exit.
    listener: Option<Arc<UnixListener>>,
    is_closed: bool,
    /// Callers cannot be accepted for now: no descriptor is left, or too many sockets are being closed.
    is_held_up: bool,
    /// The end of [`SHORTAGE`].
    short_until: Option<Instant>,
    callers: VecDeque<PendingCaller>,
    offers: Vec<PendingHandshake>,
}

impl Pending {
    pub(super) fn new(listener: Option<UnixListener>) -> Self {
        Self { listener: listener.map(Arc::new), ..Self::default() }
    }

    /// Releases the name and disconnects all callers.
    pub(super) fn close(&mut self, context: &RendezvousContext) {
        let callers =
            self.listener.take().map(|listener| abstract_socket::shut_down(&listener)).unwrap_or_default();
        callers.into_iter().for_each(|socket| drop(context.others.hold(socket)));
        *self = Self { is_closed: true, ..Self::default() };
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.offers.is_empty()
    }

    /// The socket that is readable when a process connects; `None` while only a timeout is pending. Keeping it keeps
    /// the name.
    pub(super) fn wakes(&self) -> Option<Arc<UnixListener>> {
        let is_idle = self.is_empty() && !self.is_held_up;
        self.listener.as_ref().filter(|_| is_idle).cloned()
    }

    /// Accepts callers, and turns those that sent an offer into offers.
    pub(super) fn collect(&mut self, context: &RendezvousContext, counters: &Counters, now: Instant) {
        self.is_held_up = !self.accept(context, counters, now);
        for _ in 0..self.callers.len() {
            let Some(caller) = self.callers.pop_front() else { return };
            let mut message = [0; HELLO_BYTES];
            match abstract_socket::peek(caller.socket.socket(), &mut message) {
                Ok(n) if n > 0 => self.add(caller, &message[..n], counters),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.callers.push_back(caller),
                _ => {} // it has gone
            }
        }
        context.trusted.iter().for_each(|(user, _)| self.drop_oldest_callers(*user));
    }

    /// Disconnects the callers of a user above its limit, after all were checked.
    fn drop_oldest_callers(&mut self, user: u32) {
        let count = self.callers.iter().filter(|caller| caller.user == user).count();
        let mut excess = count.saturating_sub(MOST_CALLERS);
        self.callers.retain(|caller| {
            let is_dropped = excess > 0 && caller.user == user;
            excess -= usize::from(is_dropped);
            !is_dropped
        });
    }

    /// Accepts pending callers; `false` if one cannot be accepted for now.
    fn accept(&mut self, context: &RendezvousContext, counters: &Counters, now: Instant) -> bool {
        if self.short_until.is_some_and(|until| now < until) {
            return false;
        }
        let Some(listener) = &self.listener else { return true };
        for _ in 0..MOST_CALLERS {
            // The owner is known only after the accept, so every closer must have room.
            if !context.has_room() {
                return false;
            }
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) if is_out_of_descriptors(&e) => {
                    self.give_up(counters, now);
                    return false;
                }
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            let Some((user, closer)) = context.trusted(abstract_socket::user_of(&socket).ok()) else {
                drop(context.others.hold(socket)); // hanging up is an answer, too: the dialler goes on with TCP
                counters.fast_paths_refused.add(1);
                continue;
            };
            self.callers.push_back(PendingCaller { socket: closer.hold(socket), user: *user, since: now });
        }
        true
    }

    /// Lets go of everybody who waits, for a shortage of descriptors.
    fn give_up(&mut self, counters: &Counters, now: Instant) {
        counters.fast_paths_refused.add(self.offers.len() as u64);
        self.offers.clear();
        self.callers.clear();
        self.short_until = Some(now + SHORTAGE);
    }

    /// Whether the process has no descriptor left. It is tried, which takes one for a moment.
    fn is_short(&self) -> bool {
        let one = self.listener.as_ref().map(|listener| listener.try_clone());
        one.is_some_and(|one| one.is_err_and(|e| is_out_of_descriptors(&e)))
    }

    /// Keeps a valid offer, if its user is below the limit.
    fn add(&mut self, caller: PendingCaller, message: &[u8], counters: &Counters) {
        let PendingCaller { socket, user, since } = caller;
        let of_user = || self.offers.iter().filter(|offer| offer.user == user);
        match parse(message) {
            Some((from, to))
                if of_user().count() < MOST_OFFERS
                    && of_user().filter(|offer| offer.from == from).count() < MOST_FOR_ONE =>
            {
                self.offers.push(PendingHandshake { socket, user, since, from, to });
            }
            _ => counters.fast_paths_refused.add(1),
        }
    }

    /// Removes the offers for the connection from this address.
    pub(super) fn take(&mut self, from: SocketAddr) -> Vec<PendingHandshake> {
        let from = same(from);
        if !self.offers.iter().any(|offer| offer.from == from) {
            return Vec::new();
        }
        let (taken, others) = self.offers.drain(..).partition(|offer| offer.from == from);
        self.offers = others;
        taken
    }

    /// Opens the listener if it is not open, and disconnects callers that are gone or timed out.
    pub(super) fn sweep(&mut self, context: &RendezvousContext, counters: &Counters, now: Instant) {
        if self.listener.is_none() && !self.is_closed {
            // A failure was logged at the start.
            self.listener = abstract_socket::listen(&name(same(context.addr))).ok().map(Arc::new);
        }
        self.collect(context, counters, now);
        if !self.is_empty() && self.is_short() {
            self.give_up(counters, now);
        }
        let offers = self.offers.iter().map(|offer| &offer.socket);
        let callers = self.callers.iter().map(|caller| &caller.socket);
        let ended = abstract_socket::ended(offers.chain(callers).map(PeerSocket::socket)).unwrap_or_default();
        let mut ended = ended.into_iter();
        let mut stays = |since: Instant| {
            let is_late = now.saturating_duration_since(since) >= context.limits.handshake_timeout;
            !ended.next().unwrap_or_default() && !is_late
        };
        self.offers.retain(|offer| stays(offer.since));
        self.callers.retain(|caller| stays(caller.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastpath::protocol::hello;
    use crate::stats::Writers;
    use tidegate_os::handover;

    /// A burst of offers does not push out a caller that was accepted before its offer came.
    #[test]
    fn who_has_sent_an_offer_is_no_silent_caller() {
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        let name = format!("tidegate-test-burst-{}", std::process::id());
        let context = RendezvousContext::new(to, FastPath::default()).unwrap();
        let mut pending = Pending::new(Some(abstract_socket::listen(&name).unwrap()));
        let (counters, now) = (Counters::new(Writers::Many), Instant::now());
        let offer = |socket: &_, port| {
            handover::send(socket, &hello(SocketAddr::from(([127, 0, 0, 1], port)), to), &[]).unwrap();
        };
        let first = abstract_socket::connect(&name).unwrap();
        pending.collect(&context, &counters, now);
        assert_eq!((pending.callers.len(), pending.offers.len()), (1, 0));
        offer(&first, 1);
        let burst: Vec<_> = (0..MOST_CALLERS).map(|_| abstract_socket::connect(&name).unwrap()).collect();
        burst.iter().zip(2..).for_each(|(socket, port)| offer(socket, port));
        pending.collect(&context, &counters, now);
        assert_eq!((pending.callers.len(), pending.offers.len()), (0, 1 + MOST_CALLERS));
        pending.close(&context);
    }
}
