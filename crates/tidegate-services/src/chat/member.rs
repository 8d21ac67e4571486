//! What a member does, whatever it speaks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tidegate::{Mail, Mailbox, Outbox};

use super::command::{self, Command, HELP};
use super::counters::add;
use super::hall::Hall;
use super::limits::ChatLimits;
use super::pace::Pace;
use super::room::{Fault, News, Notice, Room};
use crate::websocket::frame::{SharedText, send_text};

/// What it speaks.
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
    /// It has said goodbye.
    Quits,
    /// It takes too little of what is sent to it.
    TooSlow,
}

/// Somebody who is here, in a room or not.
pub(super) struct Member {
    hall: Arc<Hall>,
    speaks: Speaks,
    nick: Option<Arc<str>>,
    place: Option<Place>,
    pace: Pace,
    /// It has said so much that it is to hear first what was said; see [`Member::takes_more`].
    listens: bool,
}

/// Most messages of a room that one of its speakers has not heard yet: in its outbox they take a quarter of what may
/// wait for it.
fn most_unheard(limits: &ChatLimits) -> u64 {
    const NAMES: usize = 128; // number and nickname before the line
    (limits.behind_bytes / 4 / (limits.line_bytes + NAMES)).max(1) as u64
}

/// Where it is.
struct Place {
    room: Arc<Room>,
    address: Mailbox,
    /// What happened up to here it knows, or was not to know.
    seen: u64,
    /// The number of what it said last.
    said: u64,
}

impl Place {
    /// Messages that it is still to hear until it hears itself.
    fn unheard(&self) -> u64 {
        self.said.saturating_sub(self.seen)
    }
}

impl Member {
    pub(super) fn new(hall: Arc<Hall>, speaks: Speaks) -> Self {
        Self { hall, speaks, nick: None, place: None, pace: Pace::default(), listens: false }
    }

    /// Whether its next line is taken now. What is said comes to its members as mail and only then into their outboxes,
    /// so full outboxes alone hold nobody back: who speaks faster than the room hears waits until its own words have
    /// come back.
    pub(super) fn takes_more(&self) -> bool {
        !self.listens
    }

    /// Sees whether it is to listen, or has listened long enough.
    fn look_ahead(&mut self, out: &Outbox<'_>) {
        let unheard = self.place.as_ref().map_or(0, Place::unheard);
        let behind_bytes = self.hall.limits.behind_bytes;
        let most = most_unheard(&self.hall.limits);
        self.listens = match (self.listens, unheard) {
            (_, 0) => false, // nothing would come that lets it go on
            _ if out.queued() >= behind_bytes / 2 => true,
            (true, unheard) => unheard > most / 2,
            (false, unheard) => unheard >= most,
        };
    }

    /// It has sent a line, without its end.
    pub(super) fn hear(&mut self, line: &str, out: &mut Outbox<'_>) -> Next {
        let limits = &self.hall.limits;
        if !self.pace.allows(limits.lines_per_s, limits.burst, out.now()) {
            self.tell("! that is too fast; this line was not passed on", out);
            return Next::Stays;
        }
        let done = match command::parse(line) {
            Err(why) => Err(why.to_owned()),
            Ok(Command::Quit) => return Next::Quits,
            Ok(command) => self.obey(command, out),
        };
        if let Err(why) = done {
            self.tell(&format!("! {why}"), out);
        }
        Next::Stays
    }

    /// It has sent something that is no text.
    pub(super) fn hear_noise(&self, out: &mut Outbox<'_>) {
        self.tell("! that was no UTF-8", out);
    }

