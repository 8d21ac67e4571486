//! What waits at a listener: callers that have sent nothing yet, and offers whose connection has not come.
//!
//! Nothing here blocks, and nothing is opened or closed: messages are looked at where they are queued, with the
//! descriptors that they carry.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

use tidegate_os::meeting;

use super::closer::{Closer, PeerSocket};
use super::protocol::{HELLO_BYTES, name, parse, same};
use crate::policy::FastPath;
use crate::stats::Counters;

/// What each user may have here at once; more are hung up on.
const MOST_OFFERS: usize = 512;
const MOST_CALLERS: usize = 64;
/// Offers for one connection: the right one, and others that somebody of the same user has left in its name.
const MOST_FOR_ONE: usize = 4;
/// Sockets of one user that are being closed before nobody is accepted any more.
const MOST_CLOSING: usize = 64;

/// What does not change: who may leave offers, and the threads that close what each user sends.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) addr: SocketAddr,
    pub(super) limits: FastPath,
    /// This process's user, and the one allowed besides.
    trusted: Vec<(u32, Closer)>,
    others: Closer,
}

impl Context {
    pub(super) fn new(addr: SocketAddr, limits: FastPath) -> io::Result<Self> {
        let own = meeting::own_user();
        let users = [Some(own), limits.also_user.filter(|&user| user != own)].into_iter().flatten();
        let most = MOST_OFFERS + MOST_CALLERS + MOST_CLOSING;
        let trusted: io::Result<_> = users.map(|user| Ok((user, Closer::start(most)?))).collect();
        Ok(Self { addr, limits, trusted: trusted?, others: Closer::start(MOST_CLOSING)? })
    }

    /// Whether a caller can be accepted, whosever it is.
    fn has_room(&self) -> bool {
        self.others.has_room() && self.trusted.iter().all(|(_, closer)| closer.has_room())
    }

    fn trusted(&self, user: Option<u32>) -> Option<&(u32, Closer)> {
        self.trusted.iter().find(|(trusted, _)| Some(*trusted) == user)
    }
}

/// A process that has connected and sent nothing yet.
#[derive(Debug)]
struct Caller {
    socket: PeerSocket,
    user: u32,
    since: Instant,
}

/// An offer whose connection has not come.
#[derive(Debug)]
pub(super) struct PendingOffer {
    pub(super) socket: PeerSocket,
    user: u32,
    since: Instant,
    from: SocketAddr,
    pub(super) to: SocketAddr,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// None while another process has the name: the one that this one succeeds, which will go.
    listener: Option<Arc<UnixListener>>,
    is_closed: bool,
    /// Callers wait that cannot be accepted for now: there is no descriptor, or too much is being closed.
    is_held_up: bool,
    callers: VecDeque<Caller>,
    offers: Vec<PendingOffer>,
}

impl Pending {
    pub(super) fn new(listener: Option<UnixListener>) -> Self {
        Self { listener: listener.map(Arc::new), ..Self::default() }
    }

    /// Gives the name back, and hangs up on everybody.
    pub(super) fn close(&mut self, context: &Context) {
        let callers = self.listener.take().map(|listener| meeting::shut_down(&listener)).unwrap_or_default();
        callers.into_iter().for_each(|socket| drop(context.others.hold(socket)));
        *self = Self { is_closed: true, ..Self::default() };
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.offers.is_empty()
    }

    /// What to wait for: readable when somebody calls; `None` if it is time that has to pass. Open as long as it is
    /// kept, and with it the name.
    pub(super) fn wakes(&self) -> Option<Arc<UnixListener>> {
        let is_idle = self.is_empty() && !self.is_held_up;
        self.listener.as_ref().filter(|_| is_idle).cloned()
    }

    /// Accepts callers, and makes offers of those that have sent one.
    pub(super) fn collect(&mut self, context: &Context, counters: &Counters, now: Instant) {
        self.is_held_up = !self.accept(context, counters, now);
        for _ in 0..self.callers.len() {
            let Some(caller) = self.callers.pop_front() else { return };
            let mut message = [0; HELLO_BYTES];
            match meeting::peek(caller.socket.socket(), &mut message) {
                Ok(n) if n > 0 => self.add(caller, &message[..n], counters),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.callers.push_back(caller),
                _ => {} // it has gone
            }
        }
        context.trusted.iter().for_each(|(user, _)| self.drop_oldest_callers(*user));
    }

