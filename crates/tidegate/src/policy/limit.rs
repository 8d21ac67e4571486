//! The description of a limit: one row of the table from which defaults, checks, options, keys, pages and errors are
//! made.
//!
//! The rows are declared with the fields, in the `limits!` of each struct ([`Policy`],
//! [`Accept`](super::Accept), …): a new limit is one entry there, and the compiler demands every part of it, including
//! its effect on every model.

use super::setting::{ParseLimitError, PolicyField, Unit};
use super::{Policy, PolicyError};
use crate::model::Model;
use tidegate_os::process::page_bytes;

/// A limit and all its properties.
#[non_exhaustive]
pub struct Limit<P: 'static> {
    /// The field, with its struct: `accept.backlog`.
    pub name: &'static str,
    /// What it bounds.
    pub what: &'static str,
    /// What it costs, or what happens where it is too low or too high.
    pub cost: &'static str,
    /// The command-line option without its dashes; also the key in a file.
    pub option: &'static str,
    /// How its value is written.
    pub unit: Unit,
    /// Allowed values.
    pub range: Range,
    /// Whether it may change while a server runs.
    pub change: Change,
    /// Its effect on each model.
    pub on: &'static [(&'static [Model], Effect)],
    /// A description of the default, where it depends on something.
    pub default_note: Option<&'static str>,
    /// Its relation to another limit.
    // Only a row of a table says one.
    #[doc(hidden)]
    pub relation: Option<Relation>,
    /// The limit that must be set for this one to apply, and a value for it.
    pub needs: Option<(&'static str, &'static str)>,
    /// Another option, of no limit, without which this one has no effect; named like a field: `tls_cert`.
    pub with: Option<&'static str>,
    /// Why it is refused on a Unix socket, and the remedy.
    pub unix_socket: Option<&'static str>,
    /// The models on which a client has it too, where those are fewer, and the remedy on the others.
    pub of_client: Option<(&'static [Model], &'static str)>,
    /// Accesses it in a policy; `None` if it [needs](Self::needs) another limit that is not set.
    pub(super) field: fn(&mut P) -> Option<&mut dyn PolicyField>,
}

impl<P> std::fmt::Debug for Limit<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limit").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The effect of a limit on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Enforced.
    Kept,
    /// No effect, and why.
    NoEffect(&'static str),
    /// Relying on it would be a mistake: setting it is an error. Contains the remedy.
    Refused(&'static str),
}

/// What a value may be. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Range {
    /// Any value of its type.
    Any,
    /// From one to the other.
    Within(u128, u128),
    /// A multiple of the system's page size, up to this many bytes.
    Pages(u128),
    /// The same, and a power of two; contains the reason.
    PowerOfTwo(u128, u128, &'static str),
}

/// Times above zero that cannot overflow.
pub const TIME: Range = Range::Within(1, super::LONGEST.as_nanos());

/// The same, or zero.
pub const TIME_OR_ZERO: Range = Range::Within(0, super::LONGEST.as_nanos());

/// Whether a limit may change while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It may change.
    Live,
    /// Fixed at the start.
    Fixed,
    /// It may change, but not from or to `None`.
    WhileSet,
}

/// The relation of a limit to another one, if both are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The required relation.
    pub holds: Holds,
    /// The other one, of the same table or of [`Policy`].
    pub other: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// A relation between two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holds {
    /// Less than the other.
    Below,
    /// At most the other.
    AtMost,
    /// At least this many times the other.
    AtLeast(u128),
    /// At most the other divided by this number.
    AtMostPart(u128),
    /// At least this much less than the other.
    BelowBy(u128),
    /// May differ from its default only if the other has its default.
    Alone,
}

/// A policy whose limits are in a table.
pub trait Limited: Clone + Default + 'static {
    /// The rows of all its structs.
    const TABLE: &'static [&'static [Limit<Self>]];

    /// All limits, in the order of the table.
    fn limits() -> impl Iterator<Item = &'static Limit<Self>> {
        Self::TABLE.iter().copied().flatten()
    }

    /// Finds a limit by name or option.
    fn limit(name: &str) -> Option<&'static Limit<Self>> {
        Self::limits().find(|limit| limit.name == name || limit.option == name)
    }

    /// Checks every limit against its range and the limits of its own table that it relates to.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    fn check_alone(&self) -> Result<(), PolicyError> {
        check_ranges(self)?;
        Self::limits().try_for_each(|limit| check_relation(limit, self, None))
    }

    /// Checks every limit of a service against its range and the limits it relates to, among them those of the policy
    /// that the service runs under.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    fn check_under(&self, policy: &Policy) -> Result<(), PolicyError> {
        check_ranges(self)?;
        Self::limits().try_for_each(|limit| check_relation(limit, self, Some(policy)))
    }
}

