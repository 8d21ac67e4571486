//! A destructor of the application that panics costs its own connection at most: of a session, of mail that was not
//! read, of a value sent to a group, of the result of a job, of what a panic carries.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tidegate::{
    Client, CloseReason, Consumed, Dial, Flow, Group, Mail, Mailbox, Model, Outbox, Peer, Recipient, Refusal,
    Service, Session,
};

use crate::kit::{self, ClosedPort, EchoPeer};

on_every_model!(case);

/// Panics when it is dropped, and counts that.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        kit::fall("on request, while it is dropped");
    }
}

#[derive(Clone, Default)]
struct Shared {
    fallen: Arc<AtomicUsize>,
    victims: Arc<Mutex<Vec<Mailbox<Bomb>>>>,
    group: Arc<Mutex<Group>>,
}

/// Obeys its input, and echoes it.
struct Fragile {
    shared: Shared,
    /// Goes off with the session.
    bomb: Option<Bomb>,
    own: Option<Mailbox<Bomb>>,
}

impl Fragile {
    fn bomb(&self) -> Bomb {
        Bomb(self.shared.fallen.clone())
    }

    fn act(&mut self, order: &[u8], out: &mut Outbox<'_>) -> Flow {
        match order {
            b"victim" => self.shared.victims.lock().expect("victims").push(Self::mailbox(out)),
            b"member" => self.shared.group.lock().expect("group").join(&Self::mailbox(out)),
            b"fall" => self.bomb = Some(self.bomb()),
            b"mail and close" => {
                Self::mailbox(out).send(self.bomb()).expect("mail"); // it is not read any more
                return Flow::Close;
            }
            b"mail" => {
                for mailbox in self.shared.victims.lock().expect("victims").iter() {
                    mailbox.send(self.bomb()).expect("mail");
                }
            }
            b"group" => {
                let value = Arc::new(self.bomb());
                self.shared.group.lock().expect("group").send(value).expect("mail");
            }
            b"offload" => {
                let bomb = self.bomb();
                out.offload(move || bomb).expect("a thread");
                return Flow::Close;
            }
            b"panic" => kit::fall(self.bomb()),
            b"job panics" => {
                let bomb = self.bomb();
                out.offload(move || kit::fall(bomb)).expect("a thread");
            }
            _ => {}
        }
        Flow::Continue
    }
}

impl Recipient for Fragile {
    type Message = Bomb;
}

impl Session for Fragile {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.own = Some(Self::mailbox(out));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input).then(self.act(input, out))
    }

    fn on_mail(&mut self, mail: Mail, _: &mut Outbox<'_>) -> Flow {
        std::mem::forget(mail); // what it reads does not go off
        Flow::Continue
    }
}

struct FragileService(Shared);

impl Service for FragileService {
    type Session = Fragile;

    fn open(&self, _: &Peer) -> Result<Fragile, Refusal> {
        Ok(Fragile { shared: self.0.clone(), bomb: None, own: None })
    }
}

fn case(model: Model) {
    let shared = Shared::default();
    let fallen = || shared.fallen.load(SeqCst);
    let server = kit::serve(model, kit::with_threads(model, 1), FragileService(shared.clone()));
    let closed = |n: u64| kit::until("it has left", || server.stats().closed_total() == n);
    let mut other = kit::connect(server.local_addr());
    kit::exchange(&mut other, b"before");
    let mut gone = 0;
    // Each on a connection of its own: the order, and how many destructors it sets off.
    for (order, bombs) in [
        (&b"fall"[..], 1),
        (b"mail and close", 1),
        (b"offload", 1),
        (b"panic", 1),
        (b"job panics", 1),
        (b"offload", 1),
    ] {
        let before = fallen();
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(order).expect("send");
        if order == b"panic" {
            kit::hear_all(&mut stream);
        } else {
            assert_eq!(kit::hear(&mut stream, order.len()), order);
        }
        drop(stream);
        gone += 1;
        closed(gone);
        kit::until("its destructor has run", || fallen() == before + bombs);
        kit::exchange(&mut other, b"after");
    }
    values_for_those_who_are_gone(&mut other, &server, &mut gone, &shared);
    kit::exchange(&mut other, b"at the end");
    drop(other);
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Panicked), 1);
    a_dialled_one_is_like_others(model);
}

fn values_for_those_who_are_gone(
    other: &mut std::net::TcpStream,
    server: &tidegate::Running,
    gone: &mut u64,
    shared: &Shared,
) {
    for (joins, order) in [(&b"victim"[..], &b"mail"[..]), (b"member", b"group")] {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, joins);
        drop(stream);
        *gone += 1;
        kit::until("it has left", || server.stats().closed_total() == *gone);
        let before = shared.fallen.load(SeqCst);
        kit::exchange(other, order);
        kit::until("its destructor has run", || shared.fallen.load(SeqCst) == before + 1);
        kit::exchange(other, b"after");
    }
}

/// Falls when it is dropped, and when a dial has failed.
struct Caller(Arc<AtomicUsize>);

struct Call(#[expect(dead_code, reason = "it is only dropped")] Bomb);

impl Service for Caller {
    type Session = Call;

    fn open(&self, _: &Peer) -> Result<Call, Refusal> {
        Ok(Call(Bomb(self.0.clone())))
    }

    fn dial_failed(&self, _: &Dial, _: &std::io::Error) {
        drop(Bomb(self.0.clone()));
    }
}

impl Session for Call {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"hello");
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input).then(Flow::Close)
    }
}

fn a_dialled_one_is_like_others(model: Model) {
    let echo_peer = EchoPeer::open(|_, _| {});
    let nobody = ClosedPort::new();
    let fallen = Arc::new(AtomicUsize::new(0));
    let policy = kit::with_threads(model, 1).fast_path(None);
    let client = Client::new(Caller(fallen.clone())).model(model).policy(policy).start().expect("start");
    for round in 0..3 {
        client.dial(echo_peer.addr).expect("dial");
        kit::until("the call has ended", || fallen.load(SeqCst) == 2 * round + 1);
        client.dial(nobody.addr).expect("dial");
        kit::until("the dial has failed", || fallen.load(SeqCst) == 2 * round + 2);
    }
    client.stop();
    let stats = client.join();
    kit::check(&stats);
    assert_eq!((stats.closed_by(CloseReason::Finished), stats.dial_failed), (3, 3));
}
