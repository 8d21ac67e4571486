//! What a limit is: a row of the one table that defaults, checks, options, keys, pages and refusals are read from.
//!
//! The rows stand with the fields, in the `limits!` of each struct ([`Policy`](super::Policy),
//! [`Accept`](super::Accept), …): a new limit is one entry there, and the compiler asks for every part of it, what it
//! does on every model included.

use super::PolicyError;
use super::setting::{Place, Unit};
use crate::model::Model;

/// A limit: everything that is known of it, in one place.
#[non_exhaustive]
pub struct Limit<P: 'static> {
    /// The field, with the struct it is in: `accept.backlog`.
    pub name: &'static str,
    /// What it bounds.
    pub what: &'static str,
    /// What it costs, or what happens where it is too low or too high.
    pub cost: &'static str,
    /// The option of the command line, without its dashes: also the key in a file. `None`: only for programs.
    pub option: Option<&'static str>,
    /// How its value is written.
    pub unit: Unit,
    /// What it may be.
    pub range: Range,
    /// Whether it may change while a server runs.
    pub change: Change,
    /// What becomes of it on each model.
    pub on: &'static [(&'static [Model], Effect)],
    /// What the default is, where it depends on something.
    pub default_note: Option<&'static str>,
    /// How it stands to another limit.
    pub relation: Option<Relation>,
    /// The limit without which it means nothing, and a value of that.
    pub needs: Option<(&'static str, &'static str)>,
    /// Why it is refused on a Unix socket, and what to do.
    pub unix_socket: Option<&'static str>,
    /// Where a policy keeps it; nowhere if it [needs](Self::needs) another one that is not set.
    pub(super) place: fn(&mut P) -> Option<&mut dyn Place>,
}

impl<P: 'static> Limit<P> {
    /// A row with what most of them have; `limits!` asks for the rest.
    pub(super) const fn base(
        name: &'static str,
        what: &'static str,
        cost: &'static str,
        place: fn(&mut P) -> Option<&mut dyn Place>,
    ) -> Self {
        Self {
            name,
            what,
            cost,
            option: None,
            unit: Unit::Count,
            range: Range::Any,
            change: Change::Live,
            on: &[],
            default_note: None,
            relation: None,
            needs: None,
            unix_socket: None,
            place,
        }
    }
}

/// What a model makes of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It keeps it.
    Kept,
    /// Nothing changes with it, and why.
    NoEffect(&'static str),
    /// Relying on it would be a mistake: a server that asks for it is refused. What to do instead.
    Refused(&'static str),
}

/// What a value may be. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Anything that can be written.
    Any,
    /// From one to the other.
    Within(u128, u128),
    /// The same, and a multiple of the third; why.
    MultipleOf(u128, u128, u128, &'static str),
    /// The same, and a power of two; why.
    PowerOfTwo(u128, u128, &'static str),
}

/// Times that can be reckoned with.
pub(super) const TIME: Range = Range::Within(1, super::LONGEST.as_nanos());

/// The same, or none to wait.
pub(super) const TIME_OR_ZERO: Range = Range::Within(0, super::LONGEST.as_nanos());

/// Whether a limit may change while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It may.
    Live,
    /// It was laid out at the start.
    Fixed,
    /// It may, but not begin or cease to be set.
    WhileSet,
}

/// How a limit stands to another one, if both are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// What has to hold.
    pub holds: Holds,
    /// The other one.
    pub other: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// What has to hold between two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The one is less.
    Below,
    /// The one is not more.
    AtMost,
    /// The one is so many times the other, or more.
    AtLeast(u128),
}

/// A policy whose limits are in a table.
pub trait Limited: Clone + Default + 'static {
    /// The rows of all its structs.
    const TABLE: &'static [&'static [Limit<Self>]];

    /// Every limit, in the order of the table.
    fn limits() -> impl Iterator<Item = &'static Limit<Self>> {
        Self::TABLE.iter().copied().flatten()
    }

    /// The limit with this name, or this option.
    fn limit(name: &str) -> Option<&'static Limit<Self>> {
        Self::limits().find(|limit| limit.name == name || limit.option == Some(name))
    }
}

impl<P: Limited> Limit<P> {
    /// Sets it to what a text says; nothing but the text is checked.
    ///
    /// # Errors
    /// What to write instead, or the limit that has to be set first.
    pub fn set(&self, policy: &mut P, text: &str) -> Result<(), String> {
        match (self.place)(policy) {
            Some(place) => place.read(text, self.unit),
            None => Err(format!("means nothing without {}", self.needs.unwrap_or_default().0)),
        }
    }

    /// Whether a text is a value within its range.
    ///
    /// # Errors
    /// What to write instead.
    pub fn check_text(&self, text: &str) -> Result<(), String> {
        let mut policy = self.default_policy();
        self.set(&mut policy, text)?;
        self.fault(&mut policy).map_or(Ok(()), |must| Err(format!("must be {must}")))
    }

    /// Its value as it is written; `None` if the limit it needs is not set.
    #[must_use]
    pub fn text(&self, policy: &P) -> Option<String> {
        (self.place)(&mut policy.clone()).map(|place| place.show(self.unit))
    }

