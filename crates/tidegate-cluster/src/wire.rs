//! The messages, JSON with a version each, and the subjects they go to.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_load::{Report, Second};

use crate::clock::Reading;
use crate::order::WorkOrder;
use crate::text::{is_name, is_odd};

/// Version of these messages. Another one is refused, not guessed at.
pub const VERSION: u32 = 3;

/// Where agents are asked who is there.
pub const HAIL: &str = "tidegate.hail";

/// Where one agent is asked.
#[must_use]
pub fn of_agent(id: &str) -> String {
    format!("tidegate.agent.{id}")
}

/// Where the agents of a run say how it goes.
#[must_use]
pub fn events_of(run: &str) -> String {
    format!("tidegate.run.{run}.event")
}

/// The subject on which the agents of a run receive its commands.
#[must_use]
pub fn words_of(run: &str) -> String {
    format!("tidegate.run.{run}.word")
}

/// Asks who is there; agents answer with an [`AgentInfo`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hail {
    /// The run that needs agents.
    pub run: String,
}

/// An agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// What [`of_agent`] takes; no other process has it.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// It works for another run.
    pub busy: bool,
}

/// What one agent is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum AgentRequest {
    /// What its clocks say.
    Clock,
    /// To take a part of a load, open its connections and say when it is ready.
    Work {
        /// The run.
        run: String,
        /// Counts the parts of the run that this agent has: it may get further ones, of agents that are lost.
        share: u32,
        /// The part.
        order: Box<WorkOrder>,
        /// When the load began, by its monotonic clock, if it does already.
        began_mono_ns: Option<i64>,
        /// It ends by itself if it hears nothing for so long.
        lease_ms: u64,
        /// Its connections stay open after its result until it is asked to [release](Self::Release) them.
        hold: bool,
    },
    /// To begin at a moment of its monotonic clock.
    Start {
        /// The run.
        run: String,
        /// Which of its parts.
        share: u32,
        /// The moment.
        at_mono_ns: i64,
    },
    /// To close the connections that it holds. It does that if they were open until now.
    Release {
        /// The run.
        run: String,
        /// Which of its parts.
        share: u32,
    },
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum AgentReply {
    /// Its clocks.
    Clock(Reading),
    /// It does that.
    Taken,
    /// It does not.
    Refused {
        /// Its reason.
        why: String,
    },
}

/// What an agent says during a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentEvent {
    /// Who.
    pub agent: String,
    /// Of which of its parts.
    pub share: u32,
    /// Counts the events of this part, from 0, so that a missing one is seen.
    pub number: u64,
    /// What.
    pub what: AgentEventKind,
}

/// See [`AgentEvent`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AgentEventKind {
    /// It is alive.
    Beat {
        /// Its clocks: one that is set during the run is seen.
        clock: Reading,
    },
    /// Connections are being opened.
    Opening {
        /// Those that are established.
        connected: u64,
    },
    /// It waits for the start.
    Ready {
        /// Connections that were tried.
        attempted: u64,
        /// Those that are established.
        connected: u64,
    },
    /// It has begun.
    Began {
        /// When, by its monotonic clock.
        mono_ns: i64,
    },
    /// A second is over.
    Second {
        /// What happened in it.
        second: Second,
        /// All its latencies: HdrHistogram V2, compressed, base64.
        latency_v2: String,
        /// Connections that are open.
        open: u64,
    },
    /// It is done; said again until somebody takes it. The seconds have been said before and are not in it.
    Done {
        /// Its result.
        report: Box<Report>,
    },
    /// It could not do it.
    Failed {
        /// Why.
        why: String,
    },
}

/// What is sent to all agents of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum RunMessage {
    /// Somebody is there: the lease goes on.
    Beat,
    /// End early, and say what was measured until here.
    Stop,
    /// This part of this agent was given up; what it still does does not count.
    Dismiss {
        /// The agent.
        agent: String,
        /// Which of its parts.
        share: u32,
    },
    /// The result of this part of this agent has come.
    Thanks {
        /// The agent.
        agent: String,
        /// Which of its parts.
        share: u32,
    },
}

