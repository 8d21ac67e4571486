//! The behaviour of a member, independent of its protocol.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tidegate::{Mail, Mailbox, Outbox, Recipient};

use super::command::{self, ChatCommand, HELP};
use super::counters::add;
use super::limits::ChatLimits;
use super::pace::TokenBucket;
use super::registry::RoomRegistry;
use super::room::{Notice, NumberedEvent, Room, RoomFault};
use crate::websocket::frame::{SharedText, send_text};

/// The member's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Lines,
    Frames,
}

/// How it goes on with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    Stays,
    /// It has sent `/quit`.
    Quits,
    /// It reads too slowly.
    TooSlow,
}

/// A connected member, in a room or not.
pub(super) struct Member {
    registry: Arc<RoomRegistry>,
    speaks: Speaks,
    nick: Option<Arc<str>>,
    membership: Option<Membership>,
    pace: TokenBucket,
    /// It is paused until its own messages arrive; see [`Member::takes_more`].
    listens: bool,
}

/// Maximum messages of a room that one of its senders has not received yet: in its outbox they take a quarter of its
/// limit.
fn most_unheard(limits: &ChatLimits) -> u64 {
    const NAMES: usize = 128; // number and nickname before the line
    (limits.behind_bytes / 4 / (limits.line_bytes + NAMES)).max(1) as u64
}

/// Its room.
struct Membership {
    room: Arc<Room>,
    address: Mailbox<Infallible>,
    /// What happened up to here it knows, or was not to know.
    seen: u64,
    /// The number of its last message here; 0 if that is not known, as in federated rooms.
    said: u64,
}

impl Membership {
    /// Messages to receive before its own one arrives.
    fn unheard(&self) -> u64 {
        self.said.saturating_sub(self.seen)
    }
}

impl Recipient for Member {
    /// Its mail is that of its room only.
    type Message = Infallible;
}

impl Member {
    pub(super) fn new(registry: Arc<RoomRegistry>, speaks: Speaks) -> Self {
        Self { registry, speaks, nick: None, membership: None, pace: TokenBucket::default(), listens: false }
    }

    /// Whether its next line is accepted now. Messages reach members as mail and only then their outboxes, so full
    /// outboxes alone hold no sender back: a member that sends faster than the room receives waits until its own
    /// messages have come back.
    pub(super) fn takes_more(&self) -> bool {
        !self.listens
    }

    /// Updates whether it is paused.
    fn look_ahead(&mut self, out: &Outbox<'_>) {
        let unheard = self.membership.as_ref().map_or(0, Membership::unheard);
        let behind_bytes = self.registry.limits.behind_bytes;
        let most = most_unheard(&self.registry.limits);
        self.listens = match (self.listens, unheard) {
            (_, 0) => false, // no mail would resume it
            _ if out.queued() >= behind_bytes / 2 => true,
            (true, unheard) => unheard > most / 2,
            (false, unheard) => unheard >= most,
        };
    }

    /// Handles a line, without its end.
    pub(super) fn hear(&mut self, line: &str, out: &mut Outbox<'_>) -> Next {
        let limits = &self.registry.limits;
        if !self.pace.allows(limits.lines_per_s, limits.burst, out.now()) {
            self.send_line("! too many lines; this one was dropped", out);
            return Next::Stays;
        }
        let done = match command::parse(line) {
            Err(why) => Err(why.to_owned()),
            Ok(ChatCommand::Quit) => return Next::Quits,
            Ok(command) => self.obey(command, out),
        };
        if let Err(why) = done {
            self.send_line(&format!("! {why}"), out);
        }
        Next::Stays
    }

    /// It has sent invalid text.
    pub(super) fn hear_noise(&self, out: &mut Outbox<'_>) {
        self.send_line("! not valid UTF-8", out);
    }

    fn obey(&mut self, command: ChatCommand<'_>, out: &mut Outbox<'_>) -> Result<(), String> {
        let text = |fault: RoomFault| fault.to_string();
        match command {
            ChatCommand::Nothing | ChatCommand::Quit => Ok(()),
            ChatCommand::Say(said) => {
                let (nick, membership) = self.whereabouts()?;
                let number = membership.room.say(nick, said, &self.registry.limits).map_err(text)?;
                add(&self.registry.counters.messages);
                if let (Some(number), Some(membership)) = (number, &mut self.membership) {
                    membership.said = number;
                    self.look_ahead(out);
                }
                Ok(())
            }
            ChatCommand::Join { room, nick } => self.join(room, nick, out).map_err(text),
            ChatCommand::Nick(nick) => self.rename(nick, out).map_err(text),
            ChatCommand::Leave => {
                self.whereabouts()?;
                self.leave();
                self.send_line("= left", out);
                Ok(())
            }
            ChatCommand::Who => {
                let census = self.whereabouts()?.1.room.census(self.registry.limits.announced);
                self.send_line(&format!("= {} here: {}", census.members, census.nicks.join(" ")), out);
                Ok(())
            }
            ChatCommand::Help => {
                self.send_line(&format!("= {HELP}"), out);
                Ok(())
            }
        }
    }

