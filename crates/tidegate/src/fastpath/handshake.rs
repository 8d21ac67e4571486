//! The dialler's side of the rendezvous: a connection in progress that may switch to shared memory.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tidegate_os::endpoint::Endpoint;
use tidegate_os::socket::{Blocking, Stream, is_local};
use tidegate_os::{abstract_socket, diag, handover};

use super::closer::{Closer, PeerSocket};
use super::layout::{LinkEnd, OfferState, Rings};
use super::link::MemoryLink;
use super::protocol::{hello, name, same};
use super::{Begun, Plain, Transports};
use crate::policy::FastPath;

/// A TCP connection in progress, with an offer to use shared memory.
#[derive(Debug)]
pub(crate) struct Handshake {
    tcp: Stream,
    rings: Rings,
    /// The listener closes it when it has decided.
    control: Arc<PeerSocket>,
    to: SocketAddr,
}

/// The outcome of an offer.
pub(crate) enum HandshakeOutcome {
    /// The listener accepted it.
    Link(MemoryLink),
    /// The listener did not accept it: the connection uses TCP, and may still be connecting.
    Plain(Stream),
}

/// Starts connecting, with an offer if one can succeed.
pub(crate) fn begin(to: &Endpoint, from: Option<SocketAddr>, transports: &Transports) -> io::Result<Begun> {
    if let (Some(fast), &Endpoint::Tcp(addr)) = (&transports.fast_path, to) {
        match Handshake::make(fast, addr, from, transports) {
            Ok(handshake) => return handshake.map(Begun::Handshaking),
            Err(why) => transports.say(&why),
        }
    }
    Stream::dial(to, from, Blocking::Never).map(Begun::Plain)
}

impl Handshake {
    /// Starts connecting to `to` with an offer, or returns the reason why no offer is possible. Does not block.
    fn make(
        fast: &FastPath,
        to: SocketAddr,
        from: Option<SocketAddr>,
        transports: &Transports,
    ) -> Result<io::Result<Self>, Plain> {
        let system = |what| move |error| Plain::System { what, error };
        if to.ip().is_unspecified() || !is_local(to.ip()) {
            return Err(Plain::Elsewhere(to.ip()));
        }
        let control = find(to, transports.closer().map_err(system("no thread can be started"))?)?;
        let user = abstract_socket::user_of(control.socket()).map_err(system("the listener's user"))?;
        let own = abstract_socket::own_user();
        if user != own && Some(user) != fast.also_user {
            return Err(Plain::User { addr: to, user, own });
        }
        let (rings, memory) = Rings::create(fast.ring_bytes).map_err(system("no shared memory"))?;
        let from = from.unwrap_or(SocketAddr::new(to.ip(), 0));
        let tcp = Stream::bound(from).map_err(system("no source address"))?;
        let from = tcp.local_addr().map_err(system("no source address"))?;
        // The socket's holder could act as the peer, so send it only to the owner of the listener, who has its
        // connections anyway. Asked for with port 0: an earlier connection from this very port may still be in
        // TIME_WAIT.
        let nobody = SocketAddr::new(from.ip(), 0);
        let whose = diag::find(to, nobody, None).map_err(system("the listener's user (inet_diag)"))?;
        let owner = whose.filter(|found| found.listens).ok_or(Plain::Unknown(to))?.user;
        if owner != user {
            return Err(Plain::Owner { addr: to, owner, user });
        }
        let parts = [memory.as_fd(), tcp.as_fd()];
        handover::send(control.socket(), &hello(from, to), &parts).map_err(system("the offer"))?;
        let handshake = Self { tcp, rings, control: Arc::new(control), to };
        Ok(handshake.tcp.connect(&Endpoint::Tcp(to), Blocking::Never).map(|()| handshake))
    }

    /// The listener closed the socket, or the dialler's timeout expired: the connection continues with the outcome.
    pub(crate) fn settle(self, transports: &Transports) -> HandshakeOutcome {
        if !self.rings.decide(OfferState::Withdrawn) && self.rings.is_taken() {
            return HandshakeOutcome::Link(MemoryLink::new(self.tcp, &self.rings, LinkEnd::Dialler));
        }
        let ended = abstract_socket::ended([self.control.socket()].into_iter());
        let answered = ended.is_ok_and(|ended| ended == [true]);
        transports.say(&if answered { Plain::Refused(self.to) } else { Plain::Late(self.to) });
        HandshakeOutcome::Plain(self.tcp)
    }
}

impl Handshake {
    /// The socket that becomes readable when the listener has decided.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The same, for who shares it with the kernel.
    pub(crate) fn watched(&self) -> &Arc<PeerSocket> {
        &self.control
    }
}

/// Finds the fast-path listener for an address, or the wildcard one.
fn find(to: SocketAddr, closer: &Closer) -> Result<PeerSocket, Plain> {
    if !closer.has_room() {
        return Err(Plain::Full);
    }
    let all4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, to.port()));
    let all6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, to.port()));
    let to = same(to);
    for addr in [Some(to), to.is_ipv4().then_some(all4), Some(all6)].into_iter().flatten() {
        match abstract_socket::connect(&name(addr)) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(Plain::System { what: "the listener cannot be reached", error }),
            Ok(control) => return Ok(closer.hold(control)),
        }
    }
    Err(Plain::Unknown(to))
}
