//! What becomes of the part of an agent that is lost: others take it over, and the result says what of it nobody did.

use std::time::{Duration, Instant};

use tidegate_load::{Amount, Loss};

use super::member::Participant;
use super::{Lead, OnLost};
use crate::wire::{AgentReply, RunMessage};

impl Lead<'_> {
    /// Begins the account of a member that is lost or ended early, and has its part given to others if that is the
    /// setting.
    pub(super) fn account_for(&mut self, at: usize) {
        let member = &self.members[at];
        let loss = Loss {
            heard_s: self.since_the_start(member.heard),
            noticed_s: self.since_the_start(Instant::now()),
            connections: member.part.plan(self.plan).map_or(0, |plan| plan.connections),
            reported_requests: if member.lost { member.reported_requests } else { 0 },
            ..Loss::default()
        };
        // What somebody did of a number of requests without a schedule cannot be distinguished from the rest.
        let can_be_shared = member.lost || !self.plan.begins_at_once();
        self.members[at].loss = Some(loss);
        if self.options.on_lost == OnLost::Redistribute && can_be_shared && !self.is_stopped() {
            self.unshared.push(at);
        }
    }

    /// Gives the parts of those that were lost to others, and has those begin that are ready.
    pub(super) async fn take_over(&mut self) {
        for lost in std::mem::take(&mut self.unshared) {
            self.share(lost).await;
        }
        self.start_those_that_took_over().await;
    }

    /// When the load of a time is over; none for a number of requests.
    fn over_at(&self) -> Option<Instant> {
        match self.plan.amount {
            Amount::Time(time) => self.began.map(|began| began + self.plan.warm_up + time),
            Amount::Requests(_) => None,
        }
    }

    /// Gives one part to others, as evenly as it can be.
    async fn share(&mut self, lost: usize) {
        if self.is_stopped() || self.over_at().is_some_and(|over| self.soon() >= over) {
            return; // the account says that nobody did it
        }
        let able = self.able();
        let parts = self.members[lost].part.shared(self.plan, able.len());
        for (&who, part) in able.iter().zip(parts) {
            let share = self.members[who].asked;
            self.members[who].asked += 1;
            let member = self.members[who].with_part_of(lost, share, part);
            let why = match self.ask(&member.id, &self.work(&member)).await {
                Ok(AgentReply::Taken) => {
                    self.seconds.join();
                    self.members.push(Participant { heard: Instant::now(), ..member });
                    continue;
                }
                Ok(AgentReply::Refused { why }) => format!("refuses: {why}"),
                Ok(AgentReply::Clock(_)) => "answers something else".to_owned(),
                Err(why) => {
                    // It may have taken it, and only its answer was lost.
                    self.say(&RunMessage::Dismiss { agent: member.id.clone(), share }).await;
                    why
                }
            };
            let (name, of) = (&member.name, &self.members[lost].name);
            let what = format!("agent {name} does not take over a part of agent {of}: {why}");
            self.trouble(what).await;
        }
        self.looked = Instant::now();
    }

    /// An agent each that can take more: all of its parts are well.
    fn able(&self) -> Vec<usize> {
        let is_well =
            |m: &Participant| m.loss.is_none() && (m.is_over() || m.heard.elapsed() < self.options.timeout);
        let agents = self.members.iter().enumerate().filter(|(_, m)| m.share == 0);
        let well = |id: &str| self.members.iter().filter(|m| m.id == id).all(is_well);
        agents.filter(|(_, m)| well(&m.id)).map(|(at, _)| at).collect()
    }

    /// Has those begin that took over the part of one that is lost, once all of them are ready.
    async fn start_those_that_took_over(&mut self) {
        let Some(began) = self.began else { return };
        for lost in 0..self.members.len() {
            let waits = |m: &Participant| m.took_over == Some(lost) && m.starts_at.is_none() && !m.is_over();
            let who: Vec<usize> = (0..self.members.len()).filter(|&at| waits(&self.members[at])).collect();
            if who.is_empty() || !who.iter().all(|&at| self.members[at].ready) {
                continue;
            }
            let (at, offset) = when(self.soon(), began + self.plan.warm_up);
            for &who in &who {
                self.members[who].offset_s = offset.as_secs_f64();
                self.seconds.expect(who, offset.as_secs());
            }
            self.start_all(who, at).await;
        }
    }

    /// Completes the accounts: who took over, and what nobody did until the load ended. `elapsed_s` is the length of
    /// its window.
    pub(super) fn complete_accounts(&mut self, elapsed_s: f64) {
        let from = self.plan.warm_up;
        let until = from.saturating_add(Duration::try_from_secs_f64(elapsed_s).unwrap_or(Duration::MAX));
        for lost in 0..self.members.len() {
            let heirs = || self.members.iter().filter(|m| m.took_over == Some(lost) && m.starts_at.is_some());
            let by = heirs().map(|m| m.name.clone()).collect();
            let since = heirs().filter_map(|m| self.since_the_start(m.starts_at?)).reduce(f64::max);
            // What an heir lost is in the account of the one it had it from.
            let is_first = self.members[lost].took_over.is_none();
            let due = self.members[lost].part.plan(self.plan).and_then(|plan| plan.due_between(from, until));
            let missing = due.filter(|_| is_first).map(|due| due.saturating_sub(self.done(lost)));
            let member = &mut self.members[lost];
            let Some(loss) = &mut member.loss else { continue };
            loss.taken_over_by = by;
            loss.taken_over_s = since.filter(|&s| s > 0.0);
            loss.missing_requests = missing;
            self.troubles.push(loss_text(&member.name, loss));
        }
    }

    /// Requests of a member's part of the schedule that are in the result, whichever agent did them.
    fn done(&self, at: usize) -> u64 {
        let own =
            self.members[at].report.as_ref().and_then(|r| r.open_loop.as_ref()).map_or(0, |o| o.scheduled);
        let heirs = (0..self.members.len()).filter(|&heir| self.members[heir].took_over == Some(at));
        own + heirs.map(|heir| self.done(heir)).sum::<u64>()
    }

    /// Seconds from the common start to a moment, less than 0 before it; none if there was no start.
    pub(super) fn since_the_start(&self, then: Instant) -> Option<f64> {
        let began = self.began?;
        let before = began.saturating_duration_since(then).as_secs_f64();
        Some(then.saturating_duration_since(began).as_secs_f64() - before)
    }
}