    /// Its default as it is written.
    #[must_use]
    pub fn default_text(&self) -> String {
        self.text(&self.default_policy()).unwrap_or_default()
    }

    /// Whether a policy has another value than the default.
    #[must_use]
    pub fn differs(&self, policy: &P) -> bool {
        self.text(policy).is_some_and(|text| text != self.default_text())
    }

    /// What a model makes of it.
    #[must_use]
    pub fn on(&self, model: Model) -> Effect {
        let found = self.on.iter().find(|(models, _)| models.contains(&model));
        found.map_or(Effect::Kept, |(_, effect)| *effect) // every model is declared: see `declares_every_model`
    }

    /// The default policy, with the limit that this one needs.
    fn default_policy(&self) -> P {
        let mut policy = P::default();
        if let Some((needed, value)) = self.needs {
            let set = P::limit(needed).map(|needed| needed.set(&mut policy, value));
            debug_assert_eq!(set, Some(Ok(())), "{} needs {needed}", self.name);
        }
        policy
    }

    fn measure(&self, policy: &P) -> Option<u128> {
        (self.place)(&mut policy.clone())?.measure()
    }

    /// What the value would have to be, if it is out of its range.
    fn fault(&self, policy: &mut P) -> Option<String> {
        let place = (self.place)(policy)?;
        let flaw = place.flaw().map(str::to_owned);
        flaw.or_else(|| self.range.fault(place.measure()?, self.unit))
    }
}

impl Range {
    fn fault(self, value: u128, unit: Unit) -> Option<String> {
        let (low, high, why) = match self {
            Self::Any => return None,
            Self::Within(low, high) => (low, high, None),
            Self::MultipleOf(low, high, of, why) => {
                (low, high, (!value.is_multiple_of(of)).then(|| format!("a multiple of {of}: {why}")))
            }
            Self::PowerOfTwo(low, high, why) => {
                (low, high, (!value.is_power_of_two()).then(|| format!("a power of two: {why}")))
            }
        };
        if (low..=high).contains(&value) { why } else { Some(self.text(unit)) }
    }

    /// What a value has to be, in words.
    #[must_use]
    pub fn text(self, unit: Unit) -> String {
        let between = |low, high| format!("between {} and {}", unit.show(low), unit.show(high));
        match self {
            Self::Any => "anything".into(),
            TIME => "longer than zero and at most a century".into(),
            TIME_OR_ZERO => "at most a century".into(),
            Self::Within(low, high) => between(low, high),
            Self::MultipleOf(low, high, of, _) => format!("{}, a multiple of {of}", between(low, high)),
            Self::PowerOfTwo(low, high, _) => format!("{}, a power of two", between(low, high)),
        }
    }
}

/// Checks every limit against its range, then against its neighbours.
pub(super) fn check<P: Limited>(policy: &P) -> Result<(), PolicyError> {
    let mut looked_at = policy.clone();
    for limit in P::limits() {
        if let Some(must) = limit.fault(&mut looked_at) {
            let value = limit.text(policy).unwrap_or_default();
            return Err(PolicyError::Range { name: limit.name, value, must });
        }
    }
    P::limits().try_for_each(|limit| check_relation(limit, policy))
}

fn check_relation<P: Limited>(limit: &Limit<P>, policy: &P) -> Result<(), PolicyError> {
    let Some(relation) = limit.relation else { return Ok(()) };
    let other = P::limit(relation.other);
    let measures = (limit.measure(policy), other.and_then(|other| other.measure(policy)));
    let (Some(value), Some(other_value), Some(other)) = (measures.0, measures.1, other) else {
        return Ok(());
    };
    let holds = match relation.holds {
        Holds::Below => value < other_value,
        Holds::AtMost => value <= other_value,
        Holds::AtLeast(times) => value >= times.saturating_mul(other_value),
    };
    if holds {
        return Ok(());
    }
    Err(PolicyError::Conflict {
        name: limit.name,
        value: limit.unit.show(value),
        other: other.name,
        other_value: other.unit.show(other_value),
        remedy: relation.remedy,
    })
}

/// The first limit that is fixed and differs.
pub(super) fn check_change<P: Limited>(from: &P, to: &P) -> Result<(), PolicyError> {
    let changes = |limit: &&Limit<P>| match limit.change {
        Change::Live => false,
        Change::Fixed => limit.text(from) != limit.text(to),
        Change::WhileSet => is_set(limit, from) != is_set(limit, to),
    };
    P::limits().find(changes).map_or(Ok(()), |limit| Err(PolicyError::Fixed(limit.name)))
}

/// The limits of `wanted` as far as they can be changed while a server runs; the others as they are in `running`.
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

/// A limit that a policy sets and a model has no use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The limit.
    pub name: &'static str,
    /// Why nothing changes with it.
    pub why: &'static str,
}

/// Whether every row says, exactly once, what becomes of the limit on each model: asked when the table is compiled.
pub(super) const fn declares_every_model<P: 'static>(rows: &[Limit<P>]) {
    let mut row = 0;
    while row < rows.len() {
        let mut model = 0;
        while model < Model::ALL.len() {
            assert!(
                declared(rows[row].on, Model::ALL[model]) == 1,
                "a row of a limit does not say once what each model does"
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
