//! The fast path: connections between two processes on one host use shared memory instead of TCP.
//!
//! | module | contents |
//! |---|---|
//! | `ring` | a byte ring between two sides that do not trust each other; pure |
//! | `layout` | where the rings are in the shared memory |
//! | `protocol` | messages exchanged before the shared memory exists |
//! | `link` | a connection: two rings, and the TCP connection they replace |
//! | `handshake` | the dialler's side of the rendezvous |
//! | `rendezvous` | the listener's side: matches offers to accepted connections |
//! | `pending` | pending offers and callers |
//! | `closer` | closes sockets that another process can delay |
//! | `sockmap` | for unmodified programs: BPF sockmap |
//!
//! # How two ends find each other
//!
//! Each question is answered by the kernel, not derived from an address.
//!
//! 1. *Is the peer local?* A listener with the option also listens on an abstract Unix socket named after its TCP
//!    address. Such names are visible only in their network namespace. The dialler looks the name up if the address is
//!    one that it could bind itself.
//! 2. *Who owns it?* Each side checks the other's user (`SO_PEERCRED`) first; the dialler also checks that the TCP
//!    listener belongs to the same user (`sock_diag`).
//! 3. *Is it the same connection?* The dialler binds its TCP socket, and sends over the Unix socket: the memory (a
//!    sealed memfd), the TCP socket itself and both addresses. Then it connects by TCP. The listener accepts by TCP as
//!    usual, and looks for an offer from exactly that address to exactly this one. It accepts the offer only if the
//!    kernel confirms that the other end of this connection is the very socket that came with the offer (`SO_COOKIE`,
//!    `sock_diag`): the owner of that socket controls the connection anyway.
//! 4. *Who decides?* One word of the shared memory, changed once: by the listener to *taken*, or by the dialler, after
//!    its timeout, to *withdrawn*. The listener then closes the Unix socket, which notifies the dialler. No byte is
//!    sent before the decision, so both ends always agree on the transport, and with TCP no byte is missing.
//!
//! A descriptor received from another process is opened only after the user of that process is known, on the I/O thread
//! that accepts the connection. No I/O thread blocks on such a socket or closes one (`closer`).
//!
//! `ring`, `layout` and `protocol` can be named, because tests, fuzzing and the load generator of this project play
//! either end; a minor version may change them.
//!
//! This describes Linux. Windows has a socket option for the same purpose (`SIO_LOOPBACK_FAST_PATH`): a listener and a
//! dialling socket only set it, and the connection remains an ordinary TCP connection.
//!
//! Every other peer (another program, another user or namespace, an end without the option) gets a plain TCP
//! connection.

#[cfg(target_os = "linux")]
mod closer;
#[cfg(target_os = "linux")]
mod handshake;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod layout;
#[cfg(target_os = "linux")]
mod link;
#[cfg(not(target_os = "linux"))]
mod none;
#[cfg(target_os = "linux")]
mod pending;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod protocol;
#[cfg(target_os = "linux")]
mod rendezvous;
#[cfg(target_os = "linux")]
#[doc(hidden)]
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
    handshake::{Handshake, HandshakeOutcome, begin},
    link::MemoryLink,
    rendezvous::Rendezvous,
};

use crate::policy::FastPath;
use crate::service::Origin;
use crate::stats::Counters;

#[cfg(not(target_os = "linux"))]
pub(crate) use none::{Handshake, HandshakeOutcome, MemoryLink, Rendezvous, begin};

/// The most offers of a client that are undecided, or whose sockets are not closed yet.
#[cfg(target_os = "linux")]
const MOST_OFFERED: usize = 4096;

/// How a connection is being established.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "of offers that nobody can make"))]
pub(crate) enum Begun {
    /// Over TCP, with an undecided offer.
    Handshaking(Handshake),
    /// Over TCP.
    Plain(Stream),
}

/// The transports a server or client may use besides TCP, and whether the fallback was logged.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    pub(crate) fast_path: Option<FastPath>,
    said: AtomicBool,
    /// Whether the listener has the socket option of the fast path.
    listener_has_option: AtomicBool,
    /// Whether the socket that dialled last has it.
    dial_has_option: AtomicBool,
    #[cfg(target_os = "linux")]
    closer: std::sync::OnceLock<closer::Closer>,
}

impl Transports {
    pub(crate) fn new(fast_path: Option<FastPath>) -> Self {
        Self { fast_path, ..Self::default() }
    }

    /// The thread that closes the sockets of offers, started on first use.
    #[cfg(target_os = "linux")]
    fn closer(&self) -> io::Result<&closer::Closer> {
        if let Some(closer) = self.closer.get() {
            return Ok(closer);
        }
        let closer = closer::Closer::start(MOST_OFFERED)?;
        Ok(self.closer.get_or_init(|| closer))
    }

    /// Sets the fast-path option of a socket before it connects, where that is a socket option; otherwise returns why
    /// not.
    pub(crate) fn hasten(&self, socket: &impl AsFd) {
        self.hasten_with(|| hasten_loopback(socket));
    }

    /// The same with the call that sets it.
    fn hasten_with(&self, set: impl FnOnce() -> io::Result<()>) {
        if self.fast_path.is_some() {
            let outcome = set();
            self.dial_has_option.store(outcome.is_ok(), Relaxed);
            if let Err(why) = outcome {
                self.say(&why);
            }
        }
    }

