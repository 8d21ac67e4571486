//! Targets that say nothing.

use std::fmt;

/// How a target is silent; shown with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It accepts no connection.
    NotConnected,
    /// Nobody could join the messenger.
    NotJoined,
    /// It answers nothing of what was sent.
    NotAnswering,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => {
                "it accepts no connection; check the address and firewalls, and whether the server is overloaded"
            }
            Self::NotJoined => {
                "no member has joined; check the address, and that the server speaks this protocol and does not hang"
            }
            Self::NotAnswering => {
                "nothing came back for what was sent; check that the server speaks this protocol and does not hang"
            }
        })
    }
}
