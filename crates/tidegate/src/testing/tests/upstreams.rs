//! The simulation of services whose sessions dial: right ones pass, wrong ones are found, and nothing is excused that
//! the seed has not broken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::link::{self, Link};
use crate::service::{Mailbox, ServiceOptions};

const WITHIN: Duration = Duration::from_secs(5);

fn noise(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

/// What a simulation that has to fail says.
fn failure<S: Service>(simulation: Simulation<impl Fn() -> S>) -> String {
    failure_of(|| _ = simulation.run())
}

fn failure_of(fails: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(fails)).expect_err("it has to fail");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

/// Links connections to these upstreams in turn.
struct Proxy {
    to: &'static [&'static str],
    next: std::sync::atomic::AtomicUsize,
}

fn proxy(to: &'static [&'static str]) -> impl Fn() -> Proxy {
    move || Proxy { to, next: 0.into() }
}

impl Service for Proxy {
    type Session = Link;

    fn open(&self, _: &Peer) -> Result<Link, Refusal> {
        let next = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        link::dialling(self.to[next % self.to.len()], WITHIN, 8192).map_err(|_| Refusal)
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

const BOTH: &[&str] = &["10.0.0.1:80", "[fd00::1]:80"];

/// A proxy with two upstreams that say the same, and clients that ask for much or send much.
fn proxied() -> Simulation<impl Fn() -> Proxy> {
    let long = noise(10_000);
    let policy = Policy { outbox: OutboxMarks { low: 500, high: 2000 }, ..Policy::default() };
    let simulation = Simulation::new(proxy(BOTH)).policy(policy);
    let simulation = simulation.client(b"x", &long).client(&long, b"ok").connections(6);
    BOTH.iter()
        .fold(simulation, |simulation, to| simulation.upstream(*to, b"x", &long).upstream(*to, &long, b"ok"))
}

#[test]
fn a_linked_proxy_passes_everything_on() {
    let stats = proxied().run();
    let (clients, failed) = (200 * 6, stats.dial_failed);
    assert!((clients / 12..clients / 6).contains(&failed), "one dial in eight fails: {failed}");
    assert_eq!(stats.accepted, 2 * clients - failed);
    assert!(stats.closed_by(CloseReason::Reset) > clients / 20, "{stats:?}");
}

#[test]
fn without_faults_of_upstreams_every_dial_is_established() {
    let stats = proxied().upstream_faults(0).seeds(0..50).run();
    assert_eq!((stats.accepted, stats.dial_failed), (50 * 12, 0));
}

/// A client that breaks off leaves the other half of its link behind, whose place the next one needs.
#[test]
fn a_linked_proxy_loses_no_client_while_it_is_full() {
    let stats = proxied().policy(Policy::default().max_connections(4)).upstream_faults(0).seeds(0..60).run();
    assert!(stats.dial_failed > 10, "some have to wait for a place: {stats:?}");
}

#[test]
fn a_seed_with_dials_always_plays_the_same() {
    for seed in 0..20 {
        let run = || proxied().seeds(seed..seed + 1).run();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Asks one upstream after the other, and answers with what both have said; or says what went wrong.
struct Asks {
    to: &'static [&'static str],
}

impl Service for Asks {
    type Session = Asker;

    fn open(&self, _: &Peer) -> Result<Asker, Refusal> {
        Ok(Asker { to: self.to, next: 0 })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().dials(1)
    }
}

struct Asker {
    to: &'static [&'static str],
    next: usize,
}

/// What an upstream has said, and whether that is all.
enum Said {
    Bytes(Vec<u8>),
    End,
    Broken,
}

impl Recipient for Asker {
    type Message = Said;
}

impl Asker {
    fn ask(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Some(to) = self.to.get(self.next) else { return Flow::Close };
        let session = Asked { asker: Self::mailbox(out), reports: Said::Broken };
        out.set_activity(Activity::Work);
        self.next += 1;
        match out.dial(*to, WITHIN, session) {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::Abort,
        }
    }
}

impl Session for Asker {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.ask(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let said = match mail {
            Mail::Dialled(Dialled { result: Err(e), .. }) => {
                out.write(format!("({:?})", e.kind()).as_bytes());
                return Flow::Close;
            }
            Mail::Message(said) => Self::unpack(said),
            _ => return Flow::Continue,
        };
        match said {
            Said::Bytes(bytes) => out.write(&bytes),
            Said::End => return self.ask(out),
            Said::Broken => {
                out.write(b"(broken)");
                return Flow::Close;
            }
        }
        Flow::Continue
    }
}

/// The session of a connection to an upstream.
struct Asked {
    asker: Mailbox<Said>,
    reports: Said,
}

impl Session for Asked {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"what?");
        Flow::Shutdown
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        let _ = self.asker.send(Said::Bytes(input.to_vec()));
        Consumed::all(input)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.reports = Said::End;
        Flow::Close
    }

    fn on_close(&mut self, _: CloseReason) {
        let _ = self.asker.send(std::mem::replace(&mut self.reports, Said::Broken));
    }
}

const ONE: &str = "10.0.0.1:80";
const OTHER: &str = "10.0.0.2:80";
const NOWHERE: &str = "10.0.0.3:80";

/// Upstreams that answer their question.
fn asks(to: &'static [&'static str]) -> Simulation<impl Fn() -> Asks> {
    Simulation::new(move || Asks { to }).upstream(ONE, b"what?", b"this").upstream(OTHER, b"what?", b", that")
}

