//! What an application implements: [`Service`] and [`Session`], and the [`Outbox`] it answers through.
//!
//! A session is a state machine without I/O: it receives bytes, and puts bytes into an outbox. The engine decides which
//! thread receives and sends, and with which system calls, so the same session runs on every [`Model`](crate::Model),
//! as server and as client.

mod datagram;

pub use crate::proto::dial::DialError;
pub use crate::proto::group::Group;
pub use crate::proto::mail::{Mailbox, MailboxError, Message, OffloadError, Recipient, SendError};
pub use crate::proto::outbox::{LayerBuffer, Outbox};
pub use crate::proto::session::{Dialled, Mail, Service, Session};
pub use crate::proto::spliced::Spliced;
pub use crate::types::{
    Activity, CloseReason, Consumed, Dial, Flow, Origin, Peer, Refusal, ServiceOptions, TlsPeer,
};
pub use datagram::{DatagramService, Joined, Replies};
