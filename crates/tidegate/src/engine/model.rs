//! The I/O models by name, and what is available here.

use std::fmt;
use std::str::FromStr;

use crate::policy::Policy;

/// An I/O model. Those of the other system are listed too and say that they are unavailable, so that a
/// table shows an honest blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// Two threads for each connection: one receives, one sends.
    Blocking,
    /// A fixed number of threads, fed by a queue of accepted sockets.
    Pool,
    /// Non-blocking sockets and `select`.
    Select,
    /// Non-blocking sockets and `poll`.
    Poll,
    /// Non-blocking sockets and Linux `epoll`, edge-triggered.
    Epoll,
    /// Linux io_uring: completions, provided buffers, direct descriptors.
    Uring,
    /// The tokio library.
    Tokio,
    /// Windows messages (`WSAAsyncSelect`).
    AsyncSelect,
    /// Windows network events (`WSAEventSelect`).
    EventSelect,
    /// Windows overlapped I/O with events.
    Overlapped,
    /// Windows I/O completion port.
    Iocp,
    /// Windows Registered I/O.
    Rio,
}

/// Whether a model can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can; with a remark on how, if there is one to make.
    Available(String),
    /// It cannot, and why.
    Unavailable(String),
}

impl Availability {
    /// Whether the model can be used.
    #[must_use]
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available(_))
    }
}

/// The outcome of choosing the best available model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The model.
    pub model: Model,
    /// Why it and no better one.
    pub why: String,
}

impl Model {
    /// Every model of every system, in the order of the source's table.
    pub const ALL: [Self; 12] = [
        Self::Blocking,
        Self::Pool,
        Self::Select,
        Self::Poll,
        Self::Epoll,
        Self::Uring,
        Self::Tokio,
        Self::AsyncSelect,
        Self::EventSelect,
        Self::Overlapped,
        Self::Iocp,
        Self::Rio,
    ];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Pool => "pool",
            Self::Select => "select",
            Self::Poll => "poll",
            Self::Epoll => "epoll",
            Self::Uring => "uring",
            Self::Tokio => "tokio",
            Self::AsyncSelect => "async-select",
            Self::EventSelect => "event-select",
            Self::Overlapped => "overlapped",
            Self::Iocp => "iocp",
            Self::Rio => "rio",
        }
    }

    /// Whether it can be used here, found out by trying.
    #[must_use]
    pub fn availability(self) -> Availability {
        match self {
            Self::Blocking => super::blocking::duplex::probe(),
            Self::Pool => super::blocking::pool::probe(),
            Self::Select => super::readiness::select::probe(),
            Self::Poll => super::readiness::poll::probe(),
            Self::Tokio => super::tokio::probe(),
            of_one_system => super::platform::probe(of_one_system),
        }
    }

    /// Whether servers on this model and on `other`, in two processes, can accept from one and the same listening socket.
    ///
    /// Whether accepting waits is a property of the socket, not of its descriptor (`O_NONBLOCK`, `open(2)`): `uring` needs it to
    /// wait, all others need it not to. On Windows a socket reports its events to one server,
    /// and ending an accept that is posted may cost a connection that it was just taking.
    #[must_use]
    pub fn shares_listener_with(self, other: Self) -> bool {
        let keeps_it = |model| {
            use Model::{AsyncSelect, EventSelect, Iocp, Overlapped, Rio};
            matches!(model, AsyncSelect | EventSelect | Overlapped | Iocp | Rio)
        };
        (self == Self::Uring) == (other == Self::Uring) && !keeps_it(self) && !keeps_it(other)
    }

    /// The models that can be used here.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|m| m.availability().is_available()).collect()
    }

    /// The best model that can be used here, and why that one.
    #[must_use]
    pub fn best() -> Choice {
        Self::best_for(&Policy::default())
    }

    /// The best model that can be used here and keep these limits, and why that one.
    #[must_use]
    pub fn best_for(policy: &Policy) -> Choice {
        let mut passed_over = String::new();
        for &model in super::platform::BEST {
            match model.availability() {
                Availability::Available(_) if super::check(model, policy).is_err() => {
                    let why = super::check(model, policy).err().map(|e| e.to_string()).unwrap_or_default();
                    passed_over = format!("{passed_over}{why}; ");
                }
                Availability::Available(_) => {
                    let why = match passed_over.as_str() {
                        "" => "the fewest system calls for each request of all models here".into(),
                        reason => format!("the best that works here: {reason}"),
                    };
                    return Choice { model, why };
                }
                Availability::Unavailable(why) => {
                    passed_over = format!("{passed_over}{model} is unavailable ({why}); ");
                }
            }
        }
        Choice { model: Self::Blocking, why: passed_over }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no [`Model`] has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown model {name:?}; the models are: {}, and auto for the best one available", Model::ALL.map(Model::name).join(", "))]
pub struct ParseModelError {
    /// What was given.
    pub name: String,
}

impl FromStr for Model {
    type Err = ParseModelError;

    fn from_str(s: &str) -> Result<Self, ParseModelError> {
        let named = Self::ALL.into_iter().find(|model| model.name() == s);
        named.ok_or_else(|| ParseModelError { name: s.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_model() {
        for model in Model::ALL {
            assert_eq!(model.name().parse(), Ok(model));
        }
        assert!("kqueue".parse::<Model>().unwrap_err().to_string().contains("epoll"));
    }

    #[test]
    fn every_model_says_what_it_is_here() {
        for model in Model::ALL {
            if let Availability::Unavailable(why) = model.availability() {
                assert!(!why.is_empty());
            }
        }
        assert!(Model::best().model.availability().is_available());
    }
}
