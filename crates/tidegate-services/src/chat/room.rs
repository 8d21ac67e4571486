//! One room: who is in it, what was said last, and the order of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{Group, Mailbox};

use super::limits::ChatLimits;
use crate::websocket::frame::SharedText;

/// One thing that happened in a room, as its members are told of it.
#[derive(Debug)]
pub(super) struct News {
    pub(super) room: u64,
    /// Its number: one more than that of what happened before.
    pub(super) number: u64,
    pub(super) text: SharedText,
}

/// Why something can not be done, for the member to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the room is full")]
    Full,
    #[error("there are as many rooms as there may be, and somebody is in each")]
    Rooms,
    #[error("somebody in the room has this nickname; take another one")]
    Taken,
    #[error("the room is busy: more is said than can be passed on; try again")]
    Busy,
}

pub(super) struct Room {
    id: u64,
    state: Mutex<State>,
}

struct State {
    /// The number of what happened last.
    last: u64,
    group: Group,
    /// In order, so that a list reads well and is the same each time.
    nicks: BTreeSet<Arc<str>>,
    history: VecDeque<Arc<News>>,
    history_bytes: usize,
}

/// What a newcomer is told.
pub(super) struct Welcome {
    pub(super) nick: Arc<str>,
    pub(super) members: usize,
    /// What happened up to here is in the history, or is not told to newcomers.
    pub(super) last: u64,
    pub(super) history: Vec<Arc<News>>,
}

/// Who is in a room.
pub(super) struct Census {
    pub(super) members: usize,
    /// Some of them, if they are many.
    pub(super) nicks: Vec<Arc<str>>,
}

impl Room {
    pub(super) fn new(id: u64) -> Self {
        let state = State {
            last: 0,
            group: Group::default(),
            nicks: BTreeSet::new(),
            history: VecDeque::new(),
            history_bytes: 0,
        };
        Self { id, state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, and the room is valid at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().group.is_empty()
    }

    /// Lets somebody in. What happens from now on comes to `address` as mail; what happened before is in the welcome.
    pub(super) fn enter(&self, nick: &str, address: &Mailbox, limits: &ChatLimits) -> Result<Welcome, Fault> {
        let mut state = self.lock();
        if state.group.len() >= limits.members {
            return Err(Fault::Full);
        }
        if state.nicks.contains(nick) {
            return Err(Fault::Taken);
        }
        let nick: Arc<str> = nick.into();
        let members = state.group.len() + 1;
        if members <= limits.announced {
            state.publish(self.id, |number| format!("#{number} + {nick}"))?;
        }
        state.nicks.insert(nick.clone());
        state.group.join(address);
        Ok(Welcome { nick, members, last: state.last, history: state.history.iter().cloned().collect() })
    }

    /// Lets somebody out.
    pub(super) fn leave(&self, nick: &str, address: &Mailbox, limits: &ChatLimits) {
        let mut state = self.lock();
        if !state.group.leave(address) {
            return;
        }
        state.nicks.remove(nick);
        if state.group.len() <= limits.announced {
            // A room that is too busy to be told of it sees it in the list.
            let _ = state.publish(self.id, |number| format!("#{number} - {nick}"));
        }
    }

    /// Gives somebody who is in another name.
    pub(super) fn rename(&self, old: &str, new: &str, limits: &ChatLimits) -> Result<Arc<str>, Fault> {
        let mut state = self.lock();
        if state.nicks.contains(new) {
            return Err(Fault::Taken);
        }
        if state.group.len() <= limits.announced {
            state.publish(self.id, |number| format!("#{number} {old} ~ {new}"))?;
        }
        let nick: Arc<str> = new.into();
        state.nicks.remove(old);
        state.nicks.insert(nick.clone());
        Ok(nick)
    }

    /// Says something to everybody in the room.
    pub(super) fn say(&self, nick: &str, text: &str, limits: &ChatLimits) -> Result<(), Fault> {
        let mut state = self.lock();
        let news = state.publish(self.id, |number| format!("#{number} {nick}: {text}"))?;
        state.remember(news, limits);
        Ok(())
    }

    pub(super) fn census(&self, most: usize) -> Census {
        let state = self.lock();
        Census { members: state.group.len(), nicks: state.nicks.iter().take(most).cloned().collect() }
    }
}

impl State {
    /// The one way in which anything comes into a room: it gets the next number, and goes to every member or to none. A room
    /// that spans several nodes gets its order from what connects them, and this is called with what comes from there.
    fn publish(&mut self, room: u64, text: impl FnOnce(u64) -> String) -> Result<Arc<News>, Fault> {
        let number = self.last + 1;
        let news = Arc::new(News { room, number, text: SharedText::new(&text(number)) });
        self.group.send(news.clone()).map_err(|_| Fault::Busy)?;
        self.last = number;
        Ok(news)
    }

    fn remember(&mut self, news: Arc<News>, limits: &ChatLimits) {
        self.history_bytes += news.text.bytes();
        self.history.push_back(news);
        while self.history.len() > limits.history || self.history_bytes > limits.history_bytes {
            let Some(oldest) = self.history.pop_front() else { return };
            self.history_bytes -= oldest.text.bytes();
        }
    }
}
