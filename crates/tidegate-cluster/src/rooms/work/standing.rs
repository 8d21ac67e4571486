//! Whether this node is cut off from the others, and its return.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::connection::State;

use super::log::{ANSWER, Log};
use super::state::BridgeState;

/// How long after an attempt to return the next one is made.
const RETRY: Duration = Duration::from_millis(500);

/// The state of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Whole,
    /// Cut off since the first, and trying to return from the second on.
    Cut(Instant, Instant),
    /// Cut off since the first, returning since the second; what came meanwhile is still to be read.
    Returning(Instant, Instant),
}

/// The state of this node, and what that is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    how: NodeState,
    /// When something that we said to everybody came back to us.
    echoed: Instant,
    /// When it was looked at last.
    looked: Instant,
    /// Place in the stream when it was cut off.
    seen: u64,
}

impl Standing {
    pub(super) fn whole(now: Instant) -> Self {
        Self { how: NodeState::Whole, echoed: now, looked: now, seen: 0 }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.how == NodeState::Whole
    }

    /// Whether messages may go out: what returns says what it could not say.
    pub(super) fn may_speak(&self) -> bool {
        !matches!(self.how, NodeState::Cut(..))
    }

    /// We hear ourselves.
    pub(super) fn echo(&mut self, now: Instant) {
        self.echoed = now;
    }
}

impl BridgeState {
    /// Looks after this node and the others.
    pub(super) async fn look(&mut self, now: Instant) {
        // Who stood still itself blames nobody for silence.
        if now.saturating_duration_since(self.standing.looked) > self.options.timeout / 2 {
            self.excuse(now);
        }
        self.standing.looked = now;
        self.excuse_what_is_held_back(now);
        let line = &self.client.connection_state();
        // A connection that was lost and is there again may have forgotten what we read from.
        let connects = self.client.statistics().connects.load(Relaxed);
        if std::mem::replace(&mut self.connects, connects) != connects && self.standing.is_whole() {
            self.log = None;
        }
        match self.standing.how {
            NodeState::Whole => self.look_whole(line, now).await,
            NodeState::Cut(_, at) if *line != State::Connected || now < at => {}
            NodeState::Cut(since, _) => self.return_from(since, now).await,
            NodeState::Returning(since, began) => {
                self.verify_what_was_heard(now).await;
                self.look_returning(line, since, began, now);
            }
        }
        if *line == State::Connected {
            self.talk(now).await;
        }
        self.tidy();
    }

    fn excuse(&mut self, now: Instant) {
        self.standing.echoed = now;
        self.heard_of.1 = now;
        self.peers.excuse(now);
    }

    async fn look_whole(&mut self, line: &State, now: Instant) {
        if *line == State::Connected
            && self.log.is_none()
            && let Err(why) = self.reopen().await
        {
            return self.cut_off(&why, now);
        }
        self.verify_what_was_heard(now).await;
        match self.trouble(line, now) {
            Some(why) => self.cut_off(&why, now),
            None => self.lose_silent(now),
        }
    }

    /// Others said that the stream is longer than what came: the broker knows how long it is, and anybody can say so.
    async fn verify_what_was_heard(&mut self, now: Instant) {
        let (claimed, since) = self.heard_of;
        if claimed <= self.accounted_for() || now.saturating_duration_since(since) <= self.options.timeout {
            return;
        }
        let Some(log) = &self.log else { return };
        let Ok(Ok(end)) = tokio::time::timeout(ANSWER, log.end_now()).await else { return };
        if end < claimed {
            self.heard_of = (end, since);
            self.reject(&format!("a node has come to place {claimed} of a stream that ends at {end}"));
        }
    }

    /// Why this node has to be taken for cut off.
    fn trouble(&self, line: &State, now: Instant) -> Option<String> {
        let timeout = self.options.timeout;
        let too_long = |since: Instant| now.saturating_duration_since(since) > timeout;
        let seconds = timeout.as_secs_f64();
        if *line != State::Connected {
            return Some("the connection to the broker is lost".into());
        }
        if too_long(self.standing.echoed) {
            return Some(format!("the broker has passed nothing on for {seconds:.1} s"));
        }
        if self.stuck_since().is_some_and(too_long) {
            let why = self.refusal.as_deref().unwrap_or("it does not answer");
            return Some(format!("the broker has not taken what was said for {seconds:.1} s: {why}"));
        }
        if self.heard_of.0 > self.accounted_for() && too_long(self.heard_of.1) {
            return Some(format!("nothing has come from the stream for {seconds:.1} s"));
        }
        None
    }

    fn cut_off(&mut self, why: &str, now: Instant) {
        self.standing.how = NodeState::Cut(now, now + RETRY);
        self.standing.seen = self.seen;
        self.log = None;
        self.federation.cut_off();
        self.report(
            "cut-off",
            &format!(
                "cut off from the other nodes: {why}; members are notified, and their messages are refused"
            ),
        );
    }

    /// Opens the stream where it was left.
    async fn reopen(&mut self) -> Result<(), String> {
        let log = Log::open(&self.context, self.options.kept, Some((self.made, self.seen))).await?;
        let end = log.end;
        let gone = log.gone;
        if log.made != self.made || end < self.seen {
            self.made = log.made;
            self.begin_anew();
            self.report(
                "stream-lost",
                "the broker has lost what was said before: the stream of rooms is a new one",
            );
        }
        self.seen = self.seen.max(gone);
        self.heard_of = (end, Instant::now());
        self.log = Some(log);
        Ok(())
    }

    async fn return_from(&mut self, since: Instant, now: Instant) {
        match self.reopen().await {
            Ok(()) => {
                let now = Instant::now(); // that may have taken a while
                self.standing.how = NodeState::Returning(since, now);
                self.excuse(now);
                self.hurry(now);
                self.word.hail();
            }
            Err(why) => {
                tracing::info!(why, "still cut off");
                self.standing.how = NodeState::Cut(since, now + RETRY);
            }
        }
    }

    fn look_returning(&mut self, line: &State, since: Instant, began: Instant, now: Instant) {
        let is_late = now.saturating_duration_since(began) > self.options.timeout;
        let connected = *line == State::Connected;
        if connected && self.has_read_all() && self.stuck_since().is_none() {
            self.standing.how = NodeState::Whole;
            self.heard_of = (self.seen, now);
            self.excuse(now);
            self.federation.is_back();
            let (away, came) = (now - since, self.seen.saturating_sub(self.standing.seen));
            let text = format!(
                "back after {:.1} s: {came} messages of all rooms came meanwhile",
                away.as_secs_f64()
            );
            return self.report("back", &text);
        }
        let is_stuck = is_late && self.trouble(line, now).is_some();
        if !connected || self.log.is_none() || is_stuck {
            self.standing.how = NodeState::Cut(since, now + RETRY);
            self.log = None;
        }
    }
}
