//! The registry of rooms.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::Mailbox;

use super::counters::ChatCounters;
use super::federation::BridgeLink;
use super::limits::ChatLimits;
use super::room::{Room, RoomFault, Welcome};

/// All rooms, by name.
pub(super) struct RoomRegistry {
    pub(super) limits: ChatLimits,
    pub(super) counters: Arc<ChatCounters>,
    /// Locked before a room, never after.
    rooms: Mutex<Rooms>,
    /// Numbers rooms and guests.
    next: AtomicU64,
    /// For federated rooms.
    link: Option<Arc<BridgeLink>>,
}

type Rooms = HashMap<Box<str>, Arc<Room>>;

impl RoomRegistry {
    pub(super) fn new(limits: ChatLimits, link: Option<Arc<BridgeLink>>) -> Self {
        let federation = link.as_ref().map(|link| link.counters.clone());
        let counters = Arc::new(ChatCounters { federation, ..ChatCounters::default() });
        Self { limits, counters, rooms: Mutex::default(), next: AtomicU64::new(1), link }
    }

    fn lock(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// A name for a member without a nickname.
    pub(super) fn guest(&self) -> String {
        format!("guest{}", self.number())
    }

    /// Adds a member to the room of this name, which is created if necessary. The member then leaves `current`, whose
    /// slot it may take along.
    pub(super) fn enter(
        &self,
        name: &str,
        nick: &str,
        address: &Mailbox<Infallible>,
        current: Option<&Room>,
    ) -> Result<(Arc<Room>, Welcome), RoomFault> {
        // Held to the end: a room that is empty until then may be evicted.
        let mut rooms = self.lock();
        let room = self.find_or_make_in(&mut rooms, name, current).ok_or(RoomFault::Rooms)?;
        let welcome = room.enter(nick, address, &self.limits)?;
        Ok((room, welcome))
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Room>> {
        self.lock().get(name).cloned()
    }

    /// The room of this name, created if it does not exist and there is a slot for it.
    pub(super) fn find_or_make(&self, name: &str) -> Option<Arc<Room>> {
        self.find_or_make_in(&mut self.lock(), name, None)
    }

    fn find_or_make_in(&self, rooms: &mut Rooms, name: &str, current: Option<&Room>) -> Option<Arc<Room>> {
        if let Some(room) = rooms.get(name) {
            return Some(room.clone());
        }
        if rooms.len() >= self.limits.rooms {
            // The oldest one, so that it does not depend on the table's order.
            let empty = rooms.values().filter(|room| room.is_empty()).min_by_key(|room| room.id());
            let left = current.filter(|room| room.has_one_member());
            let name = empty.map(|room| &**room).or(left)?.name().clone();
            rooms.remove(&*name);
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

impl fmt::Debug for RoomRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoomRegistry").field("limits", &self.limits).finish_non_exhaustive()
    }
}