    fn obey(&mut self, command: Command<'_>, out: &mut Outbox<'_>) -> Result<(), String> {
        let text = |fault: Fault| fault.to_string();
        match command {
            Command::Nothing | Command::Quit => Ok(()),
            Command::Say(said) => {
                let (nick, place) = self.whereabouts()?;
                let number = place.room.say(nick, said, &self.hall.limits).map_err(text)?;
                add(&self.hall.counters.messages);
                if let (Some(number), Some(place)) = (number, &mut self.place) {
                    place.said = number;
                    self.look_ahead(out);
                }
                Ok(())
            }
            Command::Join { room, nick } => self.join(room, nick, out).map_err(text),
            Command::Nick(nick) => self.rename(nick, out).map_err(text),
            Command::Leave => {
                self.whereabouts()?;
                self.leave();
                self.tell("= left", out);
                Ok(())
            }
            Command::Who => {
                let census = self.whereabouts()?.1.room.census(self.hall.limits.announced);
                self.tell(&format!("= {} here: {}", census.members, census.nicks.join(" ")), out);
                Ok(())
            }
            Command::Help => {
                self.tell(&format!("= {HELP}"), out);
                Ok(())
            }
        }
    }

    fn whereabouts(&self) -> Result<(&Arc<str>, &Place), String> {
        let here = self.nick.as_ref().zip(self.place.as_ref());
        here.ok_or_else(|| "join a room first: /join ROOM [NICK]".to_owned())
    }

    fn join(&mut self, name: &str, nick: Option<&str>, out: &mut Outbox<'_>) -> Result<(), Fault> {
        self.leave();
        let nick: Arc<str> = match (nick, &self.nick) {
            (Some(nick), _) => nick.into(),
            (None, Some(nick)) => nick.clone(),
            (None, None) => self.hall.guest().into(),
        };
        let address = out.mailbox();
        let (room, welcome) = self.hall.enter(name, &nick, &address)?;
        let (nick, members, last) = (&welcome.nick, welcome.members, welcome.last);
        self.tell(&format!("= joined {name} as {nick}, {members} here, at #{last}"), out);
        for news in &welcome.history {
            self.pass_on(&news.text, out);
        }
        self.nick = Some(welcome.nick);
        add(&self.hall.counters.members);
        self.place = Some(Place { room, address, seen: last, said: last });
        Ok(())
    }

    fn rename(&mut self, new: &str, out: &mut Outbox<'_>) -> Result<(), Fault> {
        let nick = match (&self.nick, &self.place) {
            (Some(old), _) if &**old == new => old.clone(),
            (Some(old), Some(place)) => place.room.rename(old, new, &self.hall.limits)?,
            _ => new.into(),
        };
        self.tell(&format!("= you are {nick}"), out);
        self.nick = Some(nick);
        Ok(())
    }

    /// It goes out of its room, if it is in one.
    pub(super) fn leave(&mut self) {
        if let (Some(nick), Some(place)) = (&self.nick, self.place.take()) {
            place.room.leave(nick, &place.address, &self.hall.limits);
            self.hall.counters.members.fetch_sub(1, Relaxed);
        }
    }

    /// Something has happened in its room, or with it.
    pub(super) fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Next {
        let (Mail::Group(mail), Some(place)) = (mail, &mut self.place) else { return Next::Stays };
        let text = if let Some(news) = mail.downcast_ref::<News>() {
            // Mail from before it left a room, or came in, may still have been under way.
            if news.room != place.room.id() || news.number <= place.seen {
                return Next::Stays;
            }
            place.seen = news.number;
            &news.text
        } else if let Some(notice) = mail.downcast_ref::<Notice>() {
            if notice.room != place.room.id() {
                return Next::Stays;
            }
            place.seen = notice.restart.unwrap_or(place.seen);
            &notice.text
        } else {
            return Next::Stays;
        };
        if out.queued() + text.bytes() > self.hall.limits.behind_bytes {
            tracing::debug!(nick = self.nick.as_deref(), queued = out.queued(), "a member is too slow");
            add(&self.hall.counters.cut_off);
            return Next::TooSlow;
        }
        add(&self.hall.counters.deliveries);
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

    /// Tells it something that is for it alone.
    pub(super) fn tell(&self, text: &str, out: &mut Outbox<'_>) {
        match self.speaks {
            Speaks::Frames => send_text(out, text),
            Speaks::Lines => {
                out.write(text.as_bytes());
                out.write(b"\n");
            }
        }
    }
}
