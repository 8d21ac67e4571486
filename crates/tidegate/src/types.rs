//! Plain types that all layers use: what a session answers, who its peer is, and how a connection ends.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tidegate_os::endpoint::{Endpoint, ParseEndpointError};

/// How a connection goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// Continue.
    #[default]
    Continue,
    /// Send what is in the outbox, then finish sending (half-close); receiving goes on.
    Shutdown,
    /// Send the contents of the outbox, then close. Further input is discarded.
    Close,
    /// Like [`Close`](Self::Close), but finish sending first and discard input until the peer closes too, or for
    /// [`Policy::linger_timeout`](crate::Policy::linger_timeout). For a final response to a peer that may still be
    /// sending: closing right away would make the kernel send a reset, and the peer might never read the response (RFC
    /// 9112, section 9.6).
    Linger,
    /// Drop the outbox and reset the connection.
    Abort,
}

/// How much of the input [`Session::on_bytes`](crate::Session::on_bytes) used, and how the connection goes on.
///
/// Made by [`all`](Self::all) or [`bytes`](Self::bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumed {
    /// Bytes used, from the front of the input.
    pub bytes: usize,
    /// How the connection goes on.
    pub flow: Flow,
    /// The session asks to be called again with the rest, if it consumed some: see [`again`](Self::again).
    pub again: bool,
}

impl Consumed {
    /// All of the input.
    #[must_use]
    pub fn all(input: &[u8]) -> Self {
        Self::bytes(input.len())
    }

    /// The first `bytes` bytes of the input.
    #[must_use]
    pub fn bytes(bytes: usize) -> Self {
        Self { bytes, flow: Flow::Continue, again: false }
    }

    /// The same, and the connection goes on with `flow`.
    #[must_use]
    pub fn then(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }

    /// The same and this many bytes more: for a layer that took a header in front of what its session was shown.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// The same, and if the session consumed some of the input and not all, it is called again immediately with the
    /// rest: for sessions that handle one message per call. After 64 calls other connections are served, and it
    /// continues before anything more is received.
    ///
    /// ```
    /// # use tidegate::Consumed;
    /// fn one_line(input: &[u8]) -> Consumed {
    ///     match input.iter().position(|&byte| byte == b'\n') {
    ///         Some(end) => Consumed::bytes(end + 1).again(),
    ///         None => Consumed::bytes(0), // it is not complete
    ///     }
    /// }
    /// assert!(one_line(b"one\ntwo\n").again);
    /// ```
    #[must_use]
    pub fn again(self) -> Self {
        Self { again: true, ..self }
    }
}

/// The peer of a connection.
///
/// Created by engines; tests and layers use [`accepted`](Self::accepted) or [`dialled`](Self::dialled) and the setters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its address. Always set for connections dialled to one; for accepted ones if the service
    /// [asks for it](ServiceOptions::peer_addr). Unix sockets have none.
    pub addr: Option<SocketAddr>,
    /// The address of this end, where the service [asks for it](ServiceOptions::local_addr): for accepted
    /// connections the one that the peer has connected to, also where the server listens on all (`0.0.0.0`). Unix
    /// sockets have none.
    pub local_addr: Option<SocketAddr>,
    /// Who made the connection.
    pub origin: Origin,
    /// Index of the I/O thread that owns the connection, from 0.
    pub thread: usize,
    /// The result of the TLS handshake, for a session inside a TLS layer.
    pub tls: Option<Arc<TlsPeer>>,
}

impl Peer {
    /// An accepted peer, without an address, on thread 0.
    #[must_use]
    pub fn accepted() -> Self {
        Self::of(Origin::Accepted)
    }

    /// A dialled peer with this [tag](Dial::tag), without an address, on thread 0.
    #[must_use]
    pub fn dialled(tag: u64) -> Self {
        Self::of(Origin::Dialled { tag })
    }

    fn of(origin: Origin) -> Self {
        Self { addr: None, local_addr: None, origin, thread: 0, tls: None }
    }

    /// Sets its address.
    #[must_use]
    pub fn with_addr(self, addr: Option<SocketAddr>) -> Self {
        Self { addr, ..self }
    }

    /// With this address of this end.
    #[must_use]
    pub fn with_local_addr(self, local_addr: Option<SocketAddr>) -> Self {
        Self { local_addr, ..self }
    }

    /// On this I/O thread.
    #[must_use]
    pub fn with_thread(self, thread: usize) -> Self {
        Self { thread, ..self }
    }

    /// Sets the result of its TLS handshake.
    #[must_use]
    pub fn with_tls(self, tls: Arc<TlsPeer>) -> Self {
        Self { tls: Some(tls), ..self }
    }
}

