//! What sessions dial: upstreams that answer what they are sent, dials that fail, and the places for connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;
use tidegate_os::endpoint::Endpoint;

use super::exchange::{Exchange, GivenBytes};
use super::script::{ConnectionScript, chance, time};
use super::socket::{SimulatedSocket, id_of};
use super::world::{TURNS_FOR_A_BYTE, World};
use crate::policy::accept::admitted;
use crate::proto::Token;
use crate::service::{CloseReason, Dial};

/// The servers that sessions may dial, and how often that fails.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedUpstreams {
    pub(crate) exchanges: Vec<(SocketAddr, Exchange)>,
    /// Of 256 dials so many fail; of 256 connections that were dialled so many break off.
    pub(crate) faults: u8,
    /// Connections that each session may have dialled.
    pub(crate) each: usize,
}

impl World {
    /// Connections that may be accepted, and those that sessions may have dialled beside them.
    pub(super) fn places(&self) -> (u64, u64) {
        let accepted = admitted(self.policy.max_connections, self.upstreams.each) as u64;
        (accepted, accepted.saturating_mul(self.upstreams.each as u64))
    }

    /// Open connections of the kind that this one is.
    pub(super) fn live_of(&mut self, id: usize) -> &mut u64 {
        match self.sockets[id].asker {
            None => &mut self.expected.live,
            Some(_) => &mut self.expected.live_dialled,
        }
    }

    /// A session is opened.
    pub(super) fn count_open(&mut self, id: usize) {
        *self.live_of(id) += 1;
        let (places, live) = (self.places(), (self.expected.live, self.expected.live_dialled));
        self.expected.sessions += u64::from(self.sockets[id].asker.is_some()); // else it was counted when it was made
        if (live.0 > places.0 || live.1 > places.1) && !self.switched {
            self.fail(|| format!("more than max_connections are open: {live:?} of {places:?}"));
        }
    }

    /// The loop takes the dial of a session: the number of the connection.
    pub(super) fn take_dial(&mut self, asker: Token, dial: &Dial) -> usize {
        let (id, to) = (self.sockets.len(), dial.to.addr());
        let known = self.upstreams.exchanges.iter().filter(|(at, _)| Some(*at) == to);
        let exchanges: Vec<_> = known.map(|(_, exchange)| exchange.clone()).collect();
        let by = self.sockets.iter().rposition(|socket| socket.log.token == Some(asker));
        if by.is_none() {
            self.fail(|| format!("{asker:?} dials, and is no session"));
        }
        let refusal = match self.upstreams.faults {
            _ if exchanges.is_empty() => Some(Errno::CONNREFUSED),
            faults if chance(&mut self.rng, faults) => {
                let errors = [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::MFILE];
                self.rng.choice(errors)
            }
            _ => None,
        };
        let part = ConnectionScript::answers(&mut self.rng, &exchanges, self.upstreams.faults);
        self.note(|| format!("  {by:?} dials {id}, {} ({refusal:?}): {part:?}", dial.to));
        let says = exchanges.iter().map(|exchange| exchange.sends.len()).max().unwrap_or(0);
        self.most_turns += TURNS_FOR_A_BYTE * says as u64;
        let mut socket = SimulatedSocket::new(id, &part);
        (socket.asker, socket.refusal) = (Some(by.unwrap_or(0)), refusal);
        socket.given = Some(GivenBytes::new(exchanges, None));
        self.sockets.push(socket);
        self.dialling = Some(id);
        id
    }

    /// The kernel is asked for a connection.
    pub(super) fn dial(&mut self, to: &Endpoint) -> io::Result<usize> {
        let by_session = self.dialling.take();
        let Some(id) = by_session.or_else(|| to.addr().map(id_of)) else {
            unreachable!("every peer of a script has an address")
        };
        let refused = match by_session {
            Some(id) => self.sockets[id].refusal == Some(Errno::MFILE),
            None => self.chance(self.moods.exhausted),
        };
        if refused {
            self.expected.no_descriptors += 1;
            return Err(Errno::MFILE.into());
        }
        self.established(id);
        self.sockets[id].flying.dial = true;
        Ok(id)
    }

    /// Whether a peer knows what it has to say: one that was dialled is to be asked first.
    pub(super) fn may_say(&mut self, id: usize) -> bool {
        let socket = &mut self.sockets[id];
        let Some(given) = socket.given.as_mut().filter(|given| given.which.is_none()) else { return true };
        let heard = &given.taken[..socket.heard as usize];
        given.which = given.exchanges.iter().position(|exchange| *exchange.expects == *heard);
        socket.part.says = given.says().len() as u64;
        given.which.is_some()
    }
}

impl ConnectionScript {
    /// A peer that answers one of these.
    fn answers(rng: &mut fastrand::Rng, exchanges: &[Exchange], faults: u8) -> Self {
        let most = |bytes: fn(&Exchange) -> usize| exchanges.iter().map(bytes).max().unwrap_or(0) as u64;
        let part =
            Self::given(rng, most(|exchange| exchange.sends.len()), most(|exchange| exchange.expects.len()));
        let breaks_off = chance(rng, faults).then(|| time(rng, 400));
        Self { comes_at: Duration::ZERO, says: 0, breaks_off, ..part }
    }
}

impl SimulatedSocket {
    /// The seed has broken it: its stream may be cut short. Of a dial, that it fails.
    fn is_hurt(&self) -> bool {
        let fails =
            self.refusal.is_some() && self.given.as_ref().is_some_and(|given| !given.exchanges.is_empty());
        // If memory lacks for so long that connections have to be closed, there was a cause for that.
        let is_shed = self.log.closed == Some(CloseReason::NoMemory);
        fails || is_shed || self.broken.is_some() || self.log.unwatched
    }
}

/// For each connection, whether the seed has broken something for the client: its own connection, or one that was
/// dialled for it by its session, or by the session of such a one.
pub(super) fn hurt(sockets: &[SimulatedSocket]) -> Vec<bool> {
    let client = |mut id: usize| {
        while let Some(asker) = sockets[id].asker.filter(|&asker| asker < id) {
            id = asker;
        }
        id
    };
    let mut hurt = vec![false; sockets.len()];
    for (id, _) in sockets.iter().enumerate().filter(|(_, socket)| socket.is_hurt()) {
        hurt[client(id)] = true;
    }
    (0..sockets.len()).map(|id| hurt[client(id)]).collect()
}
