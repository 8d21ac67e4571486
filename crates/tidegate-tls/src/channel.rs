//! One TLS connection: bytes of the wire in and out, bytes of the session out and in. Knows nothing of sessions.

use std::cell::RefCell;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus, WriteTraffic};
use rustls::{CommonState, Error, HandshakeKind, PeerMisbehaved};
use tidegate::{LayerBuffer, Outbox};

/// Server or client: what rustls has two types for.
pub trait Side: Send + 'static {
    /// What rustls keeps for it.
    type Data;

    /// One step.
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What both have.
    fn common(&self) -> &CommonState;
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

/// Most plaintext of a record (RFC 8446, section 5.1).
const PLAIN_BYTES: usize = 16 * 1024;

/// More than any protection adds to a record, and a key update in front of it.
const EXTRA_BYTES: usize = 1024;

thread_local! {
    /// Where a record is put together: what is said, and what becomes of it.
    static RECORD: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// One TLS connection.
pub(crate) struct Channel<C> {
    connection: Box<C>,
    /// What has arrived of a record, or a message of several, that is not complete. rustls decrypts in place and
    /// remembers what is where, so these bytes stay as it left them. Owns no memory while empty.
    incoming: Vec<u8>,
    /// The handshake is over.
    pub(crate) established: bool,
    /// The peer has said that it ends.
    pub(crate) peer_ended: bool,
    /// This end has.
    pub(crate) ended: bool,
}

impl<C: Side> Channel<C> {
    pub(crate) fn new(connection: C) -> Self {
        Self {
            connection: Box::new(connection),
            incoming: Vec::new(),
            established: false,
            peer_ended: false,
            ended: false,
        }
    }

    /// Bytes of what has not arrived in full.
    pub(crate) fn waiting(&self) -> usize {
        self.incoming.len()
    }

    /// Whether an earlier session was taken up. Only once it is established.
    pub(crate) fn is_resumed(&self) -> bool {
        self.connection.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Takes in what was received: what it says is appended to `plain`, what has to be answered goes to `out`.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Outbox<'_>,
    ) -> Result<(), Error> {
        if self.peer_ended {
            return Ok(()); // RFC 8446, section 6.1: what comes after the end is ignored
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.extend_from_slice(input);
        let mut used = 0;
        let mut over = None;
        while over.is_none() {
            let UnbufferedStatus { mut discard, state } = self.connection.process(&mut incoming[used..]);
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

    /// Encrypts what the draft holds, until the outbox is full: the rest may be a part of a file, which is read no
    /// faster than the peer takes it. After this end has said that it ends, there is nobody to hear it.
    pub(crate) fn send(&mut self, draft: &mut LayerBuffer, out: &mut Outbox<'_>) -> Result<(), Error> {
        if draft.is_empty() {
            return Ok(());
        }
        if self.ended || !self.established {
            draft.clear();
            return Ok(());
        }
        RECORD.with_borrow_mut(|(plain, cipher)| {
            plain.resize(PLAIN_BYTES, 0);
            cipher.resize(PLAIN_BYTES + EXTRA_BYTES, 0);
            self.with_traffic(out, |traffic, out| {
                while !draft.is_empty() && !out.is_full() {
                    let n = draft.take(plain).map_err(|e| Error::General(e.to_string()))?;
                    // Only keys that have protected as much as they may are refused.
                    let n = traffic.encrypt(&plain[..n], cipher).map_err(|_| Error::EncryptError)?;
                    out.write(&cipher[..n]);
                }
                Ok(())
            })
        })
    }

    /// Says that this end ends.
    pub(crate) fn end(&mut self, out: &mut Outbox<'_>) {
        if std::mem::replace(&mut self.ended, true) || !self.established {
            return;
        }
        let mut notify = [0; 256];
        // An end that cannot be said any more is one that the peer takes for truncated, as it should.
        let _ = self.with_traffic(out, |traffic, out| {
            let n = traffic.queue_close_notify(&mut notify).map_err(|_| Error::EncryptError)?;
            out.write(&notify[..n]);
            Ok(())
        });
    }

    /// Sends what there is to say about a failure. Nothing is received or sent any more after it.
    pub(crate) fn alert(&mut self, out: &mut Outbox<'_>) {
        (self.peer_ended, self.ended, self.incoming) = (true, true, Vec::new());
        // Not a step further: rustls takes input after a failure for a mistake of its caller, and panics.
        while self.connection.common().wants_write() {
            match self.connection.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out),
                Ok(ConnectionState::ReadTraffic(mut traffic)) => while traffic.next_record().is_some() {},
                _ => return,
            }
        }
    }

    /// Has rustls send an alert where it fails without one: after too many messages that are allowed one by one.
    ///
    /// It sends one only for what it cannot read, so it is shown that. No message is half read in these cases, so that
    /// it remembers no place in what came before. Not after this end has said that it ends: an alert would come too
    /// late.
    #[cold]
    fn object(&mut self) {
        let mut no_record = [0xff, 3, 3, 0, 1, 0];
        let UnbufferedStatus { discard: _, state } = self.connection.process(&mut no_record);
        drop(state);
    }

    /// Gives `f` what encrypts, once everything that comes before it is on its way.
    fn with_traffic(
        &mut self,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut WriteTraffic<'_, C::Data>, &mut Outbox<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            // Always with what has not arrived in full: rustls remembers what is where in it.
            let UnbufferedStatus { discard, state } = self.connection.process(&mut self.incoming);
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => return f(&mut traffic, out),
                ConnectionState::EncodeTlsData(data) => encode(data, out),
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.peer_ended = true,
                // `receive` has read what is complete, so that there is nothing left to read here.
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
