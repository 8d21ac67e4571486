//! The I/O models by name. Availability is in `engine/model.rs`.

use std::fmt;
use std::str::FromStr;

/// An I/O model. Models of other systems are listed too and report that they are unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

impl Model {
    /// Every model of every system, in the order of the book's table.
    pub const ALL: &'static [Self] = &[
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
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not a [`Model`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseModelError {
    /// The unknown name.
    pub name: String,
}

impl fmt::Display for ParseModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = Model::ALL.iter().map(|model| model.name()).collect();
        write!(f, "unknown model {:?}; the models are: {}", self.name, all.join(", "))
    }
}

impl std::error::Error for ParseModelError {}

impl FromStr for Model {
    type Err = ParseModelError;

    fn from_str(s: &str) -> Result<Self, ParseModelError> {
        let named = Self::ALL.iter().copied().find(|model| model.name() == s);
        named.ok_or_else(|| ParseModelError { name: s.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_model() {
        for &model in Model::ALL {
            assert_eq!(model.name().parse(), Ok(model));
        }
    }

    #[test]
    fn the_error_lists_what_can_be_parsed_and_nothing_else() {
        let error = "kqueue".parse::<Model>().unwrap_err().to_string();
        let (_, listed) = error.split_once("are: ").unwrap();
        let listed: Vec<_> = listed.split(", ").map(|name| name.parse::<Model>().unwrap()).collect();
        assert_eq!(listed, Model::ALL);
    }
}
