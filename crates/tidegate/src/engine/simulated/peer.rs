//! What the peers do: they say what they have to say, hear what they are sent, and leave in one way or another.

use std::time::Duration;

use rustix::io::Errno;

use super::script::{Afterwards, Hearing};
use super::socket::{Edge, SocketState};
use super::world::{Happening, World};

impl World {
    pub(super) fn comes(&mut self, id: usize) {
        if self.backlog.len() >= self.policy.accept.backlog as usize {
            return self.config(Duration::from_millis(3), Happening::Comes(id)); // its SYN is dropped
        }
        self.backlog.push_back(id);
        self.begins(id);
    }

    /// The peer's end is established: it begins its part.
    pub(super) fn begins(&mut self, id: usize) {
        if self.may_say(id) {
            self.goes_on_saying(id, Duration::ZERO);
        }
        if let Some(after) = self.sockets[id].part.breaks_off {
            self.config(after, Happening::BreaksOff(id));
        }
    }

    pub(super) fn goes_on_saying(&mut self, id: usize, after: Duration) {
        let socket = &mut self.sockets[id];
        if !std::mem::replace(&mut socket.saying, true) {
            let what =
                if socket.arrived < socket.part.says { Happening::Says(id) } else { Happening::HasSaid(id) };
            self.config(after, what);
        }
    }

    pub(super) fn says(&mut self, id: usize) {
        let most = self.rng.u64(1..=self.sockets[id].part.chunk);
        let socket = &mut self.sockets[id];
        socket.saying = false;
        if socket.gone || socket.broken.is_some() {
            return;
        }
        if socket.server == SocketState::Closed {
            socket.gone = true; // its bytes are answered by a reset
            return;
        }
        let room = socket.part.inbound - (socket.arrived - socket.received);
        let n = most.min(socket.part.says - socket.arrived).min(room);
        if n == 0 {
            return; // goes on when this end has received something
        }
        socket.arrived += n;
        socket.edge.readable = true;
        #[cfg(test)]
        self.note_said();
        let socket = &self.sockets[id];
        let pause = Duration::from_millis(socket.part.pause_ms);
        self.goes_on_saying(id, pause);
    }

    pub(super) fn has_said(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if socket.gone || socket.peer_ended {
            return;
        }
        match socket.part.then {
            Afterwards::Finishes => {
                socket.peer_ended = true;
                socket.edge.readable = true;
                if socket.asker.is_some() && socket.finished && socket.heard == socket.taken {
                    self.config(Duration::from_micros(500), Happening::Leaves(id));
                }
            }
            Afterwards::Leaves => self.leaves(id),
            Afterwards::Stays => {}
        }
    }

    pub(super) fn goes_on_hearing(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        let after = match socket.part.hears {
            Hearing::Never => return,
            Hearing::Eager => Duration::from_micros(self.rng.u64(..300)),
            Hearing::Slow { pause_ms, .. } => Duration::from_millis(pause_ms) + Duration::from_micros(10),
        };
        if !socket.gone && !std::mem::replace(&mut socket.hearing, true) {
            self.config(after, Happening::Hears(id));
        }
    }

    pub(super) fn hears(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        socket.hearing = false;
        if socket.gone {
            return;
        }
        let most = match socket.part.hears {
            Hearing::Slow { bytes, .. } => bytes,
            _ => u64::MAX,
        };
        socket.heard += most.min(socket.taken - socket.heard);
        if socket.no_space && socket.room() * 3 >= socket.part.outbound {
            socket.no_space = false;
            socket.edge.writable = true;
        }
        let asked = socket.given.as_ref().is_some_and(|given| given.which.is_none());
        if asked && self.may_say(id) {
            self.goes_on_saying(id, Duration::ZERO);
        }
        let socket = &self.sockets[id];
        if socket.heard < socket.taken {
            return self.goes_on_hearing(id);
        }
        #[cfg(test)]
        self.note_heard();
        let socket = &self.sockets[id];
        if socket.finished && socket.asker.is_some() && !socket.peer_ended {
            // It answers first; if it was asked nothing, it just ends.
            self.goes_on_saying(id, Duration::ZERO);
        } else if socket.finished {
            // Everything was heard, and the end: it has nothing more to wait for.
            self.config(Duration::from_micros(500), Happening::Leaves(id));
        }
    }

    /// The peer closes; with a reset if it has not heard everything.
    pub(super) fn leaves(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if socket.gone {
            return;
        }
        let unheard = socket.taken > socket.heard;
        if unheard {
            return self.breaks_off(id);
        }
        socket.gone = true;
        socket.peer_ended = true;
        socket.edge = Edge { readable: true, writable: true };
    }

    /// The connection breaks: a reset by the peer, or a network that is gone.
    pub(super) fn breaks_off(&mut self, id: usize) {
        let errno = match self.rng.u8(..4) {
            0 => Errno::TIMEDOUT,
            1 => Errno::HOSTUNREACH,
            _ => Errno::CONNRESET,
        };
        let lost = self.rng.bool();
        let socket = &mut self.sockets[id];
        if socket.server == SocketState::Closed || socket.broken.is_some() {
            socket.gone = true;
            return;
        }
        (socket.gone, socket.broken) = (true, Some(errno));
        socket.edge = Edge { readable: true, writable: true };
        if lost {
            socket.arrived = socket.received; // what was not received goes with it
        }
    }
}