/// Every message carries the version beside what it says.
#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    body: T,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// A message that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is of another version.
    #[error(
        "a message of version {0} came, and this is tidegate's version {VERSION}: run the same tidegate everywhere"
    )]
    Version(u32),
    /// It is longer than any message of ours.
    #[error("a message of {bytes} bytes came, and none of tidegate's has more than {most}")]
    Long {
        /// Its length.
        bytes: usize,
        /// The longest.
        most: usize,
    },
    /// A field holds what no tidegate writes.
    #[error("a message came that is none of tidegate's: {0} is not possible")]
    Bound(&'static str),
    /// It is no message of ours.
    #[error("a message came that is none of tidegate's: {0}")]
    Nonsense(String),
}

/// A message as bytes.
pub(crate) fn encode<T: Serialize>(body: &T) -> Result<Vec<u8>, WireError> {
    serde_json::to_vec(&Envelope { version: VERSION, body }).map_err(|e| WireError::Nonsense(e.to_string()))
}

/// Bytes as a message.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let nonsense = |e: serde_json::Error| WireError::Nonsense(e.to_string());
    let VersionOnly { version } = serde_json::from_slice(bytes).map_err(nonsense)?;
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    serde_json::from_slice::<Envelope<T>>(bytes).map(|envelope| envelope.body).map_err(nonsense)
}

/// What is checked of a message after it was understood.
pub(crate) trait Bounded {
    /// Whether nothing in it is what no tidegate writes; the error names it.
    fn check(&self) -> Result<(), &'static str>;
}

/// Most of any number but those of clocks: every reader of JSON keeps so much exactly, and some thousands of them
/// have a sum.
const MOST_NUMBER: f64 = (1u64 << 53) as f64;

/// Most nanoseconds of a monotonic clock (73 years), and of one of the wall (to the year 2116): all differences of
/// them fit.
const MOST_MONO_NS: i64 = 1 << 61;
const MOST_WALL_NS: i64 = 1 << 62;

/// Most of what is counted in one second.
const MOST_IN_A_SECOND: u64 = 1 << 40;

/// Most parts of a run that an agent is ever asked to carry.
const MOST_SHARES: u32 = 1_000_000;

/// What becomes of the strings of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strings {
    /// They are shown: they have no control characters afterwards.
    Cleaned,
    /// They stay: orders hold text of files, and are checked when they are made a plan.
    Kept,
}

/// A message that somebody sent, if a tidegate can have sent it.
fn read<T: DeserializeOwned + Bounded>(bytes: &[u8], strings: Strings) -> Result<T, WireError> {
    let nonsense = |e: serde_json::Error| WireError::Nonsense(e.to_string());
    let mut body: serde_json::Value = decode(bytes)?;
    bound(&mut body, strings).map_err(WireError::Bound)?;
    let body: T = serde_json::from_value(body).map_err(nonsense)?;
    body.check().map_err(WireError::Bound)?;
    Ok(body)
}

/// What an agent said.
pub(crate) fn of_an_agent<T: DeserializeOwned + Bounded>(bytes: &[u8]) -> Result<T, WireError> {
    read(bytes, Strings::Cleaned)
}

/// A message of the lead.
pub(crate) fn of_a_lead<T: DeserializeOwned + Bounded>(bytes: &[u8]) -> Result<T, WireError> {
    read(bytes, Strings::Kept)
}

/// All numbers in bounds, and the strings as wanted. JSON of `serde_json` is at most 128 deep.
fn bound(value: &mut serde_json::Value, strings: Strings) -> Result<(), &'static str> {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(n) if n.as_f64().is_some_and(|n| n.abs() <= MOST_NUMBER) => Ok(()),
        Value::Number(_) => Err("a number"),
        Value::String(text) => {
            if strings == Strings::Cleaned && text.contains(is_odd) {
                *text = text.replace(is_odd, "\u{fffd}");
            }
            Ok(())
        }
        Value::Array(all) => all.iter_mut().try_for_each(|value| bound(value, strings)),
        Value::Object(all) => all.iter_mut().try_for_each(|(name, value)| match &**name {
            // Clocks and moments by them have separate bounds.
            "mono_ns" | "wall_ns" | "at_mono_ns" | "began_mono_ns" if value.is_i64() => Ok(()),
            _ => bound(value, strings),
        }),
    }
}

fn is(fits: bool, what: &'static str) -> Result<(), &'static str> {
    if fits { Ok(()) } else { Err(what) }
}

fn is_time(reading: Reading) -> Result<(), &'static str> {
    let fits = |ns: i64, most: i64| (0..=most).contains(&ns);
    is(fits(reading.mono_ns, MOST_MONO_NS) && fits(reading.wall_ns, MOST_WALL_NS), "a clock")
}