    /// Hangs up on the callers of a user that are too many, all of which have been looked at.
    fn drop_oldest_callers(&mut self, user: u32) {
        let count = self.callers.iter().filter(|caller| caller.user == user).count();
        let mut excess = count.saturating_sub(MOST_CALLERS);
        self.callers.retain(|caller| {
            let is_dropped = excess > 0 && caller.user == user;
            excess -= usize::from(is_dropped);
            !is_dropped
        });
    }

    /// Accepts who calls; `false` if somebody cannot be accepted for now.
    fn accept(&mut self, context: &Context, counters: &Counters, now: Instant) -> bool {
        let Some(listener) = &self.listener else { return true };
        for _ in 0..MOST_CALLERS {
            // Whose it is can be asked only then: everybody's closer has to have room.
            if !context.has_room() {
                return false;
            }
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            let Some((user, closer)) = context.trusted(meeting::user_of(&socket).ok()) else {
                drop(context.others.hold(socket)); // hanging up is an answer, too: the dialler goes on with TCP
                counters.fast_paths_refused.add(1);
                continue;
            };
            self.callers.push_back(Caller { socket: closer.hold(socket), user: *user, since: now });
        }
        true
    }

    /// Keeps an offer if it is one, and its user does not have too many.
    fn add(&mut self, caller: Caller, message: &[u8], counters: &Counters) {
        let Caller { socket, user, since } = caller;
        let of_user = || self.offers.iter().filter(|offer| offer.user == user);
        match parse(message) {
            Some((from, to))
                if of_user().count() < MOST_OFFERS
                    && of_user().filter(|offer| offer.from == from).count() < MOST_FOR_ONE =>
            {
                self.offers.push(PendingOffer { socket, user, since, from, to });
            }
            _ => counters.fast_paths_refused.add(1),
        }
    }

    /// Takes out the offers for the connection that comes from this address.
    pub(super) fn take(&mut self, from: SocketAddr) -> Vec<PendingOffer> {
        let from = same(from);
        if !self.offers.iter().any(|offer| offer.from == from) {
            return Vec::new();
        }
        let (taken, others) = self.offers.drain(..).partition(|offer| offer.from == from);
        self.offers = others;
        taken
    }

    /// Opens the listener if it is not open, and hangs up on who has gone or has waited for too long.
    pub(super) fn sweep(&mut self, context: &Context, counters: &Counters, now: Instant) {
        if self.listener.is_none() && !self.is_closed {
            self.listener = meeting::listen(&name(same(context.addr))).ok().map(Arc::new); // why it cannot was said at the start
        }
        self.collect(context, counters, now);
        let offers = self.offers.iter().map(|offer| &offer.socket);
        let callers = self.callers.iter().map(|caller| &caller.socket);
        let ended = meeting::ended(offers.chain(callers).map(PeerSocket::socket)).unwrap_or_default();
        let mut ended = ended.into_iter();
        let mut stays = |since: Instant| {
            let is_late = now.saturating_duration_since(since) >= context.limits.patience;
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
        let context = Context::new(to, FastPath::default()).unwrap();
        let mut pending = Pending::new(Some(meeting::listen(&name).unwrap()));
        let (counters, now) = (Counters::new(Writers::Many), Instant::now());
        let offer = |socket: &_, port| {
            handover::send(socket, &hello(SocketAddr::from(([127, 0, 0, 1], port)), to), &[]).unwrap();
        };
        let first = meeting::connect(&name).unwrap();
        pending.collect(&context, &counters, now);
        assert_eq!((pending.callers.len(), pending.offers.len()), (1, 0));
        offer(&first, 1);
        let burst: Vec<_> = (0..MOST_CALLERS).map(|_| meeting::connect(&name).unwrap()).collect();
        burst.iter().zip(2..).for_each(|(socket, port)| offer(socket, port));
        pending.collect(&context, &counters, now);
        assert_eq!((pending.callers.len(), pending.offers.len()), (0, 1 + MOST_CALLERS));
        pending.close(&context);
    }
}
