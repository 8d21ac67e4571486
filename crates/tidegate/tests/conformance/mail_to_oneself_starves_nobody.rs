//! A session that mails itself without end, as one does whose future wakes itself, has its socket served, and so have
//! the others of its thread: those that were there before, and those that come.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Wake, Waker};

use tidegate::{CloseReason, Consumed, Flow, Mail, Mailbox, Model, Outbox, Recipient, Session};

use crate::kit;

on_every_model!(case);

/// Echoes; told to spin, it mails itself for each piece of mail. Told to poll, it is woken by a waker instead, as a
/// future is.
struct Spinner {
    waker: Option<Waker>,
    read: Arc<AtomicU64>,
}

/// Wakes a session by mail, once until it was woken.
struct Woken {
    mailbox: Mailbox<Option<Arc<Woken>>>,
    pending: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if !self.pending.swap(true, SeqCst) {
            let _ = self.mailbox.send(Some(self.clone())); // refused by a thread that has stopped
        }
    }
}

impl Recipient for Spinner {
    /// Who has woken it, if a waker has.
    type Message = Option<Arc<Woken>>;
}

impl Session for Spinner {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        match input {
            b"spin" => drop(Self::mailbox(out).send(None)),
            b"poll" => {
                let waker: Waker =
                    Arc::new(Woken { mailbox: Self::mailbox(out), pending: AtomicBool::new(false) }).into();
                waker.wake_by_ref();
                self.waker = Some(waker);
            }
            _ => {}
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.read.fetch_add(1, SeqCst);
        match (mail, &self.waker) {
            (Mail::Message(message), Some(waker)) => {
                if let Some(woken) = Self::unpack(message) {
                    woken.pending.store(false, SeqCst);
                }
                waker.wake_by_ref();
            }
            _ => drop(Self::mailbox(out).send(None)),
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    for how in [b"spin", b"poll"] {
        let read = Arc::new(AtomicU64::new(0));
        let its = read.clone();
        let service = kit::sessions(move || Spinner { waker: None, read: its.clone() });
        let server = kit::serve(model, kit::with_threads(model, 1), service);
        let mut before = kit::connect(server.local_addr());
        kit::exchange(&mut before, b"before");
        let mut spinner = kit::connect(server.local_addr());
        spinner.write_all(how).expect("send");
        kit::until("it spins", || read.load(SeqCst) > 10_000);
        kit::exchange(&mut before, b"still here");
        let mut after = kit::connect(server.local_addr());
        kit::exchange(&mut after, b"and here");
        assert_eq!(kit::hear(&mut spinner, 4), how, "what it has said is sent");
        kit::exchange(&mut spinner, b"and what it is sent is received");
        drop((before, after, spinner));
        kit::until("all have left", || server.stats().closed_by(CloseReason::Finished) == 3);
        kit::finish(server);
    }
}
