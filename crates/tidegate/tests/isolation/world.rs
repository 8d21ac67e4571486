//! What callers and sessions of one round know of each other, and what they found wrong.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::{CloseReason, Group, Mailbox};

use crate::known::Letter;

/// Sessions whose addresses are remembered: most of them are gone, and their places taken by others.
const REMEMBERED: usize = 64;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Dialled,
    HasSession,
    Closed(CloseReason),
}

/// One server and its callers.
#[derive(Default)]
pub struct World {
    /// Of the run: decides plans and bytes.
    pub seed: u64,
    /// The server stops while callers are at work: from then on connections may be cut between two answers, or reset.
    pub stops: AtomicBool,
    /// Sessions send before they have received anything.
    pub greets: bool,
    /// The network loses packets.
    pub lossy: bool,
    /// The service refuses some connections.
    pub refuses: bool,
    /// The server turns away those that come while it is full.
    pub turns_away: bool,
    connections: Mutex<HashMap<u64, Known>>,
    to_refuse: Mutex<HashSet<SocketAddr>>,
    mailboxes: Mutex<VecDeque<(u64, Mailbox<Letter>)>>,
    groups: [Mutex<Group>; 4],
    wrong: Mutex<Vec<String>>,
    /// Operations of all callers.
    pub operations: AtomicU64,
    pub greetings: AtomicU64,
    pub opened: AtomicU64,
    pub refused: AtomicU64,
    closed: [AtomicU64; CloseReason::ALL.len()],
    /// Bytes that callers sent, or tried to.
    pub sent: AtomicU64,
    /// Bytes that callers received.
    pub heard: AtomicU64,
    /// Bytes that sessions used.
    pub used: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// Of a run with this seed; greetings are numbered from `first`.
    pub fn new(seed: u64, first: u64) -> Self {
        Self { seed, greetings: AtomicU64::new(first), ..Self::default() }
    }

    /// Notes something that must not be.
    pub fn wrong(&self, what: impl Into<String>) {
        lock(&self.wrong).push(what.into());
    }

    /// Whether there is no point in going on.
    pub fn is_broken(&self) -> bool {
        !lock(&self.wrong).is_empty()
    }

    pub fn all_wrong(&self) -> Vec<String> {
        lock(&self.wrong).clone()
    }

    pub fn stops(&self) -> bool {
        self.stops.load(SeqCst)
    }

    /// A caller is about to connect.
    pub fn dialled(&self, number: u64) {
        lock(&self.connections).insert(number, Known::Dialled);
    }

    /// A session was shown the name of this connection: nobody else may have been.
    pub fn claim(&self, number: u64) -> Result<(), String> {
        match lock(&self.connections).get_mut(&number) {
            Some(known @ Known::Dialled) => {
                *known = Known::HasSession;
                Ok(())
            }
            Some(known) => {
                Err(format!("a second session was shown the name of connection {number} ({known:?})"))
            }
            None => Err(format!(
                "a session was shown the name of connection {number}, which is not of this round"
            )),
        }
    }

    /// Whether a session was ever shown the name of this connection.
    pub fn has_session(&self, number: u64) -> bool {
        !matches!(lock(&self.connections).get(&number), None | Some(Known::Dialled))
    }

    pub fn closed(&self, number: Option<u64>, why: CloseReason) {
        self.closed[why as usize].fetch_add(1, SeqCst);
        let Some(number) = number else { return };
        if let Some(before @ Known::Closed(_)) = lock(&self.connections).insert(number, Known::Closed(why)) {
            self.wrong(format!("connection {number} was closed twice: {before:?}, then {why}"));
        }
    }

    /// Why the session of this connection was closed.
    pub fn fate(&self, number: u64) -> Option<CloseReason> {
        match lock(&self.connections).get(&number) {
            Some(&Known::Closed(why)) => Some(why),
            _ => None,
        }
    }

    /// How far this connection has come, to be read.
    pub fn state(&self, number: u64) -> String {
        lock(&self.connections).get(&number).map_or("never dialled".into(), |known| format!("{known:?}"))
    }

    pub fn closed_by(&self, why: CloseReason) -> u64 {
        self.closed[why as usize].load(SeqCst)
    }

    /// The connection from this address is to be refused.
    pub fn refuse(&self, from: SocketAddr) {
        lock(&self.to_refuse).insert(from);
    }

    pub fn is_refused(&self, from: Option<SocketAddr>) -> bool {
        from.is_some_and(|from| lock(&self.to_refuse).remove(&from))
    }

    pub fn remember(&self, number: u64, mailbox: Mailbox<Letter>) {
        let mut mailboxes = lock(&self.mailboxes);
        if mailboxes.len() == REMEMBERED {
            mailboxes.pop_front();
        }
        mailboxes.push_back((number, mailbox));
    }

    /// The address of some session, which may be gone.
    pub fn somebody(&self, choice: u64) -> Option<(u64, Mailbox<Letter>)> {
        let mailboxes = lock(&self.mailboxes);
        mailboxes.get(choice as usize % mailboxes.len().max(1)).cloned()
    }

    pub fn group(&self, group: usize) -> MutexGuard<'_, Group> {
        lock(&self.groups[group])
    }

    pub fn groups(&self) -> usize {
        self.groups.len()
    }
}