impl Bounded for Hail {
    fn check(&self) -> Result<(), &'static str> {
        is(is_subject_word(&self.run), "the name of a run")
    }
}

impl Bounded for AgentInfo {
    fn check(&self) -> Result<(), &'static str> {
        is(is_subject_word(&self.id) && is_name(&self.name), "the name of an agent")
    }
}

impl Bounded for AgentRequest {
    fn check(&self) -> Result<(), &'static str> {
        let (run, share) = match self {
            Self::Clock => return Ok(()),
            Self::Work { run, share, .. } | Self::Start { run, share, .. } | Self::Release { run, share } => {
                (run, share)
            }
        };
        is(is_subject_word(run), "the name of a run")?;
        is(*share <= MOST_SHARES, "the number of a part")?;
        match self {
            Self::Work { began_mono_ns: Some(ns), .. } | Self::Start { at_mono_ns: ns, .. } => {
                is(ns.unsigned_abs() <= MOST_MONO_NS as u64, "a moment")
            }
            _ => Ok(()),
        }
    }
}

impl Bounded for AgentReply {
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Clock(reading) => is_time(*reading),
            Self::Taken | Self::Refused { .. } => Ok(()),
        }
    }
}

impl Bounded for AgentEvent {
    fn check(&self) -> Result<(), &'static str> {
        is(is_subject_word(&self.agent), "the name of an agent")?;
        match &self.what {
            AgentEventKind::Beat { clock } => is_time(*clock),
            AgentEventKind::Began { mono_ns } => is((0..=MOST_MONO_NS).contains(mono_ns), "a moment"),
            AgentEventKind::Second { second, .. } => check_second(second),
            AgentEventKind::Done { report } => is(report.seconds.is_empty(), "a result with seconds in it"),
            AgentEventKind::Opening { .. } | AgentEventKind::Ready { .. } | AgentEventKind::Failed { .. } => {
                Ok(())
            }
        }
    }
}

fn check_second(second: &Second) -> Result<(), &'static str> {
    is(second.at_s >= 0.0 && (0.0..=60.0).contains(&second.length_s), "a time in a second")?;
    let counts = [
        second.requests,
        second.failed,
        second.late_starts,
        second.in_flight,
        second.bytes_sent,
        second.bytes_received,
    ];
    is(counts.iter().all(|&count| count <= MOST_IN_A_SECOND), "a count of a second")
}

impl Bounded for RunMessage {
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Beat | Self::Stop => Ok(()),
            Self::Dismiss { agent, .. } | Self::Thanks { agent, .. } => {
                is(is_subject_word(agent), "the name of an agent")
            }
        }
    }
}

/// What the fuzzer does with bytes of a broker: every message is understood or refused.
#[doc(hidden)]
pub fn understand(bytes: &[u8]) {
    let _ = of_a_lead::<Hail>(bytes);
    let _ = of_an_agent::<AgentInfo>(bytes);
    if let Ok(AgentRequest::Work { order, .. }) = of_a_lead::<AgentRequest>(bytes) {
        let _ = order.plan();
    }
    let _ = of_an_agent::<AgentReply>(bytes);
    let _ = of_a_lead::<RunMessage>(bytes);
    let Ok(event) = of_an_agent::<AgentEvent>(bytes) else { return };
    assert!(is_subject_word(&event.agent));
    match event.what {
        AgentEventKind::Second { second, latency_v2, .. } => {
            let Ok(latencies) = tidegate_load::histogram::decode(&latency_v2) else { return };
            let mut seconds = crate::seconds::PendingSeconds::new(1);
            seconds.add(0, &second, &latencies);
            seconds.end(0);
            let _ = seconds.next();
        }
        AgentEventKind::Done { report } => _ = tidegate_load::merge(&[(*report).clone(), *report]),
        AgentEventKind::Failed { why } => assert!(!why.contains(is_odd)),
        _ => {}
    }
}

