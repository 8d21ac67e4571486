//! A client: the same sessions in the other direction.

// ANCHOR: ask
use std::io;
use std::sync::mpsc::Sender;

use tidegate::{CloseReason, Consumed, Dial, Flow, Outbox, Peer, Refusal, Service, Session};

/// Sends a question over each connection, and reports the answer.
#[derive(Clone)]
pub struct Ask {
    pub question: Vec<u8>,
    pub answers: Sender<io::Result<Vec<u8>>>,
}

/// One connection, with what has been answered so far.
pub struct Asked {
    ask: Ask,
    answer: Vec<u8>,
}

impl Service for Ask {
    type Session = Asked;

    fn open(&self, _: &Peer) -> Result<Asked, Refusal> {
        Ok(Asked { ask: self.clone(), answer: Vec::new() })
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        let why = io::Error::new(error.kind(), format!("{}: {error}", dial.to));
        let _ = self.answers.send(Err(why)); // nobody may wait for it any more
    }
}

impl Session for Asked {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&self.ask.question);
        Flow::Shutdown // finish sending; receiving goes on
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        self.answer.extend_from_slice(input);
        Consumed::all(input)
    }

    fn on_close(&mut self, why: CloseReason) {
        let answer = std::mem::take(&mut self.answer);
        let answer =
            if why == CloseReason::Finished { Ok(answer) } else { Err(io::Error::other(why.name())) };
        let _ = self.ask.answers.send(answer);
    }
}
// ANCHOR_END: ask