/// An account in words.
fn loss_text(name: &str, loss: &Loss) -> String {
    let when = match loss.heard_s {
        Some(s) => format!("agent {name} was heard last {s:.1} s after the start"),
        None => format!("agent {name} was lost before the start"),
    };
    let heirs = match (loss.taken_over_by.as_slice(), loss.taken_over_s) {
        ([], _) => "nobody took its part over".to_owned(),
        (by, Some(s)) => format!("{} took its part over {s:.1} s after the start", by.join(" and ")),
        (by, None) => format!("{} took its part over before the start", by.join(" and ")),
    };
    let missing = match loss.missing_requests {
        Some(missing) => format!("; {missing} requests of the schedule are in nobody's result"),
        None if loss.reported_requests > 0 => {
            format!("; {} requests it reported are in nobody's result", loss.reported_requests)
        }
        None => String::new(),
    };
    format!("{when}: {heirs}{missing}")
}

/// When they begin that take over, and how long after the beginning of the window theirs does: whole seconds, so that
/// theirs are seconds of the whole.
fn when(soon: Instant, window: Instant) -> (Instant, Duration) {
    if soon <= window {
        return (soon, Duration::ZERO);
    }
    let offset = Duration::from_secs((soon - window).as_secs_f64().ceil() as u64);
    (window + offset, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_take_over_begin_with_a_second_of_the_whole() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        // In the warm-up there are no seconds yet.
        assert_eq!(when(at(700), at(1_000)), (at(700), Duration::ZERO));
        assert_eq!(when(at(1_001), at(1_000)), (at(2_000), Duration::from_secs(1)));
        assert_eq!(when(at(4_700), at(1_000)), (at(5_000), Duration::from_secs(4)));
    }

    #[test]
    fn an_account_says_when_who_and_what_is_missing() {
        let loss = Loss { heard_s: Some(2.44), missing_requests: Some(41), ..Loss::default() };
        assert_eq!(
            loss_text("a", &loss),
            "agent a was heard last 2.4 s after the start: nobody took its part over; 41 requests of the schedule are in \
             nobody's result"
        );
        let loss = Loss { taken_over_by: vec!["b".into(), "c".into()], taken_over_s: Some(5.0), ..loss };
        assert!(loss_text("a", &loss).contains(": b and c took its part over 5.0 s after the start; 41 "));
        let loss = Loss { reported_requests: 9, taken_over_by: vec!["b".into()], ..Loss::default() };
        assert_eq!(
            loss_text("a", &loss),
            "agent a was lost before the start: b took its part over before the start; 9 requests it reported are in \
             nobody's result"
        );
    }
}
