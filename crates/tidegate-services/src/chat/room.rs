//! One room: its members, its history, and the order of its events.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{Group, Mailbox};

use super::federation::{Batch, Batched, BridgeLink, Received};
use super::limits::ChatLimits;
use super::outside::MOST_NUMBER;
use super::remote::{Happened, RemoteRoom, Residents};
use crate::websocket::frame::SharedText;

/// One event of a room, as delivered to its members.
#[derive(Debug)]
pub(super) struct NumberedEvent {
    pub(super) room: u64,
    /// Its number: one more than that of the previous event.
    pub(super) number: u64,
    pub(super) text: SharedText,
}

/// A notice without a number; it does not change the receiver's position.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) room: u64,
    pub(super) text: SharedText,
    /// Sets the receiver's position to this number: numbering starts again.
    pub(super) restart: Option<u64>,
}

/// Why an action is refused, shown to the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RoomFault {
    #[error("the room is full")]
    Full,
    #[error("the limit of rooms is reached, and none of them is empty")]
    Rooms,
    #[error("this nickname is taken in the room; choose another one")]
    Taken,
    #[error("the room is busy; try again")]
    Busy,
    #[error("this node is cut off from the others; try again later")]
    CutOff,
}

pub(super) struct Room {
    id: u64,
    name: Arc<str>,
    /// For a federated room.
    link: Option<Arc<BridgeLink>>,
    state: Mutex<RoomState>,
}

struct RoomState {
    /// The number of the last event.
    last: u64,
    group: Group,
    /// Sorted, so that lists are readable and deterministic.
    nicks: BTreeSet<Arc<str>>,
    history: VecDeque<Arc<NumberedEvent>>,
    history_bytes: usize,
    /// The state shared with other nodes, if federated.
    remote: Option<RemoteRoom>,
}

/// What a new member receives.
pub(super) struct Welcome {
    pub(super) nick: Arc<str>,
    pub(super) members: usize,
    /// Events up to this number are in the history, or are not shown to new members.
    pub(super) last: u64,
    pub(super) history: Vec<Arc<NumberedEvent>>,
}

/// The members of a room.
pub(super) struct Census {
    pub(super) members: usize,
    /// Their names, or some of them.
    pub(super) nicks: Vec<Arc<str>>,
}

