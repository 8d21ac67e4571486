//! The fast path: a connection between two processes of one host goes through shared memory, and is a connection all
//! the same.
//!
//! | module | what it holds |
//! |---|---|
//! | `ring` | a byte ring between two sides that do not trust each other; pure |
//! | `layout` | where the rings are in the shared memory |
//! | `protocol` | what is said before there is shared memory |
//! | `link` | a connection: two rings, and the TCP connection they stand for |
//! | `offer` | the dialler's side of the meeting |
//! | `meeting` | the listener's side: whether an offer is that of the connection |
//! | `pending` | offers and callers that wait there |
//! | `closer` | closes what another process has a hand in |
//! | `sockmap` | for programs that are not written for it: TCP through a map of sockets in the kernel |
//!
//! # How two ends find each other
//!
//! Nothing is guessed from an address; the kernel answers each question.
//!
//! 1. *Is it here?* A listener with the option also listens on an abstract Unix socket named after its TCP address.
//!    Such names are known only in their network namespace. The dialler looks for the name if the address is one it
//!    could bind itself.
//! 2. *Who is it?* Both look at the user of the other (`SO_PEERCRED`) before anything else; the dialler also whether
//!    the socket that listens by TCP is of the same user (`sock_diag`).
//! 3. *Is it the same connection?* The dialler binds its TCP socket, and sends over the Unix socket: the memory (a
//!    sealed memfd), the socket itself and both addresses. Then it connects by TCP. The listener accepts by TCP as
//!    ever, and looks whether there is an offer from exactly that address to exactly this one. It takes it only if
//!    the kernel says that the other end of this connection is the very socket that came with the offer (`SO_COOKIE`,
//!    `sock_diag`): who has that can speak for the connection anyway.
//! 4. *Who decides?* One word of the shared memory, changed once: by the listener to *taken*, or by the dialler,
//!    whose patience is over, to *withdrawn*. The listener hangs up then, which tells the dialler to look. Until then
//!    no byte is sent either way, so whatever happens the connection is one or the other on both ends, and TCP has
//!    every byte if it is TCP.
//!
//! No I/O thread opens what a stranger sends, waits for a socket that another process has, or closes one (`closer`).
//!
//! `ring`, `layout` and `protocol` are public for programs that speak to a tidegate without being one.
//!
//! That is Linux. Windows has an option of sockets for the same purpose (`SIO_LOOPBACK_FAST_PATH`): there a listener
//! and a dialling socket only ask for it, and the connection stays one of TCP for whoever looks.
//!
//! Whoever does not take part (another program, another user or namespace, an end without the option) sees a plain TCP
//! connection.

#[cfg(target_os = "linux")]
mod closer;
#[cfg(target_os = "linux")]
pub mod layout;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod meeting;
#[cfg(not(target_os = "linux"))]
mod none;
#[cfg(target_os = "linux")]
mod offer;
#[cfg(target_os = "linux")]
mod pending;
#[cfg(target_os = "linux")]
pub mod protocol;
#[cfg(target_os = "linux")]
pub mod ring;
#[cfg(target_os = "linux")]
pub mod sockmap;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate_os::descriptor::AsFd;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::extension::hasten_loopback;
use tidegate_os::socket::{Blocking, Stream};

#[cfg(target_os = "linux")]
pub(crate) use self::{
    link::Link,
    meeting::Meeting,
    offer::{Offer, Outcome, begin},
};

use crate::policy::FastPath;

#[cfg(not(target_os = "linux"))]
pub(crate) use none::{Link, Meeting, Offer, Outcome, begin};

/// Offers of a client at most that are not settled, or whose sockets are not closed yet.
#[cfg(target_os = "linux")]
const MOST_OFFERED: usize = 4096;

/// How a connection is being made.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "of offers that nobody can make"))]
pub(crate) enum Begun {
    /// Over TCP, with an offer that has not been decided.
    Offered(Offer),
    /// Over TCP.
    Plain(Stream),
}

/// What a server or client may use besides TCP, and whether it has said that it could not.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    pub(crate) fast_path: Option<FastPath>,
    said: AtomicBool,
    #[cfg(target_os = "linux")]
    closer: std::sync::OnceLock<closer::Closer>,
}

impl Ways {
    pub(crate) fn new(fast_path: Option<FastPath>) -> Self {
        Self { fast_path, ..Self::default() }
    }

    /// What closes the sockets of offers, started when it is first needed.
    #[cfg(target_os = "linux")]
    fn closer(&self) -> io::Result<&closer::Closer> {
        if let Some(closer) = self.closer.get() {
            return Ok(closer);
        }
        let closer = closer::Closer::start(MOST_OFFERED)?;
        Ok(self.closer.get_or_init(|| closer))
    }

    /// For a socket that is about to be connected, where the fast path is an option of the socket: sets it, or says why
    /// not.
    pub(crate) fn hasten(&self, socket: &impl AsFd) {
        if self.fast_path.is_some()
            && let Err(why) = hasten_loopback(socket)
        {
            self.say(&why);
        }
    }

    /// Dials where the fast path can only be an option of the socket.
    pub(crate) fn dial(
        &self,
        to: &Endpoint,
        from: Option<SocketAddr>,
        blocking: Blocking,
    ) -> io::Result<Stream> {
        let stream = Stream::unconnected(to, from)?;
        self.hasten(&stream);
        stream.connect(to, blocking)?;
        Ok(stream)
    }

    /// Says why a connection stays with TCP; once.
    pub(crate) fn say(&self, why: &dyn std::fmt::Display) {
        if !self.said.swap(true, Relaxed) {
            tracing::warn!(event = "fast-path", "plain TCP, not the fast path: {why}; this is said once");
        }
    }
}

/// A connection stays with TCP.
#[cfg(target_os = "linux")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum Plain {
    #[error("{0} is not an address of this host (or of this network namespace)")]
    Elsewhere(std::net::IpAddr),
    #[error("nobody at {0} offers it: that end is no tidegate, or has not turned the option on")]
    Unknown(std::net::SocketAddr),
    #[error(
        "the process at {addr} runs as user {user}; only user {own} may take part, and the one allowed besides"
    )]
    User { addr: std::net::SocketAddr, user: u32, own: u32 },
    #[error(
        "the listener at {addr} is of user {owner}, and who takes offers for it is of user {user}: \
         have both be of one user"
    )]
    Owner { addr: std::net::SocketAddr, owner: u32, user: u32 },
    #[error("too many offers wait, or listeners hold up what is to be closed")]
    Full,
    #[error("the listener at {0} did not take the offer")]
    Refused(std::net::SocketAddr),
    #[error("the listener at {0} did not answer in time")]
    Late(std::net::SocketAddr),
    #[error("{what}: {error}")]
    System { what: &'static str, error: std::io::Error },
}
