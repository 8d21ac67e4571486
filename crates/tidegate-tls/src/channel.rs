//! One TLS connection: ciphertext in and out, plaintext in and out. Independent of sessions.

use std::cell::RefCell;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus, WriteTraffic};
use rustls::{CommonState, Error, HandshakeKind, PeerMisbehaved};
use tidegate::{LayerBuffer, Outbox, TlsPeer};

use crate::server_name;

/// Server or client: rustls has a type for each.
pub trait TlsSide: Send + 'static {
    /// rustls' per-side data.
    type Data;

    /// One step.
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// The operations common to both.
    fn common(&self) -> &CommonState;

    /// The host name that the client requested in this step.
    fn take_server_name() -> Option<Box<str>> {
        None
    }
}

impl TlsSide for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn take_server_name() -> Option<Box<str>> {
        server_name::take()
    }
}

impl TlsSide for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

/// Maximum plaintext of a record (RFC 8446, section 5.1).
const PLAIN_BYTES: usize = 16 * 1024;

/// Maximum overhead of a record's protection, and a key update in front of it.
const EXTRA_BYTES: usize = 1024;

thread_local! {
    /// Per-thread buffers in which records are assembled.
    static RECORD: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// One TLS connection.
pub(crate) struct Channel<C> {
    connection: Box<C>,
    /// Bytes of an incomplete record or multi-record message. rustls decrypts in place and remembers offsets, so these
    /// bytes stay as it left them. Owns no memory while empty.
    incoming: Vec<u8>,
    /// The handshake is complete.
    pub(crate) established: bool,
    /// The peer has sent its `close_notify`.
    pub(crate) peer_ended: bool,
    /// This end has sent its `close_notify`.
    pub(crate) ended: bool,
    /// It will send none: what it has sent is not known to be complete.
    pub(crate) ends_silently: bool,
    /// The host name that the client requested.
    server_name: Option<Box<str>>,
}

impl<C: TlsSide> Channel<C> {
    pub(crate) fn new(connection: C) -> Self {
        Self {
            connection: Box::new(connection),
            incoming: Vec::new(),
            established: false,
            peer_ended: false,
            ended: false,
            ends_silently: false,
            server_name: None,
        }
    }

    /// Bytes of incomplete input.
    pub(crate) fn waiting(&self) -> usize {
        self.incoming.len()
    }

    /// Whether an earlier session was resumed. Only once it is established.
    pub(crate) fn is_resumed(&self) -> bool {
        self.connection.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The result of the handshake. Only once it is established.
    pub(crate) fn agreed(&mut self) -> TlsPeer {
        let common = self.connection.common();
        let mut agreed = TlsPeer::default();
        agreed.server_name = self.server_name.take();
        agreed.alpn = common.alpn_protocol().map(<[u8]>::to_vec);
        agreed.certificates =
            common.peer_certificates().unwrap_or_default().iter().map(|one| one.to_vec()).collect();
        agreed
    }

    /// Handles received bytes: plaintext is appended to `plain`, responses go to `out`.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Outbox<'_>,
    ) -> Result<(), Error> {
        if self.peer_ended {
            return Ok(()); // RFC 8446, section 6.1: data after the end is ignored
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.extend_from_slice(input);
        let mut used = 0;
        let mut over = None;
        while over.is_none() {
            let UnbufferedStatus { mut discard, state } = self.connection.process(&mut incoming[used..]);
            if !self.established {
                self.server_name = C::take_server_name().or(self.server_name.take());
            }
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.peer_ended = true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.established = true;
                    over = Some(Ok(()));
                }
                // Early data is never accepted: it could be replayed.
                Ok(_) => over = Some(Ok(())),
                Err(e) => over = Some(Err(e)),
            }
            used += discard;
        }
        if let Some(Err(Error::PeerMisbehaved(
            PeerMisbehaved::TooManyKeyUpdateRequests | PeerMisbehaved::TooManyWarningAlertsReceived,
        ))) = &over
            && !self.ended
        {
            self.object();
        }
        if !self.peer_ended {
            incoming.drain(..used.min(incoming.len()));
            self.incoming = if incoming.is_empty() { Vec::new() } else { incoming };
        }
        over.unwrap_or(Ok(()))
    }

    /// Encrypts the content of the layer buffer, until the outbox is full: the rest may be a part of a file, which is
    /// read no faster than the peer accepts it. Nothing is encrypted after this end's `close_notify`.
    pub(crate) fn send(&mut self, plaintext: &mut LayerBuffer, out: &mut Outbox<'_>) -> Result<(), Error> {
        if plaintext.is_empty() {
            return Ok(());
        }
        if self.ended || !self.established {
            plaintext.clear();
            return Ok(());
        }
        RECORD.with_borrow_mut(|(plain, cipher)| {
            plain.resize(PLAIN_BYTES, 0);
            cipher.resize(PLAIN_BYTES + EXTRA_BYTES, 0);
            self.with_traffic(out, |traffic, out| {
                while !plaintext.is_empty() && !out.is_full() {
                    let n = plaintext.take(plain).map_err(|e| Error::General(e.to_string()))?;
                    // Fails only when keys have reached their usage limit.
                    let n = traffic.encrypt(&plain[..n], cipher).map_err(|_| Error::EncryptError)?;
                    out.write(&cipher[..n]);
                }
                Ok(())
            })
        })
    }

    /// Sends `close_notify`, if what was sent is complete.
    pub(crate) fn end(&mut self, out: &mut Outbox<'_>) {
        if std::mem::replace(&mut self.ended, true) || !self.established || self.ends_silently {
            return;
        }
        let mut notify = [0; 256];
        // If it cannot be sent, the peer treats the connection as truncated, as it should.
        let _ = self.with_traffic(out, |traffic, out| {
            let n = traffic.queue_close_notify(&mut notify).map_err(|_| Error::EncryptError)?;
            out.write(&notify[..n]);
            Ok(())
        });
    }

    /// Sends the alert for a failure. Nothing is received or sent after it.
    pub(crate) fn alert(&mut self, out: &mut Outbox<'_>) {
        (self.peer_ended, self.ended, self.incoming) = (true, true, Vec::new());
        // Must be the last step: rustls panics if it is used after a failure.
        while self.connection.common().wants_write() {
            match self.connection.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out),
                Ok(ConnectionState::ReadTraffic(mut traffic)) => while traffic.next_record().is_some() {},
                _ => return,
            }
        }
    }

    /// Makes rustls send an alert where it fails without one: after too many messages of an allowed kind.
    ///
    /// It sends one only for unreadable input, so it is given some. No message is partially read in these cases, so
    /// rustls holds no offset into earlier input. Not after this end's `close_notify`: an alert would be too late.
    #[cold]
    fn object(&mut self) {
        let mut no_record = [0xff, 3, 3, 0, 1, 0];
        let UnbufferedStatus { discard: _, state } = self.connection.process(&mut no_record);
        drop(state);
    }

    /// Gives `f` the encrypter, once all earlier output is in the outbox.
    fn with_traffic(
        &mut self,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut WriteTraffic<'_, C::Data>, &mut Outbox<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            // Always with the incomplete input: rustls remembers offsets in it.
            let UnbufferedStatus { discard, state } = self.connection.process(&mut self.incoming);
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => return f(&mut traffic, out),
                ConnectionState::EncodeTlsData(data) => encode(data, out),
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.peer_ended = true,
                // `receive` has read all complete records, so nothing is left to read here.
                _ => return Err(Error::HandshakeNotComplete),
            }
            self.incoming.drain(..discard);
        }
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, out: &mut Outbox<'_>) {
    let Err(EncodeError::InsufficientSize(need)) = data.encode(&mut []) else { return };
    let mut bytes = vec![0; need.required_size];
    if data.encode(&mut bytes).is_ok() {
        out.share(bytes.into());
    }
}
