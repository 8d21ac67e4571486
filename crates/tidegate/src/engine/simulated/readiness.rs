//! A simulated poller and its sockets: level- or edge-triggered, as the seed says.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::file::FileRange;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::More;
use tidegate_os::waker::Waker;

use super::shelf::read;
use super::socket::{Edge, LOCAL, address};
use super::world::{Happening, World, with};
use crate::engine::readiness::{PollEvent, Poller, Source};
use crate::engine::worker::transport::{Incoming, Settled, Transport};
use crate::engine::worker::view::View;
use crate::fastpath::Transports;
use crate::policy::Policy;
use crate::proto::queue::FileSending;
use crate::proto::{Direction, PermitState, Receive, Token};

/// The listening socket.
pub(super) struct SimListener;

impl Incoming for SimListener {
    type Stream = Sock;

    fn accept(&self) -> io::Result<(Sock, Option<SocketAddr>)> {
        with(|world| {
            world.suddenly();
            if let Some(e) = world.accept_error() {
                return Err(e);
            }
            let id = world.backlog.pop_front().ok_or(ErrorKind::WouldBlock)?;
            world.established(id);
            Ok((Sock(id), Some(address(id))))
        })
    }
}

impl World {
    /// An accept fails, if it does.
    pub(super) fn accept_error(&mut self) -> Option<io::Error> {
        self.unaccepted = None;
        let errno = match self.exhausted.filter(|(until, _)| *until > self.now) {
            Some((_, errno)) => errno,
            None if !self.chance(self.moods.exhausted) => return None,
            None => [Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::CONNABORTED, Errno::MFILE]
                [self.rng.usize(..5)],
        };
        if errno != Errno::CONNABORTED && self.exhausted.is_none() {
            // It does not go away by being asked again.
            self.exhausted = Some((self.now + super::script::time(&mut self.rng, 300), errno));
        }
        self.note(|| format!("  accept fails: {errno}"));
        self.moved |= errno == Errno::CONNABORTED;
        self.expected.accept_errors += 1;
        match errno {
            Errno::NFILE | Errno::MFILE => self.expected.no_descriptors += 1,
            Errno::NOMEM | Errno::NOBUFS => self.expected.no_buffers += 1,
            _ => {}
        }
        Some(errno.into())
    }
}

/// A connected socket; dropping it closes it.
pub(super) struct Sock(usize);

impl Drop for Sock {
    fn drop(&mut self) {
        with(|world| {
            let reset =
                matches!(world.sockets[self.0].server, super::socket::SocketState::Closing { reset: true });
            world.close(self.0, reset);
        });
    }
}

impl Transport for Sock {
    type Borrowed<'a> = usize;

    fn borrowed(&self) -> Option<usize> {
        Some(self.0)
    }

    fn dial(to: &Endpoint, _from: Option<SocketAddr>, _transports: &Arc<Transports>) -> io::Result<Self> {
        with(|world| {
            let id = world.dial(to)?; // ready when the attempt has ended
            let after = super::script::time(&mut world.rng, 100);
            world.config(after, Happening::Connects(id));
            Ok(Self(id))
        })
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        Some(LOCAL)
    }

    fn settle(&mut self) -> io::Result<Settled> {
        with(|world| {
            let socket = &mut world.sockets[self.0];
            if socket.flying.dial {
                world.fail(|| "the end of a dial is looked for before it has come".into());
                return Ok(Settled::Established);
            }
            socket.refusal.map_or(Ok(Settled::Established), |errno| Err(errno.into()))
        })
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        with(|world| {
            let id = self.0;
            world.tries_again(id, Direction::Receive);
            if world.chance(world.moods.interrupted) {
                world.moved = true;
                return Err(ErrorKind::Interrupted.into());
            }
            if let Some(e) = world.memory_error(id) {
                world.is_short(id, Direction::Receive);
                return Err(e);
            }
            let mut most = into.len() as u64;
            if !world.moods.edges && world.chance(world.moods.partial) {
                // With edges less than was asked for says that there is no more (`epoll(7)`).
                most = world.rng.u64(1..=most);
            }
            let outcome = world.receive(id, most);
            if let Ok(n) = outcome {
                let socket = &mut world.sockets[id];
                let piece = into.get_mut(..n as usize).unwrap_or_default();
                socket.copy_arrived(piece);
                socket.receives += 1;
                // A turn, and one more for a connection that was cut short in it.
                let (receives, most) = (socket.receives, 2 * world.policy.drain_budget);
                if receives > most && !world.switched {
                    world.fail(|| format!("{id}: {receives} receives in a turn, and {most} are allowed"));
                }
                world.was_received(id, n);
                if n > 0 {
                    world.was_delivered(id, n);
                }
            }
            world.suddenly();
            outcome.map(|n| n as usize)
        })
    }

