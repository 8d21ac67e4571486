//! The dialler's side of the meeting: a connection that is being made, and may go through shared memory.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use tidegate_sys::endpoint::Endpoint;
use tidegate_sys::socket::{Blocking, Stream, is_local};
use tidegate_sys::{handover, meeting};

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
    /// Closed by the listener when it has decided.
    control: UnixStream,
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
        match Offer::make(fast, addr, from, blocking) {
            Ok(offer) => return offer.map(Begun::Offered),
            Err(why) => ways.say(&why),
        }
    }
    Stream::dial(to, from, blocking).map(Begun::Plain)
}

impl Offer {
    /// Begins to connect to `to`, with an offer; or says why there can be none. Nothing waits, unless `blocking` says so of the
    /// TCP connection.
    fn make(
        fast: &FastPath,
        to: SocketAddr,
        from: Option<SocketAddr>,
        blocking: Blocking,
    ) -> Result<io::Result<Self>, Plain> {
        let system = |what| move |error| Plain::System { what, error };
        if to.ip().is_unspecified() || !is_local(to.ip()) {
            return Err(Plain::Elsewhere(to.ip()));
        }
        let control = find(to)?;
        let (user, own) =
            (meeting::user_of(&control).map_err(system("the listener's user"))?, meeting::own_user());
        if user != own && Some(user) != fast.also_user {
            return Err(Plain::User { addr: to, user, own });
        }
        let (rings, memory) = Rings::create(fast.ring_bytes).map_err(system("no shared memory"))?;
        let from = from.unwrap_or(SocketAddr::new(to.ip(), 0));
        let tcp = Stream::bound(from).map_err(system("no source address of its own"))?;
        let from = tcp.local_addr().map_err(system("no source address of its own"))?;
        handover::send(&control, &hello(from, to), &[memory.as_fd()]).map_err(system("the offer"))?;
        let offer = Self { tcp, rings, control, to };
        Ok(offer.tcp.connect(&Endpoint::Tcp(to), blocking).map(|()| offer))
    }

    /// The listener has closed the Unix socket, or the dialler's patience is over: how the connection goes on.
    pub(crate) fn settle(self, ways: &Ways) -> Outcome {
        if !self.rings.decide(State::Withdrawn) && self.rings.is_taken() {
            return Outcome::Link(Link::new(self.tcp, &self.rings, End::Dialler));
        }
        let answered = matches!(handover::receive(&self.control, &mut [0; 1]), Ok((0, _)));
        ways.say(&if answered { Plain::Refused(self.to) } else { Plain::Late(self.to) });
        Outcome::Plain(self.tcp)
    }
}

/// Where to wait for the listener's decision: readable then.
impl AsRawFd for Offer {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

/// Finds who listens for the fast path at an address, or at all of them.
fn find(to: SocketAddr) -> Result<UnixStream, Plain> {
    let all4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, to.port()));
    let all6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, to.port()));
    let to = same(to);
    for addr in [Some(to), to.is_ipv4().then_some(all4), Some(all6)].into_iter().flatten() {
        match meeting::connect(&name(addr)) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(Plain::System { what: "the listener can not be reached", error }),
            Ok(control) => return Ok(control),
        }
    }
    Err(Plain::Unknown(to))
}