    /// Records whether the listener has the socket option, or why not, if it was to have it.
    #[cfg_attr(target_os = "linux", allow(dead_code, reason = "sockets have no such option here"))]
    fn listener(&self, refused: Option<&dyn std::fmt::Display>) {
        self.listener_has_option.store(self.fast_path.is_some() && refused.is_none(), Relaxed);
        if let Some(why) = refused {
            self.say(why);
        }
    }

    /// Whether addresses of accepted connections are wanted to [count](Self::count_option) them.
    pub(crate) fn listener_has_option(&self) -> bool {
        self.listener_has_option.load(Relaxed)
    }

    /// Counts an established connection from or to this address as a fast path, if this end has the socket option and
    /// the address is one of the loopback interface, where alone the option counts. Shared memory is counted where it
    /// is agreed on.
    pub(crate) fn count_option(&self, origin: Origin, addr: Option<SocketAddr>, counters: &Counters) {
        let has_option = match origin {
            Origin::Accepted => &self.listener_has_option,
            Origin::Dialled { .. } => &self.dial_has_option,
        };
        if has_option.load(Relaxed) && addr.is_some_and(|addr| addr.ip().to_canonical().is_loopback()) {
            counters.fast_paths.add(1);
        }
    }

    /// Begins to connect where the fast path is only a socket option.
    pub(crate) fn dial(&self, to: &Endpoint, from: Option<SocketAddr>) -> io::Result<Stream> {
        let stream = Stream::unconnected(to, from)?;
        self.hasten(&stream);
        stream.connect(to, Blocking::Never)?;
        Ok(stream)
    }

    /// Logs why a connection stays on TCP; once.
    pub(crate) fn say(&self, why: &dyn std::fmt::Display) {
        if !self.said.swap(true, Relaxed) {
            tracing::warn!(event = "fast-path", "plain TCP, not the fast path: {why}; logged once");
        }
    }
}

/// Why a connection stays on TCP.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) enum Plain {
    Elsewhere(std::net::IpAddr),
    Unknown(std::net::SocketAddr),
    User { addr: std::net::SocketAddr, user: u32, own: u32 },
    Owner { addr: std::net::SocketAddr, owner: u32, user: u32 },
    Full,
    Refused(std::net::SocketAddr),
    Late(std::net::SocketAddr),
    System { what: &'static str, error: std::io::Error },
}

#[cfg(target_os = "linux")]
impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Elsewhere(ip) => {
                write!(f, "{ip} is not an address of this host (or of this network namespace)")
            }
            Self::Unknown(addr) => {
                write!(f, "no fast path at {addr}: the peer is not tidegate, or --fast-path is off there")
            }
            Self::User { addr, user, own } => write!(
                f,
                "the process at {addr} runs as user {user}; only user {own} and the configured peer user are allowed"
            ),
            Self::Owner { addr, owner, user } => write!(
                f,
                "the listener at {addr} belongs to user {owner}, but offers for it are taken by user {user}: \
                 run both as one user"
            ),
            Self::Full => {
                f.write_str("too many offers are pending, or listeners delay the closing of earlier ones")
            }
            Self::Refused(addr) => write!(f, "the listener at {addr} did not take the offer"),
            Self::Late(addr) => write!(f, "the listener at {addr} did not answer in time"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

#[cfg(target_os = "linux")]
impl std::error::Error for Plain {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Writers;

    const HERE: [&str; 3] = ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"];
    const DIALLED: Origin = Origin::Dialled { tag: 0 };

    fn counted(transports: &Transports, origin: Origin, addr: &str) -> u64 {
        let counters = Counters::new(Writers::One);
        transports.count_option(origin, addr.parse().ok(), &counters);
        counters.fast_paths.get()
    }

    fn refuse() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(10045)) // WSAEOPNOTSUPP
    }

    #[test]
    fn a_loopback_connection_whose_socket_took_the_option_is_counted() {
        let transports = Transports::new(Some(FastPath::default()));
        assert_eq!(counted(&transports, DIALLED, HERE[0]), 0, "nobody was asked yet");
        transports.hasten_with(|| Ok(()));
        assert!(HERE.iter().all(|addr| counted(&transports, DIALLED, addr) == 1));
        // The other end of this process was not asked, and other hosts do not have it.
        assert_eq!(counted(&transports, Origin::Accepted, HERE[0]), 0);
        assert_eq!(counted(&transports, DIALLED, "192.0.2.1:80"), 0);
        assert_eq!(counted(&transports, DIALLED, "unix"), 0, "no address");
        transports.hasten_with(refuse);
        assert_eq!(counted(&transports, DIALLED, HERE[0]), 0);
    }

    #[test]
    fn accepted_ones_are_counted_if_the_listener_took_it() {
        let transports = Transports::new(Some(FastPath::default()));
        transports.listener(None);
        assert_eq!(counted(&transports, Origin::Accepted, HERE[0]), 1);
        assert_eq!(counted(&transports, DIALLED, HERE[0]), 0);
        transports.listener(Some(&"refused"));
        assert_eq!(counted(&transports, Origin::Accepted, HERE[0]), 0);
    }

    #[test]
    fn nobody_is_asked_and_nothing_counted_without_the_limit() {
        let transports = Transports::default();
        transports.hasten_with(|| panic!("asked"));
        transports.listener(None);
        assert_eq!(
            counted(&transports, DIALLED, HERE[0]) + counted(&transports, Origin::Accepted, HERE[0]),
            0
        );
    }
}
