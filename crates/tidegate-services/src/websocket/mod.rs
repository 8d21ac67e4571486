//! WebSocket (RFC 6455), server side: adapts a message service to a byte service, on every model.
//!
//! | part | contents |
//! |---|---|
//! | `request` | the HTTP request: an upgrade or a page |
//! | `channel` | frames in, messages out; control frames and the closing handshake |
//! | `message` | [`WebSocketMessage`] and [`CloseCode`] |
//! | [`frame`] | messages as frames, for one peer or shared by many |
//! | `session` | one connection |
//! | [`EchoMessages`] | echo, for test suites |
//!
//! [`WebSocket`] wraps a [`MessageService`] like a layer, so TLS and the PROXY protocol can wrap it. Text is checked to
//! be UTF-8, control frames are handled between the fragments of a message, and the size of a message with all its
//! fragments is bounded by [`WebSocketLimits::message_bytes`]. Pages of other sites may not connect unless [`Access`]
//! allows them. There are no extensions (no compression) and no subprotocols. A server that stops, or hands over to a
//! successor, closes with code 1001.

mod channel;
mod echo;
pub mod frame;
mod message;
mod request;
mod session;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate::policy::{Limit, Limited};
use tidegate::{CloseReason, Mail, Outbox, Peer, Policy, PolicyError, Refusal, Service};

use crate::http::Access;

pub use echo::{EchoMessages, EchoMessagesSession};
pub use message::{CloseCode, WebSocketMessage};
pub use session::WebSocketSession;

/// Creates one [`MessageSession`] for each WebSocket.
pub trait MessageService: Send + Sync + 'static {
    /// The state machine of one WebSocket.
    type Session: MessageSession;

    /// Called on a WebSocket request for this path (with its query): returns its session, or refuses it (404).
    fn open(&self, peer: &Peer, path: &str) -> Result<Self::Session, Refusal>;

    /// The response to a plain `GET` of this path; `None` is 404. The bytes are HTML.
    fn page(&self, path: &str) -> Option<Bytes> {
        let _ = path;
        None
    }
}

/// The state machine of one WebSocket. Like a [`Session`](tidegate::Session), it must not block; it sends with the
/// functions of [`frame`].
pub trait MessageSession: Send + 'static {
    /// The handshake is complete. Called once, before everything else.
    fn on_open(&mut self, out: &mut Outbox<'_>) -> MessageFlow {
        let _ = out;
        MessageFlow::Continue
    }

    /// A message has arrived, with all its fragments.
    fn on_message(&mut self, message: WebSocketMessage<'_>, out: &mut Outbox<'_>) -> MessageFlow;

    /// Whether the next message is accepted now. If not, the peer is held back until mail changes that.
    fn takes_more(&self) -> bool {
        true
    }

    /// See [`Session::on_mail`](tidegate::Session::on_mail).
    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> MessageFlow {
        let _ = (mail, out);
        MessageFlow::Continue
    }

    /// The connection is gone. Called once, after everything else.
    fn on_close(&mut self, why: CloseReason) {
        let _ = why;
    }
}

/// How a WebSocket goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageFlow {
    /// Continue.
    #[default]
    Continue,
    /// Send what is in the outbox, then close with this code and reason (at most 123 bytes).
    Close(CloseCode, &'static str),
    /// Drop the outbox and reset the connection.
    Abort,
}

/// The relation of the largest message to the input that may be unconsumed; takes the limit's name.
macro_rules! frame_is_input {
    ($limit:literal) => {
        tidegate::policy::table::Relation {
            holds: tidegate::policy::table::BelowBy($crate::websocket::FRAMING_BYTES as u128),
            other: "input_bytes",
            remedy: concat!(
                "an incomplete frame, and its framing of 256 bytes, are unconsumed input; ",
                "raise `input_bytes` or lower `",
                $limit,
                "`"
            ),
        }
    };
}
pub(crate) use frame_is_input;

tidegate::limits! {
/// Limits of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebSocketLimits, as "websocket." of WebSocketLimits, at |limits| Some(limits);
    parts {}

    message_bytes: usize = 60 * 1024 => {
        what: "Largest WebSocket message, with all its fragments; a larger one closes the connection with code 1009",
        cost: "memory for each connection that holds a partial message",
        option: "message-bytes",
        unit: Bytes,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
        relation: Some(frame_is_input!("websocket.message_bytes")),
        with: Some("websocket"),
    }
    /// From when the connection is established. `None` waits forever.
    request_timeout: Option<Duration> = Some(Duration::from_secs(10)) => {
        what: "Time limit of the request that opens a WebSocket, or none; then the connection is reset",
        cost: "slow clients are disconnected",
        option: "request-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: BY_THE_SERVICE,
        with: Some("websocket"),
    }
}

/// Bytes besides a message that may be incomplete: a frame header and a control frame, or a request's head.
pub const FRAMING_BYTES: usize = 256;

/// Maximum head of a request; more is answered with 431, or 414.
pub const HEAD_BYTES: usize = 8 * 1024;

impl Limited for WebSocketLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl WebSocketLimits {
    /// The minimum [`Policy::input_bytes`] for these limits.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.message_bytes.saturating_add(FRAMING_BYTES).max(HEAD_BYTES)
    }

    /// Checks the limits, also against the policy of the service; `bind` does the same.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        check_head(policy)?;
        self.check_under(policy)
    }
}

/// Checks that the head of a request fits.
pub(crate) fn check_head(policy: &Policy) -> Result<(), PolicyError> {
    if policy.input_bytes >= HEAD_BYTES {
        return Ok(());
    }
    let must =
        format!("at least {HEAD_BYTES}: the head of the request that opens a WebSocket is unconsumed input");
    Err(PolicyError::Range { name: "input_bytes", value: policy.input_bytes.to_string(), must })
}

/// Adapts a message service to a byte service.
///
/// ```
/// use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};
///
/// let limits = WebSocketLimits::default().message_bytes(16 * 1024);
/// let server = tidegate::Server::new(WebSocket::new(EchoMessages, limits)).bind("127.0.0.1:0")?;
/// # let _ = server;
/// # Ok::<(), tidegate::StartError>(())
/// ```
#[derive(Debug)]
pub struct WebSocket<S>(Arc<WebSocketShared<S>>);

/// State shared by all connections.
#[derive(Debug)]
pub(crate) struct WebSocketShared<S> {
    pub(crate) service: S,
    pub(crate) limits: WebSocketLimits,
    pub(crate) access: Access,
}

impl<S: MessageService> WebSocket<S> {
    /// Serves WebSockets for `service`, within `limits`, for pages of the same origin, by IP address or `localhost`.
    #[must_use]
    pub fn new(service: S, limits: WebSocketLimits) -> Self {
        Self::with_access(service, limits, Access::default())
    }

    /// The same, for these host names and origins.
    #[must_use]
    pub fn with_access(service: S, limits: WebSocketLimits, access: Access) -> Self {
        Self(Arc::new(WebSocketShared { service, limits, access }))
    }
}

impl<S: MessageService> Service for WebSocket<S> {
    type Session = WebSocketSession<S>;

    fn open(&self, peer: &Peer) -> Result<WebSocketSession<S>, Refusal> {
        Ok(WebSocketSession::new(self.0.clone(), peer.clone()))
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.0.limits.check(policy)
    }
}
