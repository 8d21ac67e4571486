//! The dialler's side of the meeting: a connection that is being made, and may go through shared memory.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use tidegate_os::endpoint::Endpoint;
use tidegate_os::socket::{Blocking, Stream, is_local};
use tidegate_os::{diag, handover, meeting};

use super::closer::{Closer, PeerSocket};
use super::layout::{End, Rings, State};
use super::link::Link;
use super::protocol::{hello, name, same};
use super::{Begun, Plain, Ways};
use crate::policy::FastPath;

/// A connection that is being made over TCP, with an offer to use shared memory.
#[derive(Debug)]
pub(crate) struct Offer {
    tcp: Stream,
    rings: Rings,
    /// The listener hangs up when it has decided.
    control: PeerSocket,
    to: SocketAddr,
}

/// What came of an offer.
pub(crate) enum Outcome {
    /// The listener has taken it.
    Link(Link),
    /// It has not: TCP carries the connection, and may still be connecting.
    Plain(Stream),
}

/// Begins to connect, with an offer if that may be of use.
pub(crate) fn begin(
    to: &Endpoint,
    from: Option<SocketAddr>,
    ways: &Ways,
    blocking: Blocking,
) -> io::Result<Begun> {
    if let (Some(fast), &Endpoint::Tcp(addr)) = (&ways.fast_path, to) {
        match Offer::make(fast, addr, from, ways, blocking) {
            Ok(offer) => return offer.map(Begun::Offered),
            Err(why) => ways.say(&why),
        }
    }
    Stream::dial(to, from, blocking).map(Begun::Plain)
}

impl Offer {
    /// Begins to connect to `to`, with an offer; or says why there can be none. Nothing waits, unless `blocking` says
    /// so of the TCP connection.
    fn make(
        fast: &FastPath,
        to: SocketAddr,
        from: Option<SocketAddr>,
        ways: &Ways,
        blocking: Blocking,
    ) -> Result<io::Result<Self>, Plain> {
        let system = |what| move |error| Plain::System { what, error };
        if to.ip().is_unspecified() || !is_local(to.ip()) {
            return Err(Plain::Elsewhere(to.ip()));
        }
        let control = find(to, ways.closer().map_err(system("no thread can be started"))?)?;
        let user = meeting::user_of(control.socket()).map_err(system("the listener's user"))?;
        let own = meeting::own_user();
        if user != own && Some(user) != fast.also_user {
            return Err(Plain::User { addr: to, user, own });
        }
        let (rings, memory) = Rings::create(fast.ring_bytes).map_err(system("no shared memory"))?;
        let from = from.unwrap_or(SocketAddr::new(to.ip(), 0));
        let tcp = Stream::bound(from).map_err(system("no source address of its own"))?;
        let from = tcp.local_addr().map_err(system("no source address of its own"))?;
        // Who gets the socket could speak in its name: nobody but who has the listener, and so its connections anyway.
        let whose = diag::find(to, from, None).map_err(system("the listener's user (inet_diag)"))?;
        let owner = whose.filter(|found| found.listens).ok_or(Plain::Unknown(to))?.user;
        if owner != user {
            return Err(Plain::Owner { addr: to, owner, user });
        }
        let parts = [memory.as_fd(), tcp.as_fd()];
        handover::send(control.socket(), &hello(from, to), &parts).map_err(system("the offer"))?;
        let offer = Self { tcp, rings, control, to };
        Ok(offer.tcp.connect(&Endpoint::Tcp(to), blocking).map(|()| offer))
    }

    /// The listener has hung up, or the dialler's patience is over: how the connection goes on.
    pub(crate) fn settle(self, ways: &Ways) -> Outcome {
        if !self.rings.decide(State::Withdrawn) && self.rings.is_taken() {
            return Outcome::Link(Link::new(self.tcp, &self.rings, End::Dialler));
        }
        let ended = meeting::ended([self.control.socket()].into_iter());
        let answered = ended.is_ok_and(|ended| ended == [true]);
        ways.say(&if answered { Plain::Refused(self.to) } else { Plain::Late(self.to) });
        Outcome::Plain(self.tcp)
    }
}

impl Offer {
    /// Where to wait for the listener's decision: readable then.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// Finds who listens for the fast path at an address, or at all of them.
fn find(to: SocketAddr, closer: &Closer) -> Result<PeerSocket, Plain> {
    if !closer.has_room() {
        return Err(Plain::Full);
    }
    let all4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, to.port()));
    let all6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, to.port()));
    let to = same(to);
    for addr in [Some(to), to.is_ipv4().then_some(all4), Some(all6)].into_iter().flatten() {
        match meeting::connect(&name(addr)) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(Plain::System { what: "the listener cannot be reached", error }),
            Ok(control) => return Ok(closer.hold(control)),
        }
    }
    Err(Plain::Unknown(to))
}
