//! The bridge at work: what comes from the stream goes to the rooms, and what waits in rooms gets its place in the
//! stream.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, ContextBuilder, Message};
use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use tidegate_services::chat::{Batch, Batched, Federation};
use tokio::sync::mpsc;

use super::log::{ANSWER, Log};
use super::order::{Due, RoomOrder};
use super::peers::Peers;
use super::standing::Standing;
use super::wire::{self as ours, Said};
use super::{BridgeError, BridgeOptions, EventReporter, LAST_WORDS, Wake};
use crate::seldom::Seldom;
use crate::text::printable;
use crate::wire;

/// How often the bridge looks after itself and the other nodes.
const LOOK: Duration = Duration::from_millis(50);
/// When it looks for something to say if nothing is due.
const SELDOM: Duration = Duration::from_secs(3600);
/// Answers of the broker that wait to be read; a room has at most a few.
const ANSWERS: usize = 1_024;
/// Rooms whose place is remembered; those that nobody needs are forgotten above that.
const ORDERS: usize = 10_000;

/// What the broker answered to a message.
struct BrokerAnswer {
    room: Arc<str>,
    serial: u64,
    what: Result<u64, PublishErrorKind>,
}

/// Something that has its place, and of which members have not received everything yet, because their queues are full.
pub(super) struct PendingBatch {
    pub(super) room: Arc<str>,
    pub(super) place: u64,
    pub(super) batch: Batch,
    pub(super) batched: Batched,
    pub(super) delivered: usize,
    /// When it is tried again.
    pub(super) again: Instant,
}

pub(super) struct BridgeState {
    pub(super) options: BridgeOptions,
    pub(super) federation: Federation,
    wake: Wake,
    report: EventReporter,
    /// This node; nobody else has the number.
    pub(super) node: u64,
    serial: u64,
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) log: Option<Log>,
    /// While there is something, nothing more is read from the log.
    pub(super) pending: Option<PendingBatch>,
    /// How often the client has connected, when it was looked at last.
    pub(super) connects: u64,
    /// Which stream was read, and how far.
    pub(super) made: i64,
    pub(super) seen: u64,
    /// How far the stream is known to be, and when it was not so far here.
    pub(super) heard_of: (u64, Instant),
    pub(super) orders: HashMap<Arc<str>, RoomOrder>,
    /// Rooms in which something waits or is under way.
    pub(super) active: BTreeSet<Arc<str>>,
    /// The room for which the broker was waited for last.
    waited_for: Option<Arc<str>>,
    pub(super) standing: Standing,
    pub(super) peers: Peers,
    tells: Subscriber,
    answers: mpsc::Sender<BrokerAnswer>,
    answered: mpsc::Receiver<BrokerAnswer>,
    /// Why the broker did not take something lately.
    pub(super) refusal: Option<String>,
    pub(super) word: super::nodes::Announcements,
    /// What was not believed, and when that is said.
    pub(super) odd: Seldom,
    /// When it is said that nodes come and go.
    pub(super) news: Seldom,
}

impl BridgeState {
    /// Connects, and reads everything that is kept.
    pub(super) async fn open(
        options: BridgeOptions,
        federation: Federation,
        wake: Wake,
        report: EventReporter,
    ) -> Result<Self, BridgeError> {
        let client = options.access.connect(&format!("tidegate chat {}", options.name)).await?;
        let needs = 2 * federation.waiting_bytes() + 4096; // JSON doubles a quote at most
        let takes = client.server_info().max_payload;
        if takes < needs {
            return Err(BridgeError::Payload { takes, needs });
        }
        let url = options.access.shown();
        let failed = |e: &dyn fmt::Display| BridgeError::Stream { url: url.clone(), why: e.to_string() };
        let context = ContextBuilder::new().timeout(ANSWER).ack_timeout(ANSWER).build(client.clone());
        let tells = client.subscribe(ours::NODES).await.map_err(|e| failed(&e))?;
        let log = Log::open(&context, options.kept, None).await.map_err(|e| failed(&e))?;
        let (answers, answered) = mpsc::channel(ANSWERS);
        let now = Instant::now();
        let mut state = Self {
            federation,
            wake,
            report,
            node: fastrand::u64(1..),
            serial: 0,
            connects: client.statistics().connects.load(Relaxed),
            client,
            context,
            made: log.made,
            seen: log.gone,
            heard_of: (log.end, now),
            orders: HashMap::new(),
            active: BTreeSet::new(),
            waited_for: None,
            pending: None,
            standing: Standing::whole(now),
            peers: Peers::default(),
            tells,
            answers,
            answered,
            refusal: None,
            word: super::nodes::Announcements::new(now),
            odd: Seldom::new(5, Duration::from_secs(10)),
            news: Seldom::new(20, Duration::from_secs(1)),
            log: Some(log),
            options,
        };
        state.read_all().await.map_err(|e| failed(&e))?;
        let text = format!(
            "node {} shares its rooms over {}: {} are known",
            state.options.name,
            state.options.access.shown(),
            state.orders.len()
        );
        state.report("bridge", &text);
        Ok(state)
    }