/// Whether it may be one word of a subject, and no more: ASCII letters and digits, `-` and `_`.
fn is_subject_word(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_no_more_words_than_were_meant() {
        assert!(is_subject_word("a1-00ff_x"));
        for word in ["", "a.b", "*", ">", "a b", "a\r\n", "ä", &"x".repeat(129)] {
            assert!(!is_subject_word(word), "{word:?}");
        }
    }

    #[test]
    fn what_no_agent_says_is_refused_by_its_field() {
        let event = |agent: &str, number, what| AgentEvent { agent: agent.into(), share: 0, number, what };
        let beat = |mono_ns, wall_ns| AgentEventKind::Beat { clock: Reading { mono_ns, wall_ns } };
        let second = |second| AgentEventKind::Second { second, latency_v2: String::new(), open: 1 };
        let read = |event: &AgentEvent| of_an_agent::<AgentEvent>(&encode(event).unwrap()).map(drop);
        let now = 1_800_000_000_000_000_000;
        for what in
            [beat(1, now), second(Second { at_s: 1.0, length_s: 1.0, requests: 9, ..Second::default() })]
        {
            assert_eq!(read(&event("a1-00ff", 3, what)), Ok(()));
        }
        for (event, field) in [
            (event("a b", 0, beat(1, now)), "the name of an agent"),
            (event("a\r\nPUB x 0", 0, beat(1, now)), "the name of an agent"),
            (event("a", u64::MAX, beat(1, now)), "a number"),
            (event("a", 0, beat(-1, now)), "a clock"),
            (event("a", 0, beat(i64::MAX, i64::MIN)), "a clock"),
            (event("a", 0, AgentEventKind::Began { mono_ns: i64::MAX }), "a moment"),
            (event("a", 0, AgentEventKind::Ready { attempted: 1, connected: u64::MAX }), "a number"),
            (event("a", 0, second(Second { at_s: -1.0, ..Second::default() })), "a time in a second"),
            (event("a", 0, second(Second { at_s: 1e300, ..Second::default() })), "a number"),
            (event("a", 0, second(Second { requests: 1 << 41, ..Second::default() })), "a count of a second"),
        ] {
            assert_eq!(read(&event), Err(WireError::Bound(field)), "{event:?}");
        }
        let why = encode(&event("a", 0, AgentEventKind::Failed { why: "\u{1b}[2J\nx".into() })).unwrap();
        let AgentEventKind::Failed { why } = of_an_agent::<AgentEvent>(&why).unwrap().what else {
            panic!("another")
        };
        assert_eq!(why, "\u{fffd}[2J\u{fffd}x");
        for (id, name) in [("a.b", "a"), ("", "a"), ("a", "\u{1b}[2J"), ("a\r\nSUB > 1", "a")] {
            let offer = AgentInfo { id: id.into(), name: name.into(), busy: false };
            let read = of_an_agent::<AgentInfo>(&encode(&offer).unwrap());
            assert_eq!(read, Err(WireError::Bound("the name of an agent")));
        }
    }

    #[test]
    fn what_nobody_leads_with_is_refused_by_its_field() {
        let read = |ask: &AgentRequest| of_a_lead::<AgentRequest>(&encode(ask).unwrap()).map(drop);
        let start = |run: &str, share, at_mono_ns| AgentRequest::Start { run: run.into(), share, at_mono_ns };
        assert_eq!(read(&start("00ff", 1, -5)), Ok(()));
        for (ask, field) in [
            (start("x\r\nPUB y 0\r\n", 0, 1), "the name of a run"),
            (start("a.>", 0, 1), "the name of a run"),
            (start("a", u32::MAX, 1), "the number of a part"),
            (start("a", 0, i64::MAX), "a moment"),
        ] {
            assert_eq!(read(&ask), Err(WireError::Bound(field)));
        }
    }

    #[test]
    fn another_version_is_named_and_not_guessed_at() {
        let bytes = encode(&RunMessage::Beat).unwrap();
        assert!(matches!(decode::<RunMessage>(&bytes), Ok(RunMessage::Beat)));
        for other in [1, VERSION - 1, VERSION + 1] {
            let bytes = format!(r#"{{"version":{other},"body":{{"word":"beat"}}}}"#);
            assert_eq!(decode::<RunMessage>(bytes.as_bytes()).unwrap_err(), WireError::Version(other));
        }
        for nonsense in [&b""[..], b"{", b"{}", br#"{"version":3}"#, br#"{"version":3,"body":{"word":"x"}}"#]
        {
            assert!(matches!(decode::<RunMessage>(nonsense), Err(WireError::Nonsense(_))));
        }
    }
}
