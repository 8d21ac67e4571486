//! Services on the real event loops over a simulated kernel, and services that are wrong, which it has to find.
#![cfg(target_os = "linux")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tidegate::testing::Simulation;
use tidegate::{Activity, Consumed, Flow, Mail, Outbox, Peer, Policy, Recipient, Refusal, Service, Session};
use tidegate_services::{Echo, Http, HttpLimits, Page};

fn noise(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

#[test]
fn an_echo_gives_every_byte_back() {
    let long = noise(50_000);
    let stats = Simulation::new(|| Echo)
        .client(b"", b"")
        .client(b"x", b"x")
        .client(&long, &long)
        .connections(8)
        .run();
    assert_eq!(stats.accepted, 200 * 8);
}

#[test]
fn a_page_is_served_however_the_requests_come() {
    let page = Page::new("<page>\n", "text/html; charset=utf-8");
    let request =
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    // What it answers to both at once is what it has to answer however they come; only the date is its own.
    let stats = Simulation::new(move || WithoutDates(Http::new(page.clone(), HttpLimits::default())))
        .client(request, answer(request))
        .connections(5)
        .run();
    assert_eq!(stats.accepted, 200 * 5);
}

/// What the page answers without a kernel in between.
fn answer(request: &str) -> Vec<u8> {
    let page = Page::new("<page>\n", "text/html; charset=utf-8");
    let service = WithoutDates(Http::new(page, HttpLimits::default()));
    let mut conn = tidegate::testing::TestConnection::open(&service).unwrap();
    conn.receive(request.as_bytes());
    assert!(conn.output().starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", conn.output().escape_ascii());
    conn.take_output()
}

/// Jobs, timers under keys, mail to itself, input that is left meanwhile: each line comes back, and then its length.
#[derive(Default)]
struct Works {
    busy: bool,
    ended: bool,
}

impl Service for Works {
    type Session = Works;

    fn open(&self, _: &Peer) -> Result<Works, Refusal> {
        Ok(Works::default())
    }
}

impl Recipient for Works {
    type Message = u64;
}

impl Session for Works {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let end = input.iter().position(|&byte| byte == b'\n').filter(|_| !self.busy);
        let Some(end) = end else { return Consumed::bytes(0) };
        let line = input[..=end].to_vec();
        out.write(&line);
        out.set_activity(Activity::Work);
        self.busy = true;
        if out.offload(move || line.len()).is_err() {
            return Consumed::bytes(0).then(Flow::Abort);
        }
        Consumed::bytes(end + 1)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Done(length) => {
                let length = *length.downcast::<usize>().unwrap();
                out.set_timer(length as u64, out.now() + Duration::from_millis(3));
            }
            Mail::KeyedTimer(length) => drop(Self::mailbox(out).send(length)),
            Mail::Message(length) => {
                out.write(format!("{}\n", Self::unpack(length)).as_bytes());
                out.set_activity(Activity::Nothing);
                self.busy = false;
                if self.ended {
                    return Flow::Close;
                }
            }
            _ => {}
        }
        Flow::Continue
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.ended = true;
        if self.busy { Flow::Continue } else { Flow::Close }
    }
}

#[test]
fn jobs_timers_and_mail_work_in_virtual_time() {
    let stats = Simulation::new(Works::default)
        .client(b"one\n\nthree\n", b"one\n4\n\n1\nthree\n6\n")
        .connections(4)
        .run();
    assert_eq!(stats.accepted, 200 * 4);
}

/// Takes each call for a whole line: right in every test over a loopback, and wrong.
struct Hasty;

impl Service for Hasty {
    type Session = Hasty;

    fn open(&self, _: &Peer) -> Result<Hasty, Refusal> {
        Ok(Hasty)
    }
}

impl Session for Hasty {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(format!("{}\n", input.len()).as_bytes());
        Consumed::all(input)
    }
}

/// Answers the first byte, and closes although more may come.
struct Curt;

impl Service for Curt {
    type Session = Curt;

    fn open(&self, _: &Peer) -> Result<Curt, Refusal> {
        Ok(Curt)
    }
}

