//! All rooms.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::Mailbox;

use super::counters::ChatCounters;
use super::limits::ChatLimits;
use super::room::{Fault, Room, Welcome};

/// All rooms, by name.
pub(super) struct Hall {
    pub(super) limits: ChatLimits,
    pub(super) counters: Arc<ChatCounters>,
    /// Locked before a room, never after.
    rooms: Mutex<HashMap<Box<str>, Arc<Room>>>,
    /// For the numbers of rooms and guests.
    next: AtomicU64,
}

impl Hall {
    pub(super) fn new(limits: ChatLimits) -> Self {
        Self { limits, counters: Arc::default(), rooms: Mutex::default(), next: AtomicU64::new(1) }
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
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let room = match rooms.get(name) {
            Some(room) => room.clone(),
            None => {
                if rooms.len() >= self.limits.rooms {
                    let empty = rooms.iter().find(|(_, room)| room.is_empty()).map(|(name, _)| name.clone());
                    rooms.remove(&empty.ok_or(Fault::Rooms)?);
                }
                let room = Arc::new(Room::new(self.number()));
                rooms.insert(name.into(), room.clone());
                self.counters.rooms.store(rooms.len() as u64, Relaxed);
                room
            }
        };
        let welcome = room.enter(nick, address, &self.limits)?;
        Ok((room, welcome))
    }
}

impl fmt::Debug for Hall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hall").field("limits", &self.limits).finish_non_exhaustive()
    }
}
