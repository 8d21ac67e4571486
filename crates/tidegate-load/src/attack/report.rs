//! The result of an attack.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::session::EndedBy;
use super::{Attack, AttackKind};

/// How the server reacted to the attack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttackReport {
    /// Version of this format: 1.
    pub format: u32,
    /// The target.
    pub target: String,
    /// The I/O model of the attackers.
    pub model: String,
    /// Duration in seconds.
    pub duration_s: f64,
    /// One entry for each kind of connection.
    pub kinds: Vec<KindReport>,
    /// Why the first failed connect failed, and the remedy.
    #[serde(default)]
    pub first_error: Option<String>,
}

/// How the server treated the connections of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// Its name.
    pub kind: String,
    /// Connections kept open; for resets, those made per second.
    pub wanted: u64,
    /// Established connections.
    pub opened: u64,
    /// Failed connects.
    pub failed: u64,
    /// Connections the server closed.
    pub closed_by_server: u64,
    /// Connections the server reset.
    pub reset_by_server: u64,
    /// Connections closed by the attackers.
    pub ended_by_attacker: u64,
    /// Connections still open at the end.
    pub standing: u64,
    /// Lifetime of the connections ended by the server, in seconds: shortest, mean, longest.
    pub lasted_s: Option<[f64; 3]>,
}

impl AttackReport {
    pub(super) fn new(attack: &Attack, model: Model) -> Self {
        let wanted = |kind| match kind {
            AttackKind::Silent => attack.silent as u64,
            AttackKind::Trickle => attack.trickle as u64,
            AttackKind::Flood => attack.flood as u64,
            AttackKind::HalfOpen => attack.half_open as u64,
            AttackKind::Reset => u64::from(attack.resets_per_s),
        };
        let kind = |kind: AttackKind| KindReport {
            kind: kind.name().into(),
            wanted: wanted(kind),
            ..Default::default()
        };
        Self {
            format: 1,
            target: attack.target.endpoint.to_string(),
            model: model.to_string(),
            duration_s: 0.0,
            kinds: AttackKind::ALL.iter().copied().map(kind).collect(),
            first_error: None,
        }
    }

    pub(super) fn of(&mut self, kind: AttackKind) -> &mut KindReport {
        &mut self.kinds[kind as usize] // one for each kind, in this order
    }

    /// Whether every connection to be kept open was tried once.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let kept = self.kinds.iter().filter(|entry| entry.kind != AttackKind::Reset.name());
        kept.into_iter().all(|entry| entry.opened + entry.failed >= entry.wanted)
    }

    /// Why no connection of any kind was established, if some were tried.
    #[must_use]
    pub fn never_connected(&self) -> Option<&str> {
        let is_alone = self.kinds.iter().all(|entry| entry.opened == 0);
        self.first_error.as_deref().filter(|_| is_alone)
    }

    /// The entry of this kind.
    #[must_use]
    pub fn kind(&self, kind: AttackKind) -> Option<&KindReport> {
        self.kinds.iter().find(|entry| entry.kind == kind.name())
    }
}

impl KindReport {
    /// Connections the server ended, either way.
    #[must_use]
    pub fn ended_by_server(&self) -> u64 {
        self.closed_by_server + self.reset_by_server
    }

    pub(super) fn ended(&mut self, lasted: Duration, how: EndedBy) {
        self.standing = self.standing.saturating_sub(1);
        match how {
            EndedBy::Closed => self.closed_by_server += 1,
            EndedBy::Reset => self.reset_by_server += 1,
            EndedBy::Itself => {
                self.ended_by_attacker += 1;
                return;
            }
        }
        let (s, n) = (lasted.as_secs_f64(), self.ended_by_server() as f64);
        let [shortest, mean, longest] = self.lasted_s.unwrap_or([s, s, s]);
        self.lasted_s = Some([shortest.min(s), mean + (s - mean) / n, longest.max(s)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_ended_is_counted_apart_from_what_the_attacker_did() {
        let mut report = KindReport { standing: 3, ..KindReport::default() };
        report.ended(Duration::from_secs(1), EndedBy::Closed);
        report.ended(Duration::from_secs(3), EndedBy::Reset);
        report.ended(Duration::from_secs(100), EndedBy::Itself);
        assert_eq!((report.ended_by_server(), report.ended_by_attacker, report.standing), (2, 1, 0));
        assert_eq!(report.lasted_s, Some([1.0, 2.0, 3.0]));
    }

    #[test]
    fn an_attack_never_connected_if_some_were_tried_and_none_was_let_in() {
        let of = |kind: AttackKind, [wanted, opened, failed]: [u64; 3]| KindReport {
            kind: kind.name().into(),
            wanted,
            opened,
            failed,
            ..KindReport::default()
        };
        let report = |silent, reset| AttackReport {
            kinds: vec![of(AttackKind::Silent, silent), of(AttackKind::Reset, reset)],
            first_error: Some("refused".into()),
            ..AttackReport::default()
        };
        assert_eq!(report([2, 0, 2], [100, 0, 0]).never_connected(), Some("refused"));
        assert_eq!(report([0, 0, 0], [100, 0, 1]).never_connected(), Some("refused"), "resets only");
        assert_eq!(report([2, 0, 1], [0, 0, 0]).never_connected(), Some("refused"), "a short one");
        for (silent, reset) in [([2, 1, 1], [0, 0, 0]), ([2, 0, 2], [100, 1, 0])] {
            assert_eq!(report(silent, reset).never_connected(), None, "{silent:?} {reset:?}");
        }
        let hopeful = AttackReport { first_error: None, ..report([0, 0, 0], [100, 0, 0]) };
        assert_eq!(hopeful.never_connected(), None, "no reset has been tried");
    }
}
