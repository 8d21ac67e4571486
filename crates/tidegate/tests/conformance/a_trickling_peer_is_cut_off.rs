//! [`Policy::min_rate`]: a peer that trickles in the middle of a message is reset, in either direction. One that rests
//! between two messages is not.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::policy::MinRate;
use tidegate::{Activity, CloseReason, Consumed, Model, Outbox, Policy, Session};

use crate::kit::{self, Producer, Tape};

on_every_model!(case);

/// Takes messages of a million bytes that begin with x, and of ten that do not; either leaves what is not a whole one,
/// or takes it and says that more is to come.
struct Tens {
    keeps: bool,
    have: usize,
}

impl Session for Tens {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let size = if self.have > 0 || input.starts_with(b"x") { 1_000_000 } else { 10 };
        if !self.keeps {
            let whole = input.len() / size * size;
            out.write(&input[..whole]);
            return Consumed::bytes(whole);
        }
        self.have = (self.have + input.len()) % size;
        if self.have == 0 {
            out.set_activity(Activity::Nothing);
            out.write(input);
        } else {
            out.set_activity(Activity::Input);
        }
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let rate = MinRate::new(NonZeroU32::new(1000).unwrap()).grace(Duration::from_millis(400));
    let policy = kit::policy(model).min_rate(Some(rate)).send_timeout(None);
    for keeps in [false, true] {
        let server = kit::serve(model, policy.clone(), kit::sessions(move || Tens { keeps, have: 0 }));
        let mut resting = kit::connect(server.local_addr());
        kit::exchange(&mut resting, b"0123456789");
        let mut trickling = kit::connect(server.local_addr());
        trickle(&mut trickling);
        kit::until("it is counted", || server.stats().closed_by(CloseReason::MinRate) == 1);
        kit::exchange(&mut resting, b"0123456789"); // rested for longer than the grace
        drop(resting);
        kit::finish(server);
    }
    slow_reader(model, policy.clone());
    limit_taken_out(model, &policy);
}

/// How often a case is tried whose thread may get no processor for longer than the grace.
const TRIES: usize = 5;

/// A limit that is taken out in the middle of a message ends no connection, and one that is put back begins anew.
fn limit_taken_out(model: Model, policy: &Policy) {
    let survives = (0..TRIES).any(|_| survives_without_limit(model, policy));
    assert!(survives, "a limit that is not there any more ended the connection each time");
}

/// Whether the connection is not cut off. That is right only if a thread hears of the other policy when the grace is
/// over already; it is tried again then.
fn survives_without_limit(model: Model, policy: &Policy) -> bool {
    let sessions = kit::sessions(|| Tens { keeps: false, have: 0 });
    let server = kit::serve(model, policy.clone(), sessions);
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"01234").expect("half a message");
    kit::until("it is received", || server.stats().bytes_in == 5);
    server.set_policy(policy.clone().min_rate(None)).expect("no limit");
    std::thread::sleep(Duration::from_millis(800)); // twice the grace
    let cut_off = server.stats().closed_by(CloseReason::MinRate) > 0;
    if !cut_off {
        stream.write_all(b"56789").expect("the rest");
        assert_eq!(kit::hear(&mut stream, 10), b"0123456789");
        server.set_policy(policy.clone()).expect("the limit again");
        kit::exchange(&mut stream, b"0123456789");
    }
    drop(stream);
    kit::finish(server);
    !cut_off
}

/// Sends a byte every few milliseconds, and never a whole message, until it is reset.
fn trickle(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(30))).expect("timeout");
    for _ in 0..1_000_000 {
        let sent = stream.write_all(b"x");
        // The first call that reports a reset is the only one that does.
        if sent.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset) {
            return;
        }
        match kit::receive(stream, &mut [0; 64]) {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            Ok(0) => panic!("closed rather than reset"),
            _ if sent.is_err() => return,
            Ok(_) | Err(_) => {}
        }
    }
    panic!("nobody minds");
}

fn slow_reader(model: Model, policy: Policy) {
    let (service, witness) = Producer::service(&Tape::new(3), 64 << 20);
    let policy = policy.socket_send_buffer(Some(16 * 1024));
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect_narrow(server.local_addr());
    stream.write_all(b"go").expect("send");
    kit::hear(&mut stream, 1);
    kit::until("it is cut off", || witness.closings() == [CloseReason::MinRate]);
    kit::finish(server);
}
