//! The listener's side of the meeting: offers that have come, and whose connection they are for.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_sys::endpoint::Endpoint;
use tidegate_sys::socket::{Listener, Stream};
use tidegate_sys::{handover, meeting};

use super::layout::{End, Rings, State};
use super::link::Link;
use super::protocol::{HELLO_BYTES, name, parse, same};
use super::{Plain, Ways};
use crate::policy::FastPath;

/// Offers that wait for their connection, and callers that have not said anything yet; more than so many are hung up on.
const MOST_OFFERS: usize = 1024;
const MOST_CALLERS: usize = 128;
/// How often a name that another process has is asked for again, when connections come.
const AGAIN: Duration = Duration::from_millis(100);

/// Where diallers leave their offers. Shared by all I/O threads.
#[derive(Debug)]
pub(crate) struct Meeting {
    addr: SocketAddr,
    limits: FastPath,
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// None while another process has the name: the one that this one succeeds, which will go.
    door: Option<UnixListener>,
    tried: Instant,
    /// They have connected, and sent nothing yet.
    callers: VecDeque<UnixStream>,
    /// By the address their connection comes from.
    offers: HashMap<SocketAddr, Left>,
}

/// An offer that was left.
#[derive(Debug)]
struct Left {
    /// Closed when it has been decided; closed by the dialler if that has gone.
    control: UnixStream,
    memory: OwnedFd,
    to: SocketAddr,
}

impl Meeting {
    /// For a listener, if it is to have one; says so if it can not.
    pub(crate) fn of(listener: &Listener, ways: &Ways) -> Option<Self> {
        let limits = ways.fast_path?;
        let told = |error| ways.say(&Plain::System { what: "nobody can leave an offer", error });
        match listener.local_addr() {
            Ok(Endpoint::Tcp(addr)) => {
                let door = meeting::listen(&name(same(addr))).map_err(told).ok();
                let waiting =
                    Waiting { door, tried: Instant::now(), callers: VecDeque::new(), offers: HashMap::new() };
                Some(Self { addr, limits, waiting: Mutex::new(waiting) })
            }
            Ok(_) => {
                told(io::Error::new(io::ErrorKind::Unsupported, "it is for TCP addresses only"));
                None
            }
            Err(e) => {
                told(e);
                None
            }
        }
    }

    /// Whether an accepted connection has left an offer. If so the connection is handed over to shared memory; else, or if the
    /// offer is no good, it is given back as it is.
    ///
    /// A dialler leaves its offer before it connects, so the offer is there when its connection is.
    pub(crate) fn claim(&self, tcp: Stream, peer: SocketAddr) -> Result<Link, Stream> {
        let left = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.collect(self.addr, &self.limits);
            waiting.offers.remove(&same(peer))
        };
        let Some(left) = left else { return Err(tcp) };
        if tcp.local_addr().map(same).ok() != Some(left.to) {
            return Err(tcp); // two connections may come from one address to two of ours
        }
        match Rings::open(&left.memory, self.limits.ring_bytes) {
            // Closing `control`, which follows, has the dialler look at what was decided.
            Ok(rings) if rings.decide(State::Taken) => Ok(Link::new(tcp, &rings, End::Listener)),
            Ok(_) => Err(tcp), // withdrawn meanwhile
            Err(e) => {
                tracing::debug!(event = "fast-path", error = %e, "an offer is no good");
                Err(tcp)
            }
        }
    }
}

impl Waiting {
    /// Takes in what has come.
    fn collect(&mut self, addr: SocketAddr, limits: &FastPath) {
        if self.door.is_none() && self.tried.elapsed() >= AGAIN {
            self.door = meeting::listen(&name(same(addr))).ok(); // that it can not was said when it began
            self.tried = Instant::now();
        }
        let Some(door) = &self.door else { return };
        for _ in 0..MOST_CALLERS {
            let Ok((caller, _)) = door.accept() else { break };
            if caller.set_nonblocking(true).is_ok() {
                self.callers.push_back(caller);
            }
        }
        while self.callers.len() > MOST_CALLERS {
            self.callers.pop_front();
        }
        for _ in 0..self.callers.len() {
            let Some(caller) = self.callers.pop_front() else { return };
            let mut message = [0; HELLO_BYTES];
            match handover::receive(&caller, &mut message) {
                Ok((n, descriptors)) => self.take(caller, &message[..n], descriptors, limits),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.callers.push_back(caller),
                Err(_) => {} // it has gone
            }
        }
    }

    /// Keeps an offer if it is one, and from somebody who may make it. Hanging up is an answer too: the dialler goes on with TCP.
    fn take(&mut self, control: UnixStream, message: &[u8], descriptors: Vec<OwnedFd>, limits: &FastPath) {
        let Some((from, to)) = parse(message) else { return };
        let Ok([memory]) = <[OwnedFd; 1]>::try_from(descriptors) else { return };
        let user = meeting::user_of(&control).ok();
        if user != Some(meeting::own_user()) && (user.is_none() || user != limits.also_user) {
            return;
        }
        if self.offers.len() >= MOST_OFFERS / 8 {
            self.offers.retain(|_, left| left.is_alive());
        }
        if self.offers.len() < MOST_OFFERS {
            self.offers.insert(from, Left { control, memory, to });
        }
    }
}

impl Left {
    /// Whether its dialler still waits.
    fn is_alive(&self) -> bool {
        let heard = handover::receive(&self.control, &mut [0; 1]);
        matches!(heard, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }
}