impl Room {
    pub(super) fn new(id: u64, name: &str, link: Option<Arc<BridgeLink>>) -> Self {
        let state = RoomState {
            last: 0,
            group: Group::default(),
            nicks: BTreeSet::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            remote: link.as_ref().map(|_| RemoteRoom::default()),
        };
        Self { id, name: name.into(), link, state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, RoomState> {
        // No code that can panic runs under the lock, and the room is consistent at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has no members, here or elsewhere, and no waiting events.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.members() == 0 && !state.remote.as_ref().is_some_and(RemoteRoom::has_waiting)
    }

    /// Whether it is empty as soon as one of its members has left. A federated one passes that on first.
    pub(super) fn has_one_member(&self) -> bool {
        self.link.is_none() && self.lock().members() == 1
    }

    /// Lets somebody in. What happens from now on comes to `address` as mail; what happened before is in the welcome.
    pub(super) fn enter(
        &self,
        nick: &str,
        address: &Mailbox<Infallible>,
        limits: &ChatLimits,
    ) -> Result<Welcome, RoomFault> {
        self.check()?;
        let mut state = self.lock();
        if state.members() >= limits.members {
            return Err(RoomFault::Full);
        }
        if state.has(nick) {
            return Err(RoomFault::Taken);
        }
        let members = state.members() + 1;
        if members <= limits.announced {
            self.happen(&mut state, Happened::noted(format!("+ {nick}")), limits)?;
        }
        let nick: Arc<str> = nick.into();
        state.nicks.insert(nick.clone());
        state.group.join(address);
        self.moved();
        Ok(state.welcome(nick))
    }

    /// The welcome for a member that is in already.
    pub(super) fn welcome(&self, nick: Arc<str>) -> Welcome {
        self.lock().welcome(nick)
    }

    /// Lets somebody out.
    pub(super) fn leave(&self, nick: &str, address: &Mailbox<Infallible>, limits: &ChatLimits) {
        let mut state = self.lock();
        if !state.group.leave(address) {
            return;
        }
        state.nicks.remove(nick);
        if state.members() <= limits.announced {
            // Other members of a room that is too busy for the notice see it in the list.
            let _ = self.happen(&mut state, Happened::noted(format!("- {nick}")), limits);
        }
        self.moved();
    }

    /// Renames a member.
    pub(super) fn rename(&self, old: &str, new: &str, limits: &ChatLimits) -> Result<Arc<str>, RoomFault> {
        self.check()?;
        let mut state = self.lock();
        if state.has(new) {
            return Err(RoomFault::Taken);
        }
        if state.members() <= limits.announced {
            self.happen(&mut state, Happened::noted(format!("{old} ~ {new}")), limits)?;
        }
        let nick: Arc<str> = new.into();
        state.nicks.remove(old);
        state.nicks.insert(nick.clone());
        self.moved();
        Ok(nick)
    }

    /// Sends a message to everybody in the room, and returns its number, if that is known yet.
    pub(super) fn say(&self, nick: &str, text: &str, limits: &ChatLimits) -> Result<Option<u64>, RoomFault> {
        self.check()?;
        let mut state = self.lock();
        self.happen(&mut state, Happened::said(format!("{nick}: {text}")), limits)?;
        Ok(self.link.is_none().then_some(state.last))
    }

    pub(super) fn census(&self, most: usize) -> Census {
        let state = self.lock();
        let nicks: BTreeSet<_> =
            state.nicks.iter().chain(state.remote.iter().flat_map(RemoteRoom::nicks)).collect();
        Census { members: state.members(), nicks: nicks.into_iter().take(most).cloned().collect() }
    }

    /// The only path for events: delivered immediately or, in a federated room, when its place in the order is known.
    fn happen(
        &self,
        state: &mut RoomState,
        happened: Happened,
        limits: &ChatLimits,
    ) -> Result<(), RoomFault> {
        let (Some(link), Some(remote)) = (&self.link, &mut state.remote) else {
            return state.publish(self.id, &happened, limits);
        };
        remote.wait(happened, limits.waiting_bytes).map_err(|fault| link.refuse(fault))?;
        link.attend(&self.name);
        Ok(())
    }

    fn check(&self) -> Result<(), RoomFault> {
        self.link.as_ref().map_or(Ok(()), |link| link.check())
    }

    fn moved(&self) {
        if let Some(link) = &self.link {
            link.moved(&self.name);
        }
    }
}

/// The operations of a room for a bridge to other nodes.
impl Room {
    pub(super) fn offer(&self) -> Option<Batch> {
        let state = self.lock();
        let all = state.remote.as_ref()?.waiting();
        let fits = state.last < MOST_NUMBER.saturating_sub(all.len() as u64);
        let first = if fits { state.last + 1 } else { 1 };
        (!all.is_empty()).then_some(Batch { first, all })
    }

    /// The next number, once anything was received.
    pub(super) fn next_known(&self) -> Option<u64> {
        let state = self.lock();
        state.remote.as_ref().filter(|remote| remote.is_known).map(|_| state.last + 1)
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.lock().remote.as_ref().is_some_and(RemoteRoom::has_waiting)
    }

    pub(super) fn receive(
        &self,
        batch: &Batch,
        batched: Batched,
        delivered: usize,
        limits: &ChatLimits,
    ) -> Received {
        let mut state = self.lock();
        if delivered == 0 {
            match state.follows(self.id, batch.first, batched) {
                Ok(true) => {}
                Ok(false) => return Received::Void,
                Err(_) => return Received::Full(0),
            }
        }
        for (at, happened) in batch.all.iter().enumerate().skip(delivered) {
            if state.publish(self.id, happened, limits).is_err() {
                return Received::Full(at);
            }
        }
        if let (Batched::Here | Batched::HereAnew, Some(remote)) = (batched, &mut state.remote) {
            remote.passed_on(batch.all.len());
        }
        if let (true, Some(link)) = (state.remote.as_ref().is_some_and(RemoteRoom::has_waiting), &self.link) {
            link.attend(&self.name);
        }
        Received::Delivered
    }

    /// Sends a notice without a number to local members; dropped if the room is too busy.
    pub(super) fn broadcast(&self, text: &str) {
        let _ = self.lock().notice(self.id, text, None);
    }

    pub(super) fn residents(&self, most: usize) -> Residents {
        let state = self.lock();
        Residents { members: state.group.len(), nicks: state.nicks.iter().take(most).cloned().collect() }
    }

    pub(super) fn set_residents(&self, node: u64, residents: Residents) {
        if let (Some(remote), Some(link)) = (&mut self.lock().remote, &self.link) {
            remote.set_residents(node, residents, &link.remote_names);
        }
    }

    pub(super) fn forget(&self, node: u64, lost: Option<&str>, limits: &ChatLimits) {
        let mut state = self.lock();
        let gone = match (&mut state.remote, &self.link) {
            (Some(remote), Some(link)) => remote.forget(node, &link.remote_names),
            _ => 0,
        };
        if let (Some(name), true) = (lost, gone > 0 && state.members() <= limits.announced) {
            // Other members of a room that is too busy for the notice see it in the list.
            let _ =
                state.notice(self.id, &format!("= node {name} is lost, and {gone} members with it"), None);
        }
    }
}

impl RoomState {
    /// Members here and elsewhere.
    fn members(&self) -> usize {
        self.group.len().saturating_add(self.remote.as_ref().map_or(0, RemoteRoom::members))
    }

    fn welcome(&self, nick: Arc<str>) -> Welcome {
        let history = self.history.iter().cloned().collect();
        Welcome { nick, members: self.members(), last: self.last, history }
    }

    fn has(&self, nick: &str) -> bool {
        self.nicks.contains(nick) || self.remote.as_ref().is_some_and(|remote| remote.has(nick))
    }

    /// Whether a batch with this first number comes next. Members are notified of a gap before it; if that fails,
    /// nothing is changed: a member that missed the notice would take the next numbers for old ones.
    fn follows(&mut self, room: u64, first: u64, batched: Batched) -> Result<bool, RoomFault> {
        let Some(remote) = &self.remote else { return Ok(false) };
        let was_known = remote.is_known;
        let next = self.last + 1;
        if first < next {
            if !matches!(batched, Batched::Anew | Batched::HereAnew) {
                return Ok(false);
            }
            self.notice(room, "= the broker lost this room; its numbers start again", first.checked_sub(1))?;
        } else if first > next && was_known {
            let missing = first - next;
            self.notice(
                room,
                &format!("= {missing} messages are lost: they were removed from the broker"),
                None,
            )?;
        }
        if let Some(remote) = &mut self.remote {
            remote.is_known = true;
        }
        self.last = first.saturating_sub(1);
        Ok(true)
    }

    /// The only path to members: assigns the next number, and sends the event to all members or to none.
    fn publish(&mut self, room: u64, happened: &Happened, limits: &ChatLimits) -> Result<(), RoomFault> {
        let number = self.last + 1;
        let text = SharedText::new(&format!("#{number} {}", happened.text));
        let news = Arc::new(NumberedEvent { room, number, text });
        self.group.send(news.clone()).map_err(|_| RoomFault::Busy)?;
        self.last = number;
        if happened.said {
            self.remember(news, limits);
        }
        Ok(())
    }

    fn notice(&self, room: u64, text: &str, restart: Option<u64>) -> Result<(), RoomFault> {
        let notice = Notice { room, text: SharedText::new(text), restart };
        self.group.send(Arc::new(notice)).map_err(|_| RoomFault::Busy)
    }

    fn remember(&mut self, news: Arc<NumberedEvent>, limits: &ChatLimits) {
        self.history_bytes += news.text.bytes();
        self.history.push_back(news);
        while self.history.len() > limits.history || self.history_bytes > limits.history_bytes {
            let Some(oldest) = self.history.pop_front() else { return };
            self.history_bytes -= oldest.text.bytes();
        }
    }
}
