//! All rooms.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::Mailbox;

use super::counters::ChatCounters;
use super::limits::ChatLimits;
use super::room::{Fault, Room, Welcome};
use super::span::Link;

/// All rooms, by name.
pub(super) struct Hall {
    pub(super) limits: ChatLimits,
    pub(super) counters: Arc<ChatCounters>,
    /// Locked before a room, never after.
    rooms: Mutex<Rooms>,
    /// For the numbers of rooms and guests.
    next: AtomicU64,
    /// For rooms that span nodes.
    link: Option<Arc<Link>>,
}

type Rooms = HashMap<Box<str>, Arc<Room>>;

impl Hall {
    pub(super) fn new(limits: ChatLimits, link: Option<Arc<Link>>) -> Self {
        let span = link.as_ref().map(|link| link.counters.clone());
        let counters = Arc::new(ChatCounters { span, ..ChatCounters::default() });
        Self { limits, counters, rooms: Mutex::default(), next: AtomicU64::new(1), link }
    }

    fn lock(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// A name for somebody who has none.
    pub(super) fn guest(&self) -> String {
        format!("guest{}", self.number())
    }

    /// Lets somebody into the room of this name, which is made if it is not there.
    pub(super) fn enter(
        &self,
        name: &str,
        nick: &str,
        address: &Mailbox,
    ) -> Result<(Arc<Room>, Welcome), Fault> {
        // Held to the end: a room that is empty until then may have to make room for another.
        let mut rooms = self.lock();
        let room = self.find_or_make_in(&mut rooms, name).ok_or(Fault::Rooms)?;
        let welcome = room.enter(nick, address, &self.limits)?;
        Ok((room, welcome))
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Room>> {
        self.lock().get(name).cloned()
    }

    /// The room of this name, made if it is not there and there is a place for it.
    pub(super) fn find_or_make(&self, name: &str) -> Option<Arc<Room>> {
        self.find_or_make_in(&mut self.lock(), name)
    }

    fn find_or_make_in(&self, rooms: &mut Rooms, name: &str) -> Option<Arc<Room>> {
        if let Some(room) = rooms.get(name) {
            return Some(room.clone());
        }
        if rooms.len() >= self.limits.rooms {
            let empty = rooms.iter().find(|(_, room)| room.is_empty()).map(|(name, _)| name.clone())?;
            rooms.remove(&empty);
        }
        let room = Arc::new(Room::new(self.number(), name, self.link.clone()));
        rooms.insert(name.into(), room.clone());
        self.counters.rooms.store(rooms.len() as u64, Relaxed);
        Some(room)
    }

    pub(super) fn all(&self) -> Vec<Arc<Room>> {
        self.lock().values().cloned().collect()
    }
}

impl fmt::Debug for Hall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hall").field("limits", &self.limits).finish_non_exhaustive()
    }
}
