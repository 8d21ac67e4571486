//! A chat of lines in one room, with timers: who says nothing is reminded and then disconnected, and `/in` says a line
//! later. `cargo run --release --bin chat -- --listen 127.0.0.1:7000`, then `nc 127.0.0.1 7000`, twice.
//!
//! `/nick NAME` changes the name, `/in SECONDS TEXT` says it later, `/quit` leaves. `--idle SECONDS`, first, is the
//! silence until a reminder; after as much again the connection is closed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tidegate::{
    CloseReason, Consumed, Flow, Group, Mail, Mailbox, Outbox, Peer, Recipient, Refusal, Service, ServiceOptions, Session,
};

/// The longest `/in`, and what `--idle` is by default.
const LONGEST_DELAY: u64 = 3600;
const IDLE: u64 = 300;
/// Lines that one member may have said for later.
const MOST_DELAYED: usize = 16;
/// The keys of a member's timers; a delayed line has the number of its place.
const REMIND: u64 = 1 << 32;
const LEAVE: u64 = REMIND + 1;

struct Chat {
    room: Arc<Mutex<Group>>,
    guests: AtomicU64,
    idle: Duration,
}

struct Member {
    room: Arc<Mutex<Group>>,
    mailbox: Option<Mailbox<()>>,
    nick: String,
    idle: Duration,
    delayed: [Option<String>; MOST_DELAYED],
}

impl Service for Chat {
    type Session = Member;

    fn open(&self, _: &Peer) -> Result<Member, Refusal> {
        let nick = format!("guest{}", self.guests.fetch_add(1, Relaxed) + 1);
        let (room, idle) = (self.room.clone(), self.idle);
        Ok(Member { room, mailbox: None, nick, idle, delayed: Default::default() })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true) // with a greeting
    }
}

impl Recipient for Member {
    type Message = (); // all mail is that of the group
}

impl Member {
    fn room<T>(&self, act: impl FnOnce(&mut Group) -> T) -> T {
        act(&mut self.room.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says a line to all; `false` if there are more lines under way than the policy allows, and nobody gets it.
    fn say(&self, line: String) -> bool {
        self.room(|room| room.send(Arc::new(line + "\n")).is_ok())
    }

    /// Does what a line asks for; the error is for its author alone.
    fn line(&mut self, line: &str, out: &mut Outbox<'_>) -> Result<Flow, &'static str> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let said = match word {
            "" => true,
            "/quit" => return Ok(Flow::Close),
            "/nick" => {
                if rest.is_empty() || rest.len() > 32 || !rest.chars().all(char::is_alphanumeric) {
                    return Err("a name has 1 to 32 letters and digits: /nick NAME");
                }
                let before = std::mem::replace(&mut self.nick, rest.into());
                self.say(format!("* {before} is now {rest}"))
            }
            "/in" => {
                let (seconds, text) = rest.split_once(' ').unwrap_or_default();
                let seconds = seconds.parse().ok().filter(|&seconds: &u64| seconds <= LONGEST_DELAY);
                let seconds =
                    seconds.ok_or("say when, in at most 3600 seconds, and what: /in SECONDS TEXT")?;
                let place = self.delayed.iter().position(Option::is_none);
                let place = place.ok_or("16 lines of yours are to be said later: wait for one")?;
                self.delayed[place] = Some(text.into());
                out.set_timer(place as u64, out.now() + Duration::from_secs(seconds));
                true
            }
            _ if word.starts_with('/') => return Err("there are /nick NAME, /in SECONDS TEXT and /quit"),
            _ => self.say(format!("{}: {line}", self.nick)),
        };
        said.then_some(Flow::Continue).ok_or("too much is said: say it again")
    }
}

impl Session for Member {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mailbox = self.mailbox.insert(Self::mailbox(out)).clone();
        let here = self.room(|room| {
            room.join(&mailbox);
            room.len()
        });
        out.write(format!("* you are {}, of {here} here\n", self.nick).as_bytes());
        out.set_timer(REMIND, out.now() + self.idle);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Consumed::bytes(0) };
        out.set_timer(REMIND, out.now() + self.idle); // in place of the one before
        out.cancel_timer(LEAVE);
        let line = String::from_utf8_lossy(&input[..end]);
        let flow = self.line(line.trim(), out).unwrap_or_else(|why| {
            out.write(format!("* {why}\n").as_bytes());
            Flow::Continue
        });
        Consumed::bytes(end + 1).then(flow).again()
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Group(_) if out.is_full() => return Flow::Abort, // reads slower than the others talk
            Mail::Group(line) => out.write(line.downcast_ref::<String>().map_or(&[], |line| line.as_bytes())),
            Mail::KeyedTimer(REMIND) => {
                out.write(format!("* say something within {} s, or leave\n", self.idle.as_secs()).as_bytes());
                out.set_timer(LEAVE, out.now() + self.idle);
            }
            Mail::KeyedTimer(LEAVE) => {
                out.write(b"* you said nothing: goodbye\n");
                return Flow::Close;
            }
            Mail::KeyedTimer(place) => {
                let text = self.delayed.get_mut(place as usize).and_then(Option::take);
                if !text.is_none_or(|text| self.say(format!("{}: {text}", self.nick))) {
                    out.write(b"* too much is said: a delayed line is lost\n");
                }
            }
            _ => {}
        }
        Flow::Continue
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"* a line without end: goodbye\n");
        Flow::Linger
    }

    fn on_close(&mut self, _: CloseReason) {
        if let Some(mailbox) = self.mailbox.take() {
            self.room(|room| room.leave(&mailbox));
            self.say(format!("* {} has left", self.nick));
        }
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().peekable();
    let program = arguments.next();
    let mut idle = IDLE;
    if arguments.next_if(|option| option == "--idle").is_some() {
        let seconds = arguments.next().and_then(|text| text.parse().ok());
        idle = seconds
            .filter(|seconds| (1..=LONGEST_DELAY).contains(seconds))
            .context("--idle: 1 to 3600 seconds")?;
    }
    let chat = Chat { room: Arc::default(), guests: AtomicU64::new(0), idle: Duration::from_secs(idle) };
    tidegate_apps::serve_with(chat, program.into_iter().chain(arguments))
}
