//! What all members share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;
use tidegate::Mailbox;

use super::ChatPlan;
use super::record::{Record, Stamp};
use crate::thread_stats::histogram;

/// Speakers begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// When the first message is due.
    pub(super) at: Instant,
}

/// What the members of one thread have heard. Only this thread and, now and then, the runner lock it.
pub(super) struct ChatThreadStats {
    pub(super) rooms: Vec<Record>,
    pub(super) latency_us: Histogram<u64>,
    /// How late messages were said.
    pub(super) delay_us: Histogram<u64>,
    pub(super) heard: u64,
    /// Events of a room that came with another number than the next, or otherwise than to others.
    pub(super) wrong: u64,
}

/// How far everybody is.
pub(super) struct ChatProgress {
    pub(super) said: u64,
    pub(super) heard: u64,
    /// Of what was said, so many times it has to be heard,
    pub(super) owed: u64,
    /// and so many it need not be, because it was refused.
    pub(super) spared: u64,
}

pub(super) struct ChatShared {
    pub(super) plan: ChatPlan,
    joined: AtomicUsize,
    failed: AtomicUsize,
    lost: AtomicUsize,
    over: AtomicBool,
    /// The run has been ended from outside: nobody says anything any more.
    interrupted: Arc<AtomicBool>,
    begin: OnceLock<Begin>,
    speakers: Mutex<Vec<Mailbox<Begin>>>,
    /// Messages said in each room.
    said: Vec<AtomicU64>,
    /// Messages that were refused in each room.
    refused: Vec<AtomicU64>,
    thread_stats: Vec<Mutex<ChatThreadStats>>,
    first_error: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChatShared {
    pub(super) fn new(plan: ChatPlan, interrupted: Arc<AtomicBool>) -> Self {
        let thread_stats = || ChatThreadStats {
            rooms: (0..plan.rooms).map(|_| Record::default()).collect(),
            latency_us: histogram(),
            delay_us: histogram(),
            heard: 0,
            wrong: 0,
        };
        let zeros = || (0..plan.rooms).map(|_| AtomicU64::new(0)).collect();
        Self {
            joined: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            interrupted,
            begin: OnceLock::new(),
            speakers: Mutex::default(),
            said: zeros(),
            refused: zeros(),
            thread_stats: (0..plan.threads).map(|_| Mutex::new(thread_stats())).collect(),
            first_error: Mutex::default(),
            plan,
        }
    }

    /// The counters of a thread.
    pub(super) fn thread_stats(&self, thread: usize) -> MutexGuard<'_, ChatThreadStats> {
        lock(&self.thread_stats[thread % self.thread_stats.len()])
    }

    pub(super) fn all_stats(&self) -> impl Iterator<Item = MutexGuard<'_, ChatThreadStats>> {
        self.thread_stats.iter().map(lock)
    }

    /// A member is in; one that speaks passes the mailbox for its command to begin.
    pub(super) fn join(&self, speaker: Option<Mailbox<Begin>>) {
        if let Some(mailbox) = speaker {
            lock(&self.speakers).push(mailbox);
        }
        self.joined.fetch_add(1, Relaxed);
    }

    pub(super) fn joined(&self) -> usize {
        self.joined.load(Relaxed)
    }

    /// Members that are in or never will be.
    pub(super) fn settled(&self) -> usize {
        self.joined() + self.failed.load(Relaxed)
    }

    /// A member could not join.
    pub(super) fn fail(&self, why: String) {
        self.failed.fetch_add(1, Relaxed);
        lock(&self.first_error).get_or_insert(why);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed) > 0
    }

    /// A member that was in has lost its connection.
    pub(super) fn lose(&self, why: String) {
        if !self.over.load(Relaxed) {
            self.lost.fetch_add(1, Relaxed);
            lock(&self.first_error).get_or_insert(why);
        }
    }

    pub(super) fn lost(&self) -> usize {
        self.lost.load(Relaxed)
    }

    /// Notes what was wrong, if nothing was before.
    pub(super) fn complain(&self, why: impl FnOnce() -> String) {
        lock(&self.first_error).get_or_insert_with(why);
    }

    pub(super) fn first_error(&self) -> Option<String> {
        lock(&self.first_error).clone()
    }

    pub(super) fn begin(&self, begin: Begin) {
        let _ = self.begin.set(begin); // once
        for speaker in &*lock(&self.speakers) {
            let _ = speaker.send(begin); // one that is gone is counted as lost
        }
    }

    /// When the first message is due; the present before that is known.
    pub(super) fn epoch(&self) -> Option<Instant> {
        self.begin.get().map(|begin| begin.at)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    /// A member of `thread` wants to say something, so late; `false` if it may not any more. Counted under the lock
    /// that [`progress`](Self::progress) takes after it has been asked whether somebody interrupts: what is said is
    /// known there.
    pub(super) fn may_say(&self, thread: usize, room: usize, late_us: u64) -> bool {
        let mut thread_stats = self.thread_stats(thread);
        if self.is_interrupted() {
            return false;
        }
        thread_stats.delay_us.saturating_record(late_us);
        self.said[room].fetch_add(1, Relaxed);
        true
    }

    pub(super) fn refuse(&self, room: usize) {
        self.refused[room].fetch_add(1, Relaxed);
    }

    pub(super) fn said(&self) -> u64 {
        self.said.iter().map(|said| said.load(Relaxed)).sum()
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.iter().map(|refused| refused.load(Relaxed)).sum()
    }

    /// Messages of a room that were said and not refused.
    pub(super) fn taken(&self, room: usize) -> u64 {
        self.said[room].load(Relaxed).saturating_sub(self.refused[room].load(Relaxed))
    }

    /// Members of a room that read.
    pub(super) fn readers(&self, room: usize) -> u64 {
        let readers = self.plan.members - self.plan.deaf();
        (readers / self.plan.rooms + usize::from(room < readers % self.plan.rooms)) as u64
    }

    pub(super) fn progress(&self) -> ChatProgress {
        let each = |counts: &[AtomicU64]| {
            let counts = counts.iter().enumerate();
            counts.map(|(room, count)| count.load(Relaxed) * self.readers(room)).sum()
        };
        let heard = self.all_stats().map(|thread_stats| thread_stats.heard).sum(); // before what was said: never more than that
        ChatProgress { said: self.said(), heard, owed: each(&self.said), spared: each(&self.refused) }
    }
}

impl ChatThreadStats {
    /// A member has heard a message.
    pub(super) fn hear(
        &mut self,
        room: usize,
        number: u64,
        text: &[u8],
        stamp: Stamp,
        latency_us: u64,
    ) -> bool {
        self.heard += 1;
        self.latency_us.saturating_record(latency_us);
        let same = self.rooms[room].note(number, text, stamp, latency_us);
        self.wrong += u64::from(!same);
        same
    }
}