impl Session for Curt {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(b"go away\n");
        Consumed::all(input).then(Flow::Close)
    }
}

/// Panics at the sight of a certain length.
struct Fragile;

impl Service for Fragile {
    type Session = Fragile;

    fn open(&self, _: &Peer) -> Result<Fragile, Refusal> {
        Ok(Fragile)
    }
}

impl Session for Fragile {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input.len() == 3 {
            std::panic::resume_unwind(Box::new("three"));
        }
        out.write(input);
        Consumed::all(input)
    }
}

fn failure<S: Service>(
    make: impl Fn() -> S,
    sends: &[u8],
    expects: &[u8],
    from: u64,
) -> Option<(u64, String)> {
    let play = || Simulation::new(make).client(sends, expects).seeds(from..200).run();
    let panic = catch_unwind(AssertUnwindSafe(play)).err()?;
    let text = panic.downcast::<String>().expect("a text");
    let seed = text.strip_prefix("seed ")?.split_once(':')?.0.parse().ok()?;
    Some((seed, *text))
}

#[test]
fn a_service_that_is_wrong_is_found_and_its_seed_plays_the_same_again() {
    let (seed, text) = failure(|| Hasty, b"hello\n", b"6\n", 0).expect("some seed cuts the line");
    assert!(
        text.contains("received something else") && text.contains(&format!("TIDEGATE_SEED={seed}")),
        "{text}"
    );
    assert_eq!(failure(|| Hasty, b"hello\n", b"6\n", seed), Some((seed, text)));
    let (_, text) =
        failure(|| Curt, &noise(30_000), b"go away\n", 0).expect("some seed closes with input unread");
    assert!(text.contains("lost the end of its answer in a reset"), "{text}");
    let (_, text) = failure(|| Fragile, b"abcdef", b"abcdef", 0).expect("some seed shows three bytes");
    assert!(text.contains("panicked"), "{text}");
    let (_, text) = failure(|| Echo, b"abc", b"abcd", 0).expect("it never says the last");
    assert!(text.contains("received less"), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let said = |simulate: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(simulate)).expect_err("it cannot be");
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
    };
    assert!(said(&|| _ = Simulation::new(|| Echo).run()).contains("no clients"));
    let policy = Policy::default().max_connections(0);
    let played = said(&|| _ = Simulation::new(|| Echo).client("x", "x").policy(policy.clone()).run());
    assert!(played.contains("invalid policy"), "{played}");
}

/// Makes the dates of all answers equal, so that two are.
struct WithoutDates<S>(S);

/// One session of it: the answers of the page are short, so a head is written in one piece.
struct Undated<S>(S, tidegate::LayerBuffer);

impl<S: Service> Service for WithoutDates<S> {
    type Session = Undated<S::Session>;

    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal> {
        Ok(Undated(self.0.open(peer)?, tidegate::LayerBuffer::default()))
    }

    fn options(&self) -> tidegate::ServiceOptions {
        self.0.options()
    }

    fn dial_failed(&self, dial: &tidegate::Dial, error: &std::io::Error) {
        self.0.dial_failed(dial, error);
    }
}

impl<S: Session> Undated<S> {
    fn call(&mut self, out: &mut Outbox<'_>, f: impl FnOnce(&mut S, &mut Outbox<'_>) -> Flow) -> Flow {
        let Self(session, written) = self;
        let flow = f(session, &mut out.layered(written));
        let mut said = vec![0; 64 << 10];
        let n = written.take(&mut said).expect("bytes of memory");
        for line in said[..n].split_inclusive(|&byte| byte == b'\n') {
            out.write(if line.starts_with(b"Date: ") { b"Date: now\r\n" } else { line });
        }
        flow
    }
}

impl<S: Session> Session for Undated<S> {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut consumed = Consumed::bytes(0);
        self.call(out, |session, out| {
            consumed = session.on_bytes(input, out);
            consumed.flow
        });
        consumed
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.call(out, |session, out| session.on_drained(out))
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.call(out, |session, out| session.on_end(out))
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.call(out, |session, out| session.on_mail(mail, out))
    }
}