#[test]
fn sessions_that_dial_by_hand_ask_and_answer() {
    let simulation = asks(&[ONE, OTHER]).client(b"", b"this, that").connections(5).upstream_faults(0);
    let stats = simulation.run();
    // Each client dials twice, unless it breaks off before: one in eight does at some time.
    assert!((200 * 13..=200 * 15).contains(&stats.accepted) && stats.dial_failed == 0, "{stats:?}");
}

#[test]
fn a_failure_answer_is_accepted_where_the_seed_has_broken_something() {
    let asks = || asks(&[ONE]).client(b"", b"this");
    let text = failure(asks());
    assert!(text.contains("received something else"), "{text}");
    let kinds = ["(ConnectionRefused)", "(TimedOut)", "(HostUnreachable)", "(Uncategorized)"];
    let stats = kinds.into_iter().fold(asks().failure_answer("(broken)"), Simulation::failure_answer).run();
    assert!(stats.dial_failed > 10, "{stats:?}");
}

#[test]
fn a_dial_to_nowhere_is_refused_and_excuses_nothing() {
    let stats = asks(&[ONE, NOWHERE]).client(b"", b"this(ConnectionRefused)").upstream_faults(0).run();
    assert!((150..=200).contains(&stats.dial_failed), "all but clients that break off before: {stats:?}");
    let text = failure(asks(&[NOWHERE]).client(b"", b"this").failure_answer(b"(ConnectionRefused)"));
    assert!(text.contains("received something else"), "{text}");
}

/// Dials twice, and has declared only one dial; answers with what became of the second.
struct Greedy;

impl Service for Greedy {
    type Session = Greedy;

    fn open(&self, _: &Peer) -> Result<Greedy, Refusal> {
        Ok(Greedy)
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().dials(1)
    }
}

/// The session of an upstream that says nothing.
struct Silent;

impl Session for Silent {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }
}

impl Session for Greedy {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        for tag in [1, 2] {
            let to: Dial = ONE.parse().expect("an address");
            out.dial(to.tag(tag), WITHIN, Silent).expect("there is room");
        }
        Flow::Continue
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let Mail::Dialled(Dialled { tag: 2, result }) = mail else { return Flow::Continue };
        out.write(format!("{:?}", result.map_err(|e| e.kind())).as_bytes());
        Flow::Close
    }
}

#[test]
fn dials_have_the_places_that_the_service_has_declared() {
    let simulation = Simulation::new(|| Greedy).upstream(ONE, b"", b"").upstream_faults(0).connections(5);
    let simulation = simulation.client(b"", b"Err(QuotaExceeded)");
    let stats = simulation.policy(Policy::default().max_connections(3)).run();
    assert!(stats.dial_failed > 200 * 4, "all but those of clients that break off before: {stats:?}");
}

/// A proxy that passes on what upstreams say in whole blocks, and what is left at the end not at all.
struct Blocks(usize);

impl Service for Blocks {
    type Session = Half;

    fn open(&self, _: &Peer) -> Result<Half, Refusal> {
        let (near, far) = link::pair(8192);
        Ok(Half { link: near, other: Some(far), block: 1, block_of_other: self.0 })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

struct Half {
    link: Link,
    other: Option<Link>,
    block: usize,
    block_of_other: usize,
}

impl Session for Half {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Some(link) = self.other.take() {
            let other = Self { link, other: None, block: self.block_of_other, block_of_other: 0 };
            out.dial(ONE, WITHIN, other).expect("there is room");
        }
        self.link.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match input.len() / self.block * self.block {
            0 => Consumed::bytes(0),
            whole => self.link.on_bytes(&input[..whole], out),
        }
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.link.on_mail(mail, out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.link.on_close(why);
    }
}

#[test]
fn a_proxy_that_loses_the_last_bytes_of_its_upstream_is_found() {
    let answer = noise(1050);
    let proxied = |block| {
        let simulation =
            Simulation::new(move || Blocks(block)).client(b"x", &answer).upstream(ONE, b"x", &answer);
        simulation.connections(3)
    };
    proxied(1).run();
    let text = failure(proxied(100));
    assert!(text.contains("received less") && text.contains("1000 bytes are right"), "{text}");
}

/// A client that sends other bytes than the upstream is to hear.
#[test]
fn what_an_upstream_receives_is_checked() {
    let only_one = || Simulation::new(proxy(&[ONE])).upstream_faults(0);
    let text = failure(only_one().client(b"xyz", b"").upstream(ONE, b"xy", b""));
    assert!(text.contains("an upstream of 0, received") && text.contains("something else"), "{text}");
    let text = failure(only_one().client(b"xy", b"").upstream(ONE, b"xyz", b"ok"));
    assert!(text.contains("an upstream of 0, received") && text.contains("received less"), "{text}");
}

#[test]
fn upstreams_that_make_no_sense_are_refused() {
    let said = |to: &'static str, hears: &'static [u8]| {
        let make = || Simulation::new(proxy(&[ONE])).upstream(ONE, b"xy", b"").upstream(to, hears, b"");
        failure_of(|| drop(make()))
    };
    assert!(said("unix:/run/app.sock", b"x").contains("an upstream has an IP address"));
    assert!(said("localhost:80", b"x").contains("invalid address of an upstream: "));
    assert!(said(ONE, b"xyz").contains("hears the beginning"));
    assert!(
        failure(Simulation::new(|| Picky).client("", "").upstream(ONE, "", ""))
            .contains("ServiceOptions::dials")
    );
    let policy = Policy::default().max_connections(1);
    let text = failure(Simulation::new(proxy(&[ONE])).client("", "").policy(policy));
    assert!(text.contains("invalid policy: `max_connections`"), "{text}");
}
