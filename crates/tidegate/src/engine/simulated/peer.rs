//! What the peers do: they say what they have to say, hear what they are sent, and leave in one way or another.

use std::time::Duration;

use rustix::io::Errno;

use super::script::{Afterwards, Hearing};
use super::socket::{Edge, Server};
use super::world::{Happening, World};

impl World {
    pub(super) fn comes(&mut self, id: usize) {
        if self.backlog.len() >= self.policy.accept.backlog as usize {
            return self.config(Duration::from_millis(3), Happening::Comes(id)); // its SYN is dropped
        }
        self.backlog.push_back(id);
        self.begins(id);
    }

    /// The peer's end stands: it goes about its part.
    pub(super) fn begins(&mut self, id: usize) {
        self.goes_on_saying(id, Duration::ZERO);
        if let Some(after) = self.lines[id].part.breaks_off {
            self.config(after, Happening::BreaksOff(id));
        }
    }

    pub(super) fn goes_on_saying(&mut self, id: usize, after: Duration) {
        let line = &mut self.lines[id];
        if !std::mem::replace(&mut line.saying, true) {
            let what =
                if line.arrived < line.part.says { Happening::Says(id) } else { Happening::HasSaid(id) };
            self.config(after, what);
        }
    }

    pub(super) fn says(&mut self, id: usize) {
        let most = self.rng.u64(1..=self.lines[id].part.chunk);
        let line = &mut self.lines[id];
        line.saying = false;
        if line.gone || line.broken.is_some() {
            return;
        }
        if line.server == Server::Closed {
            line.gone = true; // its bytes are answered by a reset
            return;
        }
        let room = line.part.inbound - (line.arrived - line.received);
        let n = most.min(line.part.says - line.arrived).min(room);
        if n == 0 {
            return; // goes on when this end has received something
        }
        line.arrived += n;
        line.edge.readable = true;
        let pause = Duration::from_millis(line.part.pause_ms);
        self.goes_on_saying(id, pause);
    }

    pub(super) fn has_said(&mut self, id: usize) {
        let line = &mut self.lines[id];
        if line.gone || line.peer_ended {
            return;
        }
        match line.part.then {
            Afterwards::Finishes => {
                line.peer_ended = true;
                line.edge.readable = true;
            }
            Afterwards::Leaves => self.leaves(id),
            Afterwards::Stays => {}
        }
    }

    pub(super) fn goes_on_hearing(&mut self, id: usize) {
        let line = &mut self.lines[id];
        let after = match line.part.hears {
            Hearing::Never => return,
            Hearing::Eager => Duration::from_micros(self.rng.u64(..300)),
            Hearing::Slow { pause_ms, .. } => Duration::from_millis(pause_ms) + Duration::from_micros(10),
        };
        if !line.gone && !std::mem::replace(&mut line.hearing, true) {
            self.config(after, Happening::Hears(id));
        }
    }

    pub(super) fn hears(&mut self, id: usize) {
        let line = &mut self.lines[id];
        line.hearing = false;
        if line.gone {
            return;
        }
        let most = match line.part.hears {
            Hearing::Slow { bytes, .. } => bytes,
            _ => u64::MAX,
        };
        line.heard += most.min(line.taken - line.heard);
        if line.no_space && line.room() * 3 >= line.part.outbound {
            line.no_space = false;
            line.edge.writable = true;
        }
        if line.heard < line.taken {
            return self.goes_on_hearing(id);
        }
        if line.finished {
            // Everything was heard, and the end: it has nothing more to wait for.
            self.config(Duration::from_micros(500), Happening::Leaves(id));
        }
    }

    /// The peer closes; with a reset if it has not heard everything.
    pub(super) fn leaves(&mut self, id: usize) {
        let line = &mut self.lines[id];
        if line.gone {
            return;
        }
        let unheard = line.taken > line.heard;
        if unheard {
            return self.breaks_off(id);
        }
        line.gone = true;
        line.peer_ended = true;
        line.edge = Edge { readable: true, writable: true };
    }

    /// The connection breaks: a reset by the peer, or a network that is gone.
    pub(super) fn breaks_off(&mut self, id: usize) {
        let errno = match self.rng.u8(..4) {
            0 => Errno::TIMEDOUT,
            1 => Errno::HOSTUNREACH,
            _ => Errno::CONNRESET,
        };
        let lost = self.rng.bool();
        let line = &mut self.lines[id];
        if line.server == Server::Closed || line.broken.is_some() {
            line.gone = true;
            return;
        }
        (line.gone, line.broken) = (true, Some(errno));
        line.edge = Edge { readable: true, writable: true };
        if lost {
            line.arrived = line.received; // what was not received goes with it
        }
    }
}