    fn send_vectored(&self, slices: &[IoSlice<'_>], _more: More) -> io::Result<usize> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.send(&bytes)
    }

    fn sends_files(&self) -> bool {
        with(|world| world.shelf.files != FileSending::Read)
    }

    fn send_file(&self, range: &FileRange, _more: More) -> io::Result<usize> {
        self.send(&read(range))
    }

    fn shutdown_send(&self) -> io::Result<()> {
        with(|world| {
            world.tries_again(self.0, Direction::Send);
            if let Some(e) = world.memory_error(self.0) {
                world.is_short(self.0, Direction::Send);
                return Err(e);
            }
            world.shut_down(self.0)
        })
    }

    fn reset_on_close(&self) -> io::Result<()> {
        with(|world| {
            world.sockets[self.0].server = super::socket::SocketState::Closing { reset: true };
            Ok(())
        })
    }
}

impl Sock {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        with(|world| {
            let id = self.0;
            world.suddenly();
            world.tries_again(id, Direction::Send);
            if world.chance(world.moods.interrupted) {
                world.moved = true;
                return Err(ErrorKind::Interrupted.into());
            }
            if let Some(e) = world.memory_error(id) {
                world.is_short(id, Direction::Send);
                return Err(e);
            }
            if bytes.is_empty() {
                world.fail(|| format!("{id}: a send of nothing"));
            }
            let refuses = world.chance(world.moods.would_block) && world.sockets[id].broken.is_none();
            if refuses || !world.sockets[id].is_writable() {
                world.waits_for_space(id);
                return Err(ErrorKind::WouldBlock.into());
            }
            let mut most = bytes.len();
            if world.chance(world.moods.partial) {
                most = world.rng.usize(1..=most);
            }
            let n = world.send(id, bytes.get(..most).unwrap_or_default())?;
            if n < bytes.len() as u64 {
                world.waits_for_space(id);
            }
            world.was_confirmed(id, n);
            Ok(n as usize)
        })
    }
}

impl World {
    /// The kernel will say when it takes bytes again.
    fn waits_for_space(&mut self, id: usize) {
        self.sockets[id].no_space = true;
        if self.sockets[id].room() * 3 >= self.sockets[id].part.outbound {
            // It only seemed to have no room.
            self.sockets[id].no_space = false;
            let after = Duration::from_micros(self.rng.u64(..2_000));
            self.config(after, Happening::Writable(id));
            self.sockets[id].awaits_writable += 1;
        }
    }

    /// A dial that was under way has ended.
    pub(super) fn connects(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        socket.flying.dial = false;
        socket.edge.writable = true;
        if socket.refusal.is_some() {
            socket.edge.readable = true;
        } else {
            self.begins(id);
        }
    }

    /// What a socket is ready for at this moment.
    fn readiness(&self, id: usize) -> Readiness {
        let socket = &self.sockets[id];
        if socket.flying.dial {
            return Readiness::default();
        }
        Readiness { readable: socket.is_readable(), writable: socket.is_writable() }
    }

    /// What a poller would report of a socket.
    fn event(&self, id: usize) -> Option<PollEvent> {
        let socket = &self.sockets[id];
        let (token, readable, writable) = socket.watched?;
        let is = self.readiness(id);
        let ready = match (self.moods.edges, self.moods.terse) {
            (true, _) if !socket.edge.readable && !socket.edge.writable => return None,
            (true, true) => Readiness { readable: socket.edge.readable, writable: socket.edge.writable },
            (true, false) => is,
            (false, _) if socket.broken.is_some() && (readable || writable) => is,
            (false, _) => Readiness { readable: is.readable && readable, writable: is.writable && writable },
        };
        let ended = self.moods.edges && (socket.peer_ended || socket.broken.is_some());
        let any = ready.readable || ready.writable;
        any.then_some(PollEvent { source: Source::Connection(token), ready, ended })
    }
}

/// Waits for simulated sockets.
pub(super) struct SimPoller {
    events: usize,
    listening: bool,
}

impl Poller for SimPoller {
    type Listener = SimListener;

    fn new(policy: &Policy) -> io::Result<Self> {
        Ok(Self { events: policy.events_per_wait, listening: false })
    }

    fn watch_waker(&mut self, _: &Waker) -> io::Result<()> {
        Ok(())
    }

    fn watch_listener(&mut self, _: &SimListener) -> io::Result<()> {
        assert!(!std::mem::replace(&mut self.listening, true), "watched twice");
        Ok(())
    }

    fn unwatch_listener(&mut self, _: &SimListener) {
        assert!(std::mem::take(&mut self.listening), "not watched");
    }

    fn watch(&mut self, token: Token, id: usize, wanted: Readiness) -> io::Result<()> {
        with(|world| {
            // Of a dial that a session has asked for, it is the upstream's part to fail.
            if world.chance(world.moods.unwatched) && world.sockets[id].asker.is_none() {
                world.expected.no_buffers += 1;
                world.sockets[id].log.unwatched = true;
                return Err(Errno::NOMEM.into());
            }
            let is = world.readiness(id);
            let socket = &mut world.sockets[id];
            socket.edge = Edge { readable: is.readable, writable: is.writable };
            let before = socket.watched.replace((token, wanted.readable, wanted.writable));
            if before.is_some() {
                world.fail(|| format!("{id} is watched twice"));
            }
            Ok(())
        })
    }