    pub(super) fn report(&mut self, event: &str, text: &str) {
        (self.report)(event, &printable(text));
    }

    /// Reads to the end of the stream, so that nobody who joins misses history.
    async fn read_all(&mut self) -> Result<(), String> {
        while let Some(log) = self.log.as_mut().filter(|log| log.left > 0) {
            let message = tokio::time::timeout(self.options.timeout, log.next()).await;
            let message = message.map_err(|_| "it has stopped to say what is kept".to_owned())?;
            self.take(message?);
            while let Some(pending) = self.pending.take() {
                tokio::time::sleep_until(pending.again.into()).await;
                self.go_on_telling(pending);
            }
        }
        Ok(())
    }

    /// Carries messages until it is to stop, and what was said last has its place.
    pub(super) async fn work(mut self, stop: &AtomicBool) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut last_words: Option<Instant> = None;
        loop {
            for room in self.federation.to_attend() {
                self.orders.entry(room.clone()).or_default().wanted = true;
                self.active.insert(room);
            }
            let mut due = self.say_what_is_due().await;
            if let Some(pending) = self.pending.take_if(|pending| Instant::now() >= pending.again) {
                self.go_on_telling(pending);
            }
            if let Some(pending) = &self.pending {
                due = due.min(pending.again);
            }
            if stop.load(Relaxed) {
                let until = *last_words.get_or_insert_with(|| Instant::now() + LAST_WORDS);
                let is_done = self.active.is_empty() && self.federation.is_idle();
                if is_done || !self.standing.is_whole() || Instant::now() >= until {
                    return self.leave().await;
                }
            }
            tokio::select! {
                message = next_of(&mut self.log), if self.pending.is_none() => match message {
                    Ok(message) => self.take(message),
                    Err(why) => {
                        tracing::info!(why, "the stream has to be opened again");
                        self.log = None;
                    }
                },
                Some(message) = self.tells.next() => self.hear(&message.payload),
                Some(answer) = self.answered.recv() => self.answered(answer),
                () = self.wake.0.notified() => {}
                () = tokio::time::sleep_until(due.into()) => {}
                _ = look.tick() => self.look(Instant::now()).await,
            }
        }
    }

    /// Says in all rooms what is due, and returns when something is due next. Ends once it had to wait for an answer of
    /// the broker, so that this node is not silent for the sum of all rooms; the room after that one is the first next
    /// time.
    async fn say_what_is_due(&mut self) -> Instant {
        let mut next = Instant::now() + SELDOM;
        if self.log.is_none() || !self.standing.may_speak() {
            return next;
        }
        let mut rooms: Vec<_> = self.active.iter().cloned().collect();
        let begin = self.waited_for.as_ref().map_or(0, |last| rooms.partition_point(|room| room <= last));
        rooms.rotate_left(begin);
        for room in rooms {
            if self.pending.as_ref().is_some_and(|pending| pending.room == room) {
                continue; // its numbers are not known until that is sent
            }
            let Some(at) = self.say_in(&room).await else {
                self.waited_for = Some(room);
                return Instant::now();
            };
            next = next.min(at);
            if self.orders.get(&room).is_none_or(RoomOrder::is_idle) {
                self.active.remove(&room);
            }
        }
        next
    }

    /// Says in a room what is due, and returns when something is due next; nothing if it had to wait for the broker.
    async fn say_in(&mut self, room: &Arc<str>) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let Some(order) = self.orders.get_mut(room) else { return Some(now + SELDOM) };
            match order.due(now) {
                Due::Rest(at) => return Some(at.unwrap_or(now + SELDOM)),
                Due::Ask => {
                    self.ask(room).await;
                    return None;
                }
                Due::Offer => {
                    if self.is_to_be_asked(room) {
                        self.ask(room).await;
                        return None;
                    }
                    self.offer(room, now);
                }
                Due::Say(serial, message) => {
                    let message = message.to_vec();
                    let after = order.last;
                    if let Err(why) = self.say(room, serial, after, message).await {
                        self.refusal = Some(why);
                        return None;
                    }
                }
            }
        }
    }

    /// Whether the place of a room in the registry was needed for another in between: its numbers are with the broker
    /// only.
    fn is_to_be_asked(&mut self, room: &Arc<str>) -> bool {
        !self.federation.knows(room) && self.order(room).is_to_be_asked()
    }

    /// Puts together what waits in a room.
    fn offer(&mut self, room: &Arc<str>, now: Instant) {
        let Some(order) = self.orders.get_mut(room) else { return };
        let Some(batch) = self.federation.offer(room) else { return order.rest() };
        self.serial += 1;
        let after = order.last;
        let all = batch.all.into_iter().map(|happened| (happened.said, happened.text)).collect();
        let said = Said { node: self.node, serial: self.serial, after, first: batch.first, all };
        match wire::encode(&said) {
            Ok(message) => order.begin(self.serial, message, now),
            Err(e) => self.reject(&e.to_string()),
        }
    }

    async fn say(&self, room: &Arc<str>, serial: u64, after: u64, message: Vec<u8>) -> Result<(), String> {
        let publish = PublishMessage::build().payload(message.into()).expected_last_subject_sequence(after);
        let (room, answers) = (room.clone(), self.answers.clone());
        let answer = self.context.send_publish(ours::of_room(&room), publish).await;
        let answer = answer.map_err(|e| e.to_string())?;
        tokio::spawn(async move {
            let what = answer.await.map(|ack| ack.sequence).map_err(|e| e.kind());
            let _ = answers.send(BrokerAnswer { room, serial, what }).await; // nobody reads it if the bridge has ended
        });
        Ok(())
    }

    fn answered(&mut self, answer: BrokerAnswer) {
        match answer.what {
            Ok(place) => {
                self.refusal = None;
                self.hear_of(place);
            }
            Err(PublishErrorKind::WrongLastSequence) => {
                if let Some(order) = self.orders.get_mut(&answer.room) {
                    order.dispute(answer.serial);
                }
            }
            Err(kind) => self.refusal = Some(kind.to_string()),
        }
    }

    /// Asks what came last in a room whose place here does not fit what the broker says.
    async fn ask(&mut self, room: &Arc<str>) {
        let Some(log) = &self.log else { return };
        match log.last_of(&ours::of_room(room)).await {
            Ok(None) => self.order(room).move_to(0),
            // It is on its way.
            Ok(Some(last)) if last.place > self.seen => {
                self.hear_of(last.place);
                self.order(room).ask_later(Instant::now());
            }
            Ok(Some(last)) if self.federation.knows(room) => self.order(room).move_to(last.place),
            Ok(Some(_)) if self.pending.is_some() => self.order(room).ask_later(Instant::now()),
            Ok(Some(last)) => self.receive(room, last.place, &last.payload),
            Err(e) => {
                self.refusal = Some(e);
                self.order(room).ask_later(Instant::now());
            }
        }
    }

    pub(super) fn order(&mut self, room: &Arc<str>) -> &mut RoomOrder {
        self.orders.entry(room.clone()).or_default()
    }

    /// The stream is at least so long.
    pub(super) fn hear_of(&mut self, place: u64) {
        if place > self.heard_of.0 {
            // What was known of has arrived: only from now on is something missing.
            let since =
                if self.accounted_for() >= self.heard_of.0 { Instant::now() } else { self.heard_of.1 };
            self.heard_of = (place, since);
        }
    }

    /// Whether all that is kept has arrived, and was sent to members.
    pub(super) fn has_read_all(&self) -> bool {
        self.pending.is_none() && self.log.as_ref().is_some_and(|log| log.left == 0)
    }

    /// Until where everything has come or is deleted. Not what is read on from: a replica may know less than the broker
    /// that was asked.
    pub(super) fn accounted_for(&self) -> u64 {
        let end = self.log.as_ref().filter(|_| self.has_read_all()).map_or(0, |log| log.end);
        self.seen.max(end)
    }

    pub(super) fn is_read_to(&mut self, place: u64) {
        self.seen = self.seen.max(place);
        if self.accounted_for() < self.heard_of.0 {
            self.heard_of.1 = Instant::now(); // it goes on
        }
    }

    /// The stream that is read now is another one: nothing of the order is left but the numbers.
    pub(super) fn begin_anew(&mut self) {
        self.seen = 0;
        self.heard_of = (0, Instant::now());
        if let Some(pending) = &mut self.pending {
            pending.place = 0; // it had its place in the other
        }
        self.orders.values_mut().for_each(|order| order.move_to(0));
    }

    /// What has come is not read while members have to be waited for: that is not the broker's fault.
    pub(super) fn excuse_what_is_held_back(&mut self, now: Instant) {
        if self.pending.is_none() {
            return;
        }
        self.heard_of.1 = now;
        for room in &self.active {
            if let Some(order) = self.orders.get_mut(room) {
                order.excuse(now);
            }
        }
    }

    /// What is under way is said again at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.orders.values_mut().for_each(|order| order.hurry(now));
    }

    /// Since when the room waits that has waited longest for its place.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.active.iter().filter_map(|room| self.orders.get(room)?.stuck_since()).min()
    }

    /// Forgets the places of rooms that nobody here needs, if there are too many.
    pub(super) fn tidy(&mut self) {
        if self.orders.len() > ORDERS {
            let (active, federation) = (&self.active, &self.federation);
            self.orders.retain(|room, _| active.contains(room) || federation.knows(room));
        }
    }
}

async fn next_of(log: &mut Option<Log>) -> Result<Message, String> {
    match log {
        Some(log) => log.next().await,
        None => std::future::pending().await,
    }
}
