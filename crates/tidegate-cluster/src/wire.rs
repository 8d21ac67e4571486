//! The messages, JSON with a version each, and the subjects they go to.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_load::{Report, Second};

use crate::clock::Reading;
use crate::order::Order;

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

/// Where the agents of a run are told how it goes on.
#[must_use]
pub fn words_of(run: &str) -> String {
    format!("tidegate.run.{run}.word")
}

/// Asks who is there; agents answer with an [`Offer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hail {
    /// The run that needs agents.
    pub run: String,
}

/// An agent is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
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
pub enum Ask {
    /// What its clocks say.
    Clock,
    /// To take a part of a load, open its connections and say when it is ready.
    Work {
        /// The run.
        run: String,
        /// Counts the parts of the run that this agent has: it may get further ones, of agents that are lost.
        share: u32,
        /// The part.
        order: Box<Order>,
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
pub enum Answer {
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
pub struct Event {
    /// Who.
    pub agent: String,
    /// Of which of its parts.
    pub share: u32,
    /// Counts the events of this part, from 0, so that a missing one is seen.
    pub number: u64,
    /// What.
    pub what: What,
}

/// See [`Event`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// It is alive.
    Beat {
        /// Its clocks: one that is set during the run is seen.
        clock: Reading,
    },
    /// Connections are being opened.
    Opening {
        /// Those that stand.
        connected: u64,
    },
    /// It waits for the start.
    Ready {
        /// Connections that were tried.
        attempted: u64,
        /// Those that stand.
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

/// What all agents of a run are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum Word {
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

/// A message that can not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is of another version.
    #[error(
        "a message of version {0} came, and this is tidegate's version {VERSION}: run the same tidegate everywhere"
    )]
    Version(u32),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named_and_not_guessed_at() {
        let bytes = encode(&Word::Beat).unwrap();
        assert!(matches!(decode::<Word>(&bytes), Ok(Word::Beat)));
        for other in [1, VERSION - 1, VERSION + 1] {
            let bytes = format!(r#"{{"version":{other},"body":{{"word":"beat"}}}}"#);
            assert_eq!(decode::<Word>(bytes.as_bytes()).unwrap_err(), WireError::Version(other));
        }
        for nonsense in [&b""[..], b"{", b"{}", br#"{"version":3}"#, br#"{"version":3,"body":{"word":"x"}}"#]
        {
            assert!(matches!(decode::<Word>(nonsense), Err(WireError::Nonsense(_))));
        }
    }
}