    fn whereabouts(&self) -> Result<(&Arc<str>, &Membership), String> {
        let here = self.nick.as_ref().zip(self.membership.as_ref());
        here.ok_or_else(|| "join a room first: /join ROOM [NICK]".to_owned())
    }

    fn join(&mut self, name: &str, nick: Option<&str>, out: &mut Outbox<'_>) -> Result<(), RoomFault> {
        let nick: Arc<str> = match (nick, &self.nick) {
            (Some(nick), _) => nick.into(),
            (None, Some(nick)) => nick.clone(),
            (None, None) => self.registry.guest().into(),
        };
        let current = self.membership.as_ref().map(|membership| membership.room.clone());
        let welcome = match current {
            Some(room) if **room.name() == *name => room.welcome(self.renamed(&nick)?),
            current => {
                let address = Self::mailbox(out);
                // One that is refused stays in the room it is in.
                let (room, welcome) = self.registry.enter(name, &nick, &address, current.as_deref())?;
                self.leave();
                add(&self.registry.counters.members);
                self.membership = Some(Membership { room, address, seen: welcome.last, said: 0 });
                welcome
            }
        };
        let (nick, members, last) = (&welcome.nick, welcome.members, welcome.last);
        self.send_line(&format!("= joined {name} as {nick}, {members} here, at #{last}"), out);
        // What a member has not seen yet is under way to it.
        let seen = self.membership.as_ref().map_or(last, |membership| membership.seen);
        for news in welcome.history.iter().filter(|news| news.number <= seen) {
            self.pass_on(&news.text, out);
        }
        self.nick = Some(welcome.nick);
        Ok(())
    }

    fn rename(&mut self, new: &str, out: &mut Outbox<'_>) -> Result<(), RoomFault> {
        let nick = self.renamed(new)?;
        self.send_line(&format!("= you are {nick}"), out);
        self.nick = Some(nick);
        Ok(())
    }

    /// Its nickname once its room, if it is in one, has accepted this one.
    fn renamed(&self, new: &str) -> Result<Arc<str>, RoomFault> {
        Ok(match (&self.nick, &self.membership) {
            (Some(old), _) if **old == *new => old.clone(),
            (Some(old), Some(membership)) => membership.room.rename(old, new, &self.registry.limits)?,
            _ => new.into(),
        })
    }

    /// Leaves its room, if it is in one.
    pub(super) fn leave(&mut self) {
        if let (Some(nick), Some(membership)) = (&self.nick, self.membership.take()) {
            membership.room.leave(nick, &membership.address, &self.registry.limits);
            self.registry.counters.members.fetch_sub(1, Relaxed);
        }
    }

    /// Handles an event of its room.
    pub(super) fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Next {
        let (Mail::Group(mail), Some(membership)) = (mail, &mut self.membership) else { return Next::Stays };
        let text = if let Some(news) = mail.downcast_ref::<NumberedEvent>() {
            // Mail sent before it left a room or joined may arrive late.
            if news.room != membership.room.id() || news.number <= membership.seen {
                return Next::Stays;
            }
            membership.seen = news.number;
            &news.text
        } else if let Some(notice) = mail.downcast_ref::<Notice>() {
            if notice.room != membership.room.id() {
                return Next::Stays;
            }
            membership.seen = notice.restart.unwrap_or(membership.seen);
            &notice.text
        } else {
            return Next::Stays;
        };
        if out.queued() + text.bytes() > self.registry.limits.behind_bytes {
            tracing::debug!(nick = self.nick.as_deref(), queued = out.queued(), "a member is too slow");
            add(&self.registry.counters.cut_off);
            return Next::TooSlow;
        }
        add(&self.registry.counters.deliveries);
        self.pass_on(text, out);
        self.look_ahead(out);
        Next::Stays
    }

    fn pass_on(&self, text: &SharedText, out: &mut Outbox<'_>) {
        out.share(match self.speaks {
            Speaks::Lines => text.line(),
            Speaks::Frames => text.frame(),
        });
    }

    /// Sends it a line for it alone.
    pub(super) fn send_line(&self, text: &str, out: &mut Outbox<'_>) {
        match self.speaks {
            Speaks::Frames => send_text(out, text),
            Speaks::Lines => {
                out.write(text.as_bytes());
                out.write(b"\n");
            }
        }
    }
}
