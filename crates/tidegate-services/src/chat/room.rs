//! One room: who is in it, what was said last, and the order of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{Group, Mailbox};

use super::far::{Far, Happened, Residents};
use super::limits::ChatLimits;
use super::outside::MOST_NUMBER;
use super::span::{Batch, Batched, Link, Received};
use crate::websocket::frame::SharedText;

/// One thing that happened in a room, as its members are told of it.
#[derive(Debug)]
pub(super) struct News {
    pub(super) room: u64,
    /// Its number: one more than that of what happened before.
    pub(super) number: u64,
    pub(super) text: SharedText,
}

/// Something about a room that has no number; who hears it goes on as before.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) room: u64,
    pub(super) text: SharedText,
    /// What happened up to here is known, whatever was before: numbers begin again.
    pub(super) restart: Option<u64>,
}

/// Why something cannot be done, for the member to read.
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
    #[error("this node is cut off from the others, and nothing is taken until it is back; try again")]
    CutOff,
}

pub(super) struct Room {
    id: u64,
    name: Arc<str>,
    /// For a room that spans nodes.
    link: Option<Arc<Link>>,
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
    /// What other nodes share, if there are others.
    far: Option<Far>,
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
    pub(super) fn new(id: u64, name: &str, link: Option<Arc<Link>>) -> Self {
        let state = State {
            last: 0,
            group: Group::default(),
            nicks: BTreeSet::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            far: link.as_ref().map(|_| Far::default()),
        };
        Self { id, name: name.into(), link, state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, and the room is valid at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody is in it, here or elsewhere, and nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.members() == 0 && !state.far.as_ref().is_some_and(Far::has_waiting)
    }

    /// Lets somebody in. What happens from now on comes to `address` as mail; what happened before is in the welcome.
    pub(super) fn enter(&self, nick: &str, address: &Mailbox, limits: &ChatLimits) -> Result<Welcome, Fault> {
        self.check()?;
        let mut state = self.lock();
        if state.members() >= limits.members {
            return Err(Fault::Full);
        }
        if state.has(nick) {
            return Err(Fault::Taken);
        }
        let members = state.members() + 1;
        if members <= limits.announced {
            self.happen(&mut state, Happened::noted(format!("+ {nick}")), limits)?;
        }
        let nick: Arc<str> = nick.into();
        state.nicks.insert(nick.clone());
        state.group.join(address);
        self.moved();
        Ok(Welcome { nick, members, last: state.last, history: state.history.iter().cloned().collect() })
    }

    /// Lets somebody out.
    pub(super) fn leave(&self, nick: &str, address: &Mailbox, limits: &ChatLimits) {
        let mut state = self.lock();
        if !state.group.leave(address) {
            return;
        }
        state.nicks.remove(nick);
        if state.members() <= limits.announced {
            // A room that is too busy to be told of it sees it in the list.
            let _ = self.happen(&mut state, Happened::noted(format!("- {nick}")), limits);
        }
        self.moved();
    }

    /// Gives somebody who is in another name.
    pub(super) fn rename(&self, old: &str, new: &str, limits: &ChatLimits) -> Result<Arc<str>, Fault> {
        self.check()?;
        let mut state = self.lock();
        if state.has(new) {
            return Err(Fault::Taken);
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

    /// Says something to everybody in the room, and returns its number, if that is known yet.
    pub(super) fn say(&self, nick: &str, text: &str, limits: &ChatLimits) -> Result<Option<u64>, Fault> {
        self.check()?;
        let mut state = self.lock();
        self.happen(&mut state, Happened::said(format!("{nick}: {text}")), limits)?;
        Ok(self.link.is_none().then_some(state.last))
    }

    pub(super) fn census(&self, most: usize) -> Census {
        let state = self.lock();
        let nicks: BTreeSet<_> = state.nicks.iter().chain(state.far.iter().flat_map(Far::nicks)).collect();
        Census { members: state.members(), nicks: nicks.into_iter().take(most).cloned().collect() }
    }

    /// The one way in which anything happens: at once, or, in a room that spans nodes, when its place in the order has
    /// been found.
    fn happen(&self, state: &mut State, happened: Happened, limits: &ChatLimits) -> Result<(), Fault> {
        let (Some(link), Some(far)) = (&self.link, &mut state.far) else {
            return state.publish(self.id, &happened, limits);
        };
        far.wait(happened, limits.waiting_bytes).map_err(|fault| link.refuse(fault))?;
        link.attend(&self.name);
        Ok(())
    }

    fn check(&self) -> Result<(), Fault> {
        self.link.as_ref().map_or(Ok(()), |link| link.check())
    }

    fn moved(&self) {
        if let Some(link) = &self.link {
            link.moved(&self.name);
        }
    }
}

/// What a bridge to other nodes asks of it.
impl Room {
    pub(super) fn offer(&self) -> Option<Batch> {
        let state = self.lock();
        let all = state.far.as_ref()?.waiting();
        let fits = state.last < MOST_NUMBER.saturating_sub(all.len() as u64);
        let first = if fits { state.last + 1 } else { 1 };
        (!all.is_empty()).then_some(Batch { first, all })
    }

    /// The number of what comes next, once anything has come.
    pub(super) fn next_known(&self) -> Option<u64> {
        let state = self.lock();
        state.far.as_ref().filter(|far| far.is_known).map(|_| state.last + 1)
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.lock().far.as_ref().is_some_and(Far::has_waiting)
    }

    pub(super) fn receive(
        &self,
        batch: &Batch,
        batched: Batched,
        told: usize,
        limits: &ChatLimits,
    ) -> Received {
        let mut state = self.lock();
        if told == 0 {
            match state.follows(self.id, batch.first, batched) {
                Ok(true) => {}
                Ok(false) => return Received::Void,
                Err(_) => return Received::Full(0),
            }
        }
        for (at, happened) in batch.all.iter().enumerate().skip(told) {
            if state.publish(self.id, happened, limits).is_err() {
                return Received::Full(at);
            }
        }
        if let (Batched::Here | Batched::HereAnew, Some(far)) = (batched, &mut state.far) {
            far.passed_on(batch.all.len());
        }
        if let (true, Some(link)) = (state.far.as_ref().is_some_and(Far::has_waiting), &self.link) {
            link.attend(&self.name);
        }
        Received::Told
    }

    /// Tells everybody who is here something without a number; a room that is too busy for it does not hear it.
    pub(super) fn tell(&self, text: &str) {
        let _ = self.lock().notice(self.id, text, None);
    }

    pub(super) fn residents(&self, most: usize) -> Residents {
        let state = self.lock();
        Residents { members: state.group.len(), nicks: state.nicks.iter().take(most).cloned().collect() }
    }

    pub(super) fn house(&self, node: u64, residents: Residents) {
        if let (Some(far), Some(link)) = (&mut self.lock().far, &self.link) {
            far.house(node, residents, &link.far_names);
        }
    }

    pub(super) fn forget(&self, node: u64, lost: Option<&str>, limits: &ChatLimits) {
        let mut state = self.lock();
        let gone = match (&mut state.far, &self.link) {
            (Some(far), Some(link)) => far.forget(node, &link.far_names),
            _ => 0,
        };
        if let (Some(name), true) = (lost, gone > 0 && state.members() <= limits.announced) {
            // A room that is too busy to be told of it sees it in the list.
            let _ =
                state.notice(self.id, &format!("= node {name} is lost, and {gone} members with it"), None);
        }
    }
}

impl State {
    /// Members here and elsewhere.
    fn members(&self) -> usize {
        self.group.len().saturating_add(self.far.as_ref().map_or(0, Far::members))
    }

    fn has(&self, nick: &str) -> bool {
        self.nicks.contains(nick) || self.far.as_ref().is_some_and(|far| far.has(nick))
    }

    /// Whether what begins with this number comes next. What was lost before it, members are told of; if they cannot
    /// be, nothing has changed: who had not heard that numbers begin again would take the next ones for old.
    fn follows(&mut self, room: u64, first: u64, batched: Batched) -> Result<bool, Fault> {
        let Some(far) = &self.far else { return Ok(false) };
        let was_known = far.is_known;
        let next = self.last + 1;
        if first < next {
            if !matches!(batched, Batched::Anew | Batched::HereAnew) {
                return Ok(false);
            }
            self.notice(
                room,
                "= this room was forgotten by what keeps it; its numbers begin again",
                first.checked_sub(1),
            )?;
        } else if first > next && was_known {
            let missing = first - next;
            self.notice(room, &format!("= {missing} messages are lost: they are not kept any more"), None)?;
        }
        if let Some(far) = &mut self.far {
            far.is_known = true;
        }
        self.last = first.saturating_sub(1);
        Ok(true)
    }

    /// The one way in which anything comes to members: it gets the next number, and goes to every member or to none.
    fn publish(&mut self, room: u64, happened: &Happened, limits: &ChatLimits) -> Result<(), Fault> {
        let number = self.last + 1;
        let text = SharedText::new(&format!("#{number} {}", happened.text));
        let news = Arc::new(News { room, number, text });
        self.group.send(news.clone()).map_err(|_| Fault::Busy)?;
        self.last = number;
        if happened.said {
            self.remember(news, limits);
        }
        Ok(())
    }

    fn notice(&self, room: u64, text: &str, restart: Option<u64>) -> Result<(), Fault> {
        let notice = Notice { room, text: SharedText::new(text), restart };
        self.group.send(Arc::new(notice)).map_err(|_| Fault::Busy)
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
