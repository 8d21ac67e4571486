//! Which models are available here, and the best of them.

use crate::model::Model;
use crate::policy::Policy;

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
#[non_exhaustive]
pub struct Choice {
    /// The model.
    pub model: Model,
    /// Why it and no better one.
    pub why: String,
}

impl Model {
    /// Whether it can be used here, found out by trying.
    #[must_use]
    pub fn availability(self) -> Availability {
        match super::leaf(self) {
            Some(leaf) => (leaf.probe)(),
            None => Availability::Unavailable(super::platform::OTHERS.into()),
        }
    }

    /// Whether a [`DatagramServer`](crate::DatagramServer) can run on it here.
    #[must_use]
    pub fn serves_datagrams(self) -> Availability {
        match (self.availability(), super::datagram::serves(self)) {
            (Availability::Available(_), Err(why)) => Availability::Unavailable(why.into()),
            (here, _) => here,
        }
    }

    /// Whether servers on this model and on `other`, in two processes, can accept from one and the same listening
    /// socket.
    ///
    /// Whether accepting waits is a property of the socket, not of its descriptor (`O_NONBLOCK`, `open(2)`): `uring`
    /// needs it to wait, all others need it not to. On Windows a socket reports its events to one server, and ending an
    /// accept that is posted may cost a connection that it was just taking.
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
        Self::ALL.iter().copied().filter(|m| m.availability().is_available()).collect()
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
            match (model.availability(), super::check(model, policy)) {
                (Availability::Available(_), Err(why)) => passed_over = format!("{passed_over}{why}; "),
                (Availability::Available(_), Ok(())) => {
                    let why = match passed_over.as_str() {
                        "" => "the fewest system calls for each request of all models here".into(),
                        reason => format!("the best that works here: {reason}"),
                    };
                    return Choice { model, why };
                }
                (Availability::Unavailable(why), _) => {
                    passed_over = format!("{passed_over}{model} is unavailable ({why}); ");
                }
            }
        }
        Choice { model: Self::Blocking, why: passed_over }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_says_what_it_is_here() {
        for &model in Model::ALL {
            if let Availability::Unavailable(why) = model.availability() {
                assert!(!why.is_empty());
            }
        }
        assert!(Model::best().model.availability().is_available());
    }
}