/// The result of a TLS handshake; see [`Peer::tls`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsPeer {
    /// The host name that the client asked for (SNI, RFC 6066), in lower case. For accepted connections.
    pub server_name: Option<Box<str>>,
    /// The negotiated application protocol (ALPN, RFC 7301), such as `h2`.
    pub alpn: Option<Vec<u8>>,
    /// The peer's certificate and the intermediate ones, in DER form; empty if it presented none. They were verified as
    /// configured.
    pub certificates: Vec<Vec<u8>>,
}

/// Which end made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The peer did; this end accepted it.
    Accepted,
    /// This end did, with the [`Dial::tag`] given.
    Dialled {
        /// The number given with the dial.
        tag: u64,
    },
}

/// Parameters of a dial; see [`Dialler`](crate::client::Dialler) and [`Outbox::dial`](crate::Outbox::dial).
///
/// Whatever converts into an [`Endpoint`] also converts into a dial to it; text does by [`TryFrom`] or `parse`, and
/// names of hosts are not looked up.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tidegate::Dial;
/// let addr = SocketAddr::from(([127, 0, 0, 1], 7000));
/// assert_eq!(Dial::from(addr), Dial::to(addr));
/// assert_eq!("127.0.0.1:7000".parse::<Dial>()?.tag(1), Dial::to(addr).tag(1));
/// # Ok::<(), tidegate::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dial {
    /// Destination.
    pub to: Endpoint,
    /// Source address; `None` lets the system pick. Port 0 lets it pick the port. Not for Unix sockets.
    pub source: Option<SocketAddr>,
    /// A number chosen by the application, returned in [`Origin::Dialled`].
    pub tag: u64,
    /// The I/O thread that will own the connection, modulo their number; `None` uses them in turn.
    pub thread: Option<usize>,
}

impl Dial {
    /// Dials this address; all other parameters are left to the system.
    #[must_use]
    pub fn to(to: impl Into<Endpoint>) -> Self {
        Self { to: to.into(), source: None, tag: 0, thread: None }
    }

    /// Sets the source address.
    #[must_use]
    pub fn source(self, source: SocketAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Sets the tag.
    #[must_use]
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Sets the I/O thread.
    #[must_use]
    pub fn thread(self, thread: usize) -> Self {
        Self { thread: Some(thread), ..self }
    }
}

/// Not for all that converts into an [`Endpoint`] at once: the compiler takes text for a part of that.
macro_rules! dial_to {
    ($($address:ty),*) => {$(
        impl From<$address> for Dial {
            fn from(to: $address) -> Self {
                Self::to(to)
            }
        }
    )*};
}

dial_to!(Endpoint, &Endpoint, SocketAddr, SocketAddrV4, SocketAddrV6, PathBuf, &Path);

impl<I: Into<IpAddr>> From<(I, u16)> for Dial {
    fn from(to: (I, u16)) -> Self {
        Self::to(to)
    }
}

impl FromStr for Dial {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        Ok(Self::to(text.parse::<Endpoint>()?))
    }
}

macro_rules! dial_to_text {
    ($($text:ty),*) => {$(
        impl TryFrom<$text> for Dial {
            type Error = ParseEndpointError;

            fn try_from(text: $text) -> Result<Self, ParseEndpointError> {
                text.parse()
            }
        }
    )*};
}

dial_to_text!(&str, &String, String);

/// What a session is in the middle of; see [`Outbox::set_activity`](crate::Outbox::set_activity).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// Nothing: between two messages.
    #[default]
    Nothing,
    /// The rest of a message that has begun: a stop waits for it, and [`Policy::min_rate`](crate::Policy::min_rate)
    /// applies.
    Input,
    /// A response from elsewhere, such as an upstream server: a stop waits for it. Input is received as before, and
    /// [`Policy::min_rate`](crate::Policy::min_rate) does not apply to it.
    Answer,
    /// Work of this end, such as mail with the response: a stop waits for it. While there is input that the session
    /// left, no more is received; it is passed again when mail, a timer or [`on_drained`](crate::Session::on_drained)
    /// has ended the work, and only then the session learns that its peer has finished.
    Work,
}