impl<P: Limited> Limit<P> {
    /// Sets it from text; checks only the syntax.
    ///
    /// # Errors
    /// The expected syntax, or the limit that must be set first.
    pub fn set(&self, policy: &mut P, text: &str) -> Result<(), ParseLimitError> {
        match (self.field)(policy) {
            Some(field) => field.read(text, self.unit),
            None => Err(ParseLimitError::Needs(self.needs.unwrap_or_default().0)),
        }
    }

    /// Checks that a text is a value within its range.
    ///
    /// # Errors
    /// The expected value.
    pub fn check_text(&self, text: &str) -> Result<(), ParseLimitError> {
        let mut policy = self.default_policy();
        let must = match (self.set(&mut policy, text), self.unit, self.range) {
            // The type of the field may hold more than the limit: only one range is named.
            (Err(_), Unit::Count | Unit::Rate, Range::Within(..)) => Some(self.range.text(self.unit)),
            (Err(e), ..) => return Err(e),
            (Ok(()), ..) => self.fault(&mut policy),
        };
        let or_none = if self.set(&mut policy, "none").is_ok() { ", or none" } else { "" };
        must.map_or(Ok(()), |must| Err(ParseLimitError::Range(format!("{must}{or_none}"))))
    }

    /// Its value as text; `None` if the limit that it needs is not set.
    #[must_use]
    pub fn text(&self, policy: &P) -> Option<String> {
        (self.field)(&mut policy.clone()).map(|field| field.show(self.unit))
    }

    /// Its default as text.
    #[must_use]
    pub fn default_text(&self) -> String {
        self.text(&self.default_policy()).unwrap_or_default()
    }

    /// Whether its value in a policy differs from the default.
    #[must_use]
    pub fn differs(&self, policy: &P) -> bool {
        self.text(policy).is_some_and(|text| text != self.default_text())
    }

    /// Gives it its default.
    pub(crate) fn reset(&self, policy: &mut P) {
        if let Some(field) = (self.field)(policy) {
            let read = field.read(&self.default_text(), self.unit);
            debug_assert_eq!(read, Ok(()), "{}: a default is written as it is read", self.name);
        }
    }

    /// Its effect on a model.
    #[must_use]
    pub fn on(&self, model: Model) -> Effect {
        let found = self.on.iter().find(|(models, _)| models.contains(&model));
        found.map_or(Effect::Kept, |(_, effect)| *effect) // every model is declared: see `declares_every_model`
    }

    /// The default policy, with the limit set that this one needs.
    fn default_policy(&self) -> P {
        let mut policy = P::default();
        if let Some((needed, value)) = self.needs {
            let set = P::limit(needed).map(|needed| needed.set(&mut policy, value));
            debug_assert_eq!(set, Some(Ok(())), "{} needs {needed}", self.name);
        }
        policy
    }

    fn measure(&self, policy: &P) -> Option<u128> {
        (self.field)(&mut policy.clone())?.measure()
    }

    /// The allowed values, if its value is out of range.
    fn fault(&self, policy: &mut P) -> Option<String> {
        let field = (self.field)(policy)?;
        let flaw = field.flaw().map(str::to_owned);
        flaw.or_else(|| self.range.fault(field.measure()?, self.unit))
    }
}

impl Range {
    fn fault(self, value: u128, unit: Unit) -> Option<String> {
        self.fault_with(value, unit, page_bytes() as u128)
    }

    fn fault_with(self, value: u128, unit: Unit, page: u128) -> Option<String> {
        let (low, high, why) = match self {
            Self::Any => return None,
            Self::Within(low, high) => (low, high, None),
            Self::Pages(high) => {
                let why = || format!("a multiple of {page}, the page size: the system pins whole pages");
                (1, high, (!value.is_multiple_of(page)).then(why))
            }
            Self::PowerOfTwo(low, high, why) => {
                (low, high, (!value.is_power_of_two()).then(|| format!("a power of two: {why}")))
            }
        };
        if (low..=high).contains(&value) { why } else { Some(self.text(unit)) }
    }

    /// Describes the allowed values.
    #[must_use]
    pub fn text(self, unit: Unit) -> String {
        let between = |low, high| format!("between {} and {}", unit.show(low), unit.show(high));
        match self {
            Self::Any => "anything".into(),
            TIME => "longer than zero and at most a century".into(),
            TIME_OR_ZERO => "at most a century".into(),
            Self::Within(low, high) => between(low, high),
            Self::Pages(high) => format!("at most {}, a multiple of the page size", unit.show(high)),
            Self::PowerOfTwo(low, high, _) => format!("{}, a power of two", between(low, high)),
        }
    }
}

