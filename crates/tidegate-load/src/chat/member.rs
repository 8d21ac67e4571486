//! One member.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{
    CloseReason, Consumed, Dial, Flow, Mail, Origin, Outbox, Peer, Recipient, Refusal, Service, Session,
};

use super::ChatPlan;
use super::record::{RoomEvent, Stamp, read};
use super::shared::{Begin, ChatShared};
use super::wire::{Heard, hear, hello, say};

/// Makes members.
pub(super) struct ChatLoad(pub(super) Arc<ChatShared>);

impl Service for ChatLoad {
    type Session = ChatClient;

    fn open(&self, peer: &Peer) -> Result<ChatClient, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        let index = tag as usize;
        Ok(ChatClient {
            shared: self.0.clone(),
            index,
            thread: peer.thread,
            greeted: false,
            joined: false,
            last: 0,
            known: 0,
            next: index as u64,
        })
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.0.fail(crate::run_state::not_connected(&dial.to, error));
    }
}

pub(super) struct ChatClient {
    shared: Arc<ChatShared>,
    index: usize,
    thread: usize,
    /// The handshake, if there is one, is over.
    greeted: bool,
    joined: bool,
    /// The number of what it heard last.
    last: u64,
    /// What happened up to here it need not hear.
    known: u64,
    /// Of one that speaks: which message of the run it says next.
    next: u64,
}

/// What a member says to get into its room.
pub(super) fn join_line(plan: &ChatPlan, member: usize) -> String {
    format!("/join load{} m{member}", plan.room(member))
}

impl ChatClient {
    fn plan(&self) -> &ChatPlan {
        &self.shared.plan
    }

    fn speaks(&self) -> bool {
        self.index < self.plan().speakers
    }

    fn say(&self, line: &str, out: &mut Outbox<'_>) {
        let mut bytes = Vec::with_capacity(line.len() + 8);
        say(self.plan().speech, line, &mut bytes);
        out.write(&bytes);
    }

    /// Says what is due, and sets the alarm for what is next.
    fn speak(&mut self, begin: Instant, out: &mut Outbox<'_>) {
        let (messages, each) = (self.plan().messages() as u64, self.plan().speakers as u64);
        let now = Instant::now();
        while self.next < messages {
            let due_ns = (self.next as f64 / self.plan().rate * 1e9) as u64;
            let due = begin + Duration::from_nanos(due_ns);
            if due > now {
                return out.wake_at(due);
            }
            let mut line = format!("tg {} {} {due_ns} ", self.index, self.next / each);
            let pad = self.plan().size.saturating_sub(line.len());
            let _ = write!(line, "{:x<pad$}", ""); // writing to a string does not fail
            let late_us = (now - due).as_micros() as u64;
            if !self.shared.may_say(self.thread, self.plan().room(self.index), late_us) {
                return;
            }
            self.say(&line, out);
            self.next += each;
        }
    }

    fn hear(&mut self, line: &[u8], out: &mut Outbox<'_>) {
        match read(line) {
            RoomEvent::Numbered(number, stamp) => self.numbered(number, stamp, line),
            RoomEvent::Joined(last) if !self.joined => {
                (self.joined, self.last, self.known) = (true, last, last);
                self.shared.join(self.speaks().then(|| Self::mailbox(out)));
            }
            RoomEvent::Refused if self.joined => {
                self.shared.refuse(self.plan().room(self.index));
                self.complain("the server refused a message", line);
            }
            RoomEvent::Refused => {
                self.shared.fail(format!("joining failed: {}", String::from_utf8_lossy(line)))
            }
            RoomEvent::Joined(_) | RoomEvent::Other => {}
        }
    }

    fn numbered(&mut self, number: u64, stamp: Option<Stamp>, line: &[u8]) {
        if number <= self.known && self.last == self.known {
            return; // history
        }
        if number != self.last + 1 {
            self.shared.thread_stats(self.thread).wrong += 1;
            let expected = self.last + 1;
            self.complain(&format!("a member received another event than #{expected}"), line);
        }
        self.last = number;
        let (Some(stamp), Some(epoch)) = (stamp, self.shared.epoch()) else { return };
        let due = epoch + Duration::from_nanos(stamp.due_ns);
        let latency = Instant::now().saturating_duration_since(due).as_micros() as u64;
        let room = self.plan().room(self.index);
        if !self.shared.thread_stats(self.thread).hear(room, number, line, stamp, latency) {
            self.complain("a member heard something else than the others", line);
        }
    }

    fn complain(&self, what: &str, line: &[u8]) {
        self.shared.complain(|| {
            let start = &line[..line.len().min(60)];
            format!("{what}: {:?}", String::from_utf8_lossy(start))
        });
    }
}

impl Recipient for ChatClient {
    type Message = Begin;
}

impl Session for ChatClient {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let hello = hello(self.plan().speech, &self.plan().target(self.index).host);
        if hello.is_empty() {
            self.say(&join_line(self.plan(), self.index), out);
        } else {
            out.write(hello.as_bytes());
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        loop {
            match hear(self.plan().speech, self.greeted, &input[used..]) {
                Heard::Part => return Consumed::bytes(used),
                Heard::Welcome(bytes) => {
                    used += bytes;
                    self.greeted = true;
                    self.say(&join_line(self.plan(), self.index), out);
                }
                Heard::RoomEvent(bytes, line) => {
                    used += bytes;
                    self.hear(line, out);
                }
                Heard::Wrong(why) => {
                    self.shared.complain(|| why);
                    return Consumed::all(input).then(Flow::Abort);
                }
            }
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let begin = match mail {
            Mail::Timer => self.shared.epoch(),
            Mail::Message(message) => Some(Self::unpack(message).at),
            _ => None,
        };
        if let Some(begin) = begin.filter(|_| !self.shared.is_over()) {
            self.speak(begin, out);
        }
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        if self.joined {
            self.shared.lose(format!("a member lost its connection ({why})"));
        } else {
            self.shared.fail(format!("a connection ended before its member was in ({why})"));
        }
    }
}