/// What the sessions of a [`Service`](crate::Service) need of the engine. The default is none of it.
///
/// ```
/// # use tidegate::ServiceOptions;
/// let options = ServiceOptions::default().speaks_first(true).dials(1);
/// assert!(options.speaks_first && !options.peer_addr);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// Whether sessions send before they have received anything (SMTP does, HTTP does not).
    ///
    /// It must be set for a service that speaks first: the kernel may otherwise hold a new connection back until its
    /// first data arrived (`TCP_DEFER_ACCEPT`).
    pub speaks_first: bool,
    /// Whether [`Peer::addr`] is set for accepted connections. On `uring` that costs a descriptor and a system call for
    /// each connection; elsewhere it is free.
    pub peer_addr: bool,
    /// Whether [`Peer::local_addr`] is set. That costs a system call for each connection; on `uring` also a descriptor.
    pub local_addr: bool,
    /// How many connections each session may have [dialled](crate::Outbox::dial) at once. So many places for each
    /// accepted connection are set aside within [`Policy::max_connections`](crate::Policy::max_connections): with 1,
    /// half of them are accepted, and half are dialled.
    pub dials: usize,
    /// Stack that the sessions need, in bytes; 0 if any will do. The threads that run them have so much or more: on
    /// `blocking` and `pool` in place of the default of
    /// [`Policy::thread_stack_bytes`](crate::Policy::thread_stack_bytes) (a policy that sets less is refused), on the
    /// other models in place of 2 MiB. A stack that overflows ends the process. Costs address space; only pages that
    /// are touched use memory.
    pub stack_bytes: usize,
}

impl ServiceOptions {
    /// Sets [`speaks_first`](Self::speaks_first).
    #[must_use]
    pub fn speaks_first(self, speaks_first: bool) -> Self {
        Self { speaks_first, ..self }
    }

    /// Sets [`peer_addr`](Self::peer_addr).
    #[must_use]
    pub fn peer_addr(self, peer_addr: bool) -> Self {
        Self { peer_addr, ..self }
    }

    /// Sets [`local_addr`](Self::local_addr).
    #[must_use]
    pub fn local_addr(self, local_addr: bool) -> Self {
        Self { local_addr, ..self }
    }

    /// Sets [`dials`](Self::dials).
    #[must_use]
    pub fn dials(self, dials: usize) -> Self {
        Self { dials, ..self }
    }

    /// Sets [`stack_bytes`](Self::stack_bytes).
    #[must_use]
    pub fn stack_bytes(self, stack_bytes: usize) -> Self {
        Self { stack_bytes, ..self }
    }
}

/// The service refuses this connection.
///
/// The name is also that of its value: `Err(Refusal)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {}

/// The service refuses this connection, and says no more about it.
// A constant and not a unit struct: fields that the struct may get some day break nobody who writes `Err(Refusal)`.
#[allow(non_upper_case_globals, reason = "it is written like the unit struct in whose place it is")]
pub const Refusal: Refusal = Refusal {};

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service refuses this connection")
    }
}

impl std::error::Error for Refusal {}

/// What cannot fail refuses nothing: `link::dialling(addr, ..)?` in [`open`](crate::Service::open).
impl From<Infallible> for Refusal {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why a connection ended. Every one is counted in [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both ends finished, or this end closed after its last byte.
    Finished,
    /// The session aborted it.
    Aborted,
    /// The peer reset it, or disappeared in mid-stream.
    Reset,
    /// No first byte within [`Policy::first_byte_timeout`](crate::Policy::first_byte_timeout).
    FirstByteTimeout,
    /// No traffic for [`Policy::idle_timeout`](crate::Policy::idle_timeout).
    IdleTimeout,
    /// The peer accepted nothing for [`Policy::send_timeout`](crate::Policy::send_timeout).
    SendTimeout,
    /// The peer sent, or received, less than [`Policy::min_rate`](crate::Policy::min_rate) in mid-message.
    MinRate,
    /// The session left more input unconsumed than [`Policy::input_bytes`](crate::Policy::input_bytes).
    InputLimit,
    /// The server stopped.
    Stopped,
    /// The session panicked.
    Panicked,
    /// The kernel had no memory for long ([`Policy::shed_after`](crate::Policy::shed_after)), and it was idle longest.
    NoMemory,
    /// The kernel reported another error; to a session inside TLS, its stream was cut off or changed.
    Error,
}

impl CloseReason {
    /// All reasons, in the order of their counters.
    pub const ALL: &'static [Self] = &[
        Self::Finished,
        Self::Aborted,
        Self::Reset,
        Self::FirstByteTimeout,
        Self::IdleTimeout,
        Self::SendTimeout,
        Self::MinRate,
        Self::InputLimit,
        Self::Stopped,
        Self::Panicked,
        Self::NoMemory,
        Self::Error,
    ];

    /// A short name, as used in counters and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Aborted => "aborted",
            Self::Reset => "reset",
            Self::FirstByteTimeout => "first-byte-timeout",
            Self::IdleTimeout => "idle-timeout",
            Self::SendTimeout => "send-timeout",
            Self::MinRate => "min-rate",
            Self::InputLimit => "input-limit",
            Self::Stopped => "stopped",
            Self::Panicked => "panicked",
            Self::NoMemory => "no-memory",
            Self::Error => "error",
        }
    }

    /// The reason that corresponds to an I/O error.
    #[must_use]
    pub fn of(kind: io::ErrorKind) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
        match kind {
            ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected | TimedOut => Self::Reset,
            _ => Self::Error,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