fn check_ranges<P: Limited>(policy: &P) -> Result<(), PolicyError> {
    let mut looked_at = policy.clone();
    for limit in P::limits() {
        if let Some(must) = limit.fault(&mut looked_at) {
            let value = limit.text(policy).unwrap_or_default();
            return Err(PolicyError::Range { name: limit.name, value, must });
        }
    }
    Ok(())
}

/// Checks a limit of `limits` against the one it relates to: of the same table, or else of the policy, if there is one.
fn check_relation<P: Limited>(
    limit: &Limit<P>,
    limits: &P,
    policy: Option<&Policy>,
) -> Result<(), PolicyError> {
    let Some(relation) = limit.relation else { return Ok(()) };
    if let Some(other) = P::limit(relation.other) {
        return related(limit, limits, relation, other, limits);
    }
    match (Policy::limit(relation.other), policy) {
        (Some(other), Some(policy)) => related(limit, limits, relation, other, policy),
        _ => Ok(()), // no row names one that there is not: a test
    }
}

fn related<P: Limited, O: Limited>(
    limit: &Limit<P>,
    limits: &P,
    relation: Relation,
    other: &Limit<O>,
    others: &O,
) -> Result<(), PolicyError> {
    let holds = match (relation.holds, limit.measure(limits), other.measure(others)) {
        (Holds::Alone, ..) => !(limit.differs(limits) && other.differs(others)),
        (Holds::Below, Some(value), Some(other)) => value < other,
        (Holds::AtMost, Some(value), Some(other)) => value <= other,
        (Holds::AtLeast(times), Some(value), Some(other)) => value >= times.saturating_mul(other),
        (Holds::AtMostPart(parts), Some(value), Some(other)) => value.saturating_mul(parts) <= other,
        (Holds::BelowBy(room), Some(value), Some(other)) => value.saturating_add(room) <= other,
        (_, None, _) | (_, _, None) => true,
    };
    if holds {
        return Ok(());
    }
    Err(PolicyError::Conflict {
        name: limit.name,
        value: limit.text(limits).unwrap_or_default(),
        other: other.name,
        other_value: other.text(others).unwrap_or_default(),
        remedy: relation.remedy,
    })
}

/// The first fixed limit that differs.
pub(super) fn check_change<P: Limited>(from: &P, to: &P) -> Result<(), PolicyError> {
    let changes = |limit: &&Limit<P>| match limit.change {
        Change::Live => false,
        Change::Fixed => limit.text(from) != limit.text(to),
        Change::WhileSet => is_set(limit, from) != is_set(limit, to),
    };
    P::limits().find(changes).map_or(Ok(()), |limit| Err(PolicyError::Fixed(limit.name)))
}

/// `wanted` with every fixed limit replaced by its value in `running`.
pub(super) fn as_far_as_possible<P: Limited>(mut wanted: P, running: &P) -> P {
    for limit in P::limits() {
        let keeps = match limit.change {
            Change::Live => false,
            Change::Fixed => true,
            Change::WhileSet => is_set(limit, &wanted) != is_set(limit, running),
        };
        if let (true, Some(text)) = (keeps, limit.text(running)) {
            let copied = limit.set(&mut wanted, &text);
            debug_assert_eq!(copied, Ok(()), "{} is read as it is written", limit.name);
        }
    }
    wanted
}

fn is_set<P: Limited>(limit: &Limit<P>, policy: &P) -> bool {
    limit.text(policy).is_some_and(|text| text != "none")
}

/// A limit that a policy sets and that has no effect on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Idle {
    /// The limit.
    pub name: &'static str,
    /// Why it has no effect.
    pub why: &'static str,
}

/// Asserts that every row declares its effect on each model exactly once; evaluated at compile time.
pub const fn declares_every_model<P: 'static>(rows: &[Limit<P>]) {
    let mut row = 0;
    while row < rows.len() {
        let mut model = 0;
        while model < Model::ALL.len() {
            assert!(
                declared(rows[row].on, Model::ALL[model]) == 1,
                "a limit does not declare its effect on each model exactly once"
            );
            model += 1;
        }
        row += 1;
    }
}

const fn declared(on: &[(&[Model], Effect)], model: Model) -> usize {
    let (mut count, mut group) = (0, 0);
    while group < on.len() {
        let mut at = 0;
        while at < on[group].0.len() {
            count += (on[group].0[at] as usize == model as usize) as usize;
            at += 1;
        }
        group += 1;
    }
    count
}

#[cfg(test)]
pub(crate) mod tests;
