//! A service that writes down everything it is shown.

use std::sync::{Arc, Mutex};

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Recipient, Refusal, Service, Session};

/// What a session was shown, in order. Bytes that came in several pieces are one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `Service::open`, with the address given.
    Peer(Option<String>),
    Open,
    Bytes(Vec<u8>),
    Drained,
    End,
    Timer,
    Message(&'static str),
    Drain,
    Limit,
    Close(CloseReason),
}

type OnOpen = dyn Fn(&mut Outbox<'_>) -> Flow + Send + Sync;

/// Echoes, and writes down what happens.
#[derive(Clone)]
pub struct Diary {
    entries: Arc<Mutex<Vec<Entry>>>,
    /// Where the bytes shown last lay.
    pub shown_at: Arc<Mutex<usize>>,
    on_open: Arc<OnOpen>,
    refuses: bool,
}

impl Diary {
    pub fn new() -> Self {
        Self::that(|_| Flow::Continue)
    }

    /// One whose sessions do this when they are opened.
    pub fn that(on_open: impl Fn(&mut Outbox<'_>) -> Flow + Send + Sync + 'static) -> Self {
        Self { entries: Arc::default(), shown_at: Arc::default(), on_open: Arc::new(on_open), refuses: false }
    }

    /// The same, but it refuses everybody.
    pub fn refusing(self) -> Self {
        Self { refuses: true, ..self }
    }

    pub fn read(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    fn write(&self, entry: Entry) {
        let mut entries = self.entries.lock().unwrap();
        match (entries.last_mut(), entry) {
            (Some(Entry::Bytes(before)), Entry::Bytes(bytes)) => before.extend(bytes),
            (_, entry) => entries.push(entry),
        }
    }
}

impl Service for Diary {
    type Session = Diary;

    fn open(&self, peer: &Peer) -> Result<Diary, Refusal> {
        assert_eq!(peer.thread, 3, "the thread is the one of the connection");
        self.write(Entry::Peer(peer.addr.map(|addr| addr.to_string())));
        if self.refuses { Err(Refusal) } else { Ok(self.clone()) }
    }
}

impl Recipient for Diary {
    type Message = &'static str;
}

impl Session for Diary {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.write(Entry::Open);
        (self.on_open)(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        assert!(!input.is_empty(), "a session is never shown nothing");
        self.write(Entry::Bytes(input.to_vec()));
        *self.shown_at.lock().unwrap() = input.as_ptr().addr();
        out.write(input);
        Consumed::all(input)
    }

    fn on_drained(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.write(Entry::Drained);
        Flow::Continue
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.write(Entry::End);
        Flow::Close
    }

    fn on_mail(&mut self, mail: Mail, _: &mut Outbox<'_>) -> Flow {
        self.write(match mail {
            Mail::Message(message) => Entry::Message(Self::unpack(message)),
            _ => Entry::Timer,
        });
        Flow::Continue
    }

    fn on_input_limit(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.write(Entry::Limit);
        Flow::Abort
    }

    fn on_drain(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.write(Entry::Drain);
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        self.write(Entry::Close(why));
    }
}