    fn change(&mut self, token: Token, id: usize, wanted: Readiness) {
        with(|world| {
            let socket = &mut world.sockets[id];
            match &mut socket.watched {
                Some(watched) => *watched = (token, wanted.readable, wanted.writable),
                None => world.fail(|| "a change of what is not watched".into()),
            }
        });
    }

    fn unwatch(&mut self, _: Token, id: usize) {
        with(|world| {
            if world.sockets[id].watched.take().is_none() {
                world.fail(|| "what is not watched is forgotten".into());
            }
        });
    }

    fn pause(&mut self, time: Duration) {
        with(|world| world.pause(time, |_| ()));
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        with(|world| {
            world.sleep(timeout, |world| self.is_ready(world));
            self.collect(world, into);
            Ok(())
        })
    }

    fn now(&self) -> Instant {
        with(|world| world.now)
    }
}

impl SimPoller {
    fn is_ready(&self, world: &World) -> bool {
        world.woken.load(SeqCst)
            || (self.listening && !world.backlog.is_empty())
            || (0..world.sockets.len()).any(|id| world.event(id).is_some())
    }

    /// Reports in any order, and no more than were asked for; some about nothing.
    fn collect(&mut self, world: &mut World, into: &mut Vec<PollEvent>) {
        let mut found: Vec<(PollEvent, Option<usize>)> = Vec::new();
        let nothing = Readiness { readable: true, writable: false };
        if world.woken.load(SeqCst) {
            found.push((PollEvent { source: Source::Waker, ready: nothing, ended: false }, None));
        }
        let lost = world.listening_for_nothing();
        if self.listening && (!world.backlog.is_empty() || lost) {
            found.push((PollEvent { source: Source::Listener, ready: nothing, ended: false }, None));
        }
        found.extend((0..world.sockets.len()).filter_map(|id| Some((world.event(id)?, Some(id)))));
        world.rng.shuffle(&mut found);
        if found
            .split_off(self.events.min(found.len()))
            .iter()
            .any(|(event, _)| event.source == Source::Listener)
        {
            world.unaccepted = None; // the loop was not notified
        }
        for (event, id) in found {
            match (event.source, id) {
                (Source::Waker, _) => world.woken.store(false, SeqCst),
                (_, Some(id)) => world.sockets[id].edge = Edge::default(),
                _ => {}
            }
            into.push(event);
        }
        self.add_spurious(world, into);
        world.note(|| format!("woken by {:?}", into.iter().map(|event| event.source).collect::<Vec<_>>()));
    }

    fn add_spurious(&self, world: &mut World, into: &mut Vec<PollEvent>) {
        if !world.chance(world.moods.spurious) {
            return;
        }
        let id = world.rng.usize(..world.sockets.len());
        let Some((mut token, ..)) = world.sockets[id].watched else { return };
        if world.sockets[id].flying.dial {
            return; // a connection is being made: there the poller is asked, and not the socket
        }
        if world.rng.u8(..4) == 0 {
            token.generation = token.generation.wrapping_sub(1); // of a connection that is gone
        }
        if into.iter().any(|event| event.source == Source::Connection(token)) {
            return; // one report of each socket is all a poller gives
        }
        let ready = Readiness { readable: world.rng.bool(), writable: world.rng.bool() };
        into.push(PollEvent { source: Source::Connection(token), ready, ended: false });
    }
}

impl World {
    fn listening_for_nothing(&mut self) -> bool {
        self.chance(self.moods.spurious)
    }

    /// After a turn: whatever the connection wants, something will bring it.
    pub(super) fn check_ready_view(&mut self, id: usize, view: &View) {
        self.check_view(id, view);
        let Some(action) = view.action else { return };
        let is = self.readiness(id);
        let socket = &self.sockets[id];
        let (reads, writes) = socket.watched.map_or((false, false), |(_, reads, writes)| (reads, writes));
        let listens =
            action.receive == Receive::Post && is.readable && view.receive_place != PermitState::Waiting;
        let hears = view.receives && if self.moods.edges { socket.edge.readable } else { reads };
        if listens && !view.listed && !hears {
            return self.fail(|| format!("{id} has input, and nobody will look: {view:?}"));
        }
        let coming = socket.edge.writable || socket.no_space || socket.awaits_writable > 0;
        let takes = view.sends && if self.moods.edges { coming } else { writes };
        if action.send && view.send_place != PermitState::Waiting && !view.listed && !takes {
            self.fail(|| format!("{id} has something to send, and nobody will: {view:?}"));
        }
    }
}
