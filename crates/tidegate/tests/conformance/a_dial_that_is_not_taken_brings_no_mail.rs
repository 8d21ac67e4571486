//! A session that dials more than its thread takes learns it from each call that is refused, and from nothing else: as
//! many answers come by mail as dials were taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate::{
    Consumed, DialError, Flow, Mail, MailboxError, Model, Outbox, Peer, Refusal, Service, ServiceOptions,
    Session,
};

use crate::kit;

on_every_model!(case);

const DIALS: usize = 100;
const MAIL_QUEUE: usize = 8;

/// What became of the dials of one session.
#[derive(Default)]
struct Count {
    taken: AtomicUsize,
    refused: AtomicUsize,
    answered: AtomicUsize,
}

struct Dials {
    to: SocketAddr,
    count: Arc<Count>,
}

impl Service for Dials {
    type Session = Dialling;

    fn open(&self, _: &Peer) -> Result<Dialling, Refusal> {
        Ok(Dialling { to: self.to, count: self.count.clone() })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().dials(1)
    }
}

/// Dials at the word `dial`, and echoes.
struct Dialling {
    to: SocketAddr,
    count: Arc<Count>,
}

/// What a connection would be given to, if one could be made.
struct Nothing;

impl Session for Nothing {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }
}

impl Session for Dialling {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        if input == b"dial" {
            for _ in 0..DIALS {
                match out.dial(self.to, kit::timeout(), Nothing) {
                    Ok(()) => self.count.taken.fetch_add(1, SeqCst),
                    Err(DialError::Queue(MailboxError::Full)) => self.count.refused.fetch_add(1, SeqCst),
                    Err(e) => panic!("{e}"),
                };
            }
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, _: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Dialled(dialled) => assert!(dialled.result.is_err(), "nobody listens there"),
            other => panic!("{other:?}"),
        }
        self.count.answered.fetch_add(1, SeqCst);
        Flow::Continue
    }
}

fn case(model: Model) {
    // Bound, so that nobody else listens there either.
    let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    nobody.bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("an address").into()).expect("bind");
    let to = nobody.local_addr().expect("address").as_socket().expect("an IPv4 address");
    let count = Arc::<Count>::default();
    let policy = kit::with_threads(model, 1).mail_queue(MAIL_QUEUE);
    let server = kit::serve(model, policy, Dials { to, count: count.clone() });
    let mut caller = kit::connect(server.local_addr());
    kit::exchange(&mut caller, b"dial");
    let taken = count.taken.load(SeqCst);
    kit::until("all that were taken are answered", || count.answered.load(SeqCst) >= taken);
    kit::exchange(&mut caller, b"and what was in the mail has been read");
    drop(caller);
    let stats = kit::finish(server);
    let (refused, answered) = (count.refused.load(SeqCst), count.answered.load(SeqCst));
    assert_eq!((answered, taken + refused), (taken, DIALS), "{refused} were refused");
    assert_eq!(stats.dial_failed, taken as u64);
    // A loop takes dials as commands; on the other models each is begun, or answered, at once.
    let has_a_loop = !matches!(model, Model::Blocking | Model::Pool | Model::Tokio);
    assert_eq!((refused > 0, taken), if has_a_loop { (true, MAIL_QUEUE) } else { (false, DIALS) });
}
