//! What a seed decides: the limits, the kernel's moods, and what each peer and each session is going to do.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use fastrand::Rng;

use crate::policy::{Accept, MinRate, OutboxMarks, Policy, PostedAccepts, Wait, WhenFull, whole_pages};
use crate::service::Flow;

/// How often the kernel does what it may but seldom does; chances of one in 256.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moods {
    /// Less than what could be received or sent; an interrupted call; EAGAIN while there is room.
    pub(super) partial: u8,
    pub(super) interrupted: u8,
    pub(super) would_block: u8,
    /// Reports about nothing, and wake-ups for nothing.
    pub(super) spurious: u8,
    /// Accepts that fail: no descriptors, no memory, a connection that went away.
    pub(super) exhausted: u8,
    /// Sends and receives for which there is no memory, by themselves or all of them for a while.
    pub(super) starves: u8,
    /// A descriptor that cannot be watched.
    pub(super) unwatched: u8,
    /// Something of the peer's happens in the middle of the loop's turn.
    pub(super) sudden: u8,
    /// Operations without end that end; cancellations that come too late; completions that take their time.
    pub(super) ends: u8,
    pub(super) loses: u8,
    pub(super) late: u8,
    /// The thread gets the processor later than it asked for.
    pub(super) stalls: u8,
    /// Reports come once, when something becomes ready, rather than as long as it is.
    pub(super) edges: bool,
    /// An edge report says only what is new.
    pub(super) terse: bool,
    /// The port chains closes to last sends.
    pub(super) chains: bool,
    /// Receives go on until they end; else several may be posted.
    pub(super) endless: bool,
    /// What is accepted are Unix sockets: a receive that stays armed may miss the end of the stream, too.
    pub(super) unix: bool,
}

impl Moods {
    fn new(rng: &mut Rng) -> Self {
        let calm = rng.u8(..4) == 0;
        Self::of(rng, |rng, most| if calm || rng.bool() { 0 } else { rng.u8(..=most) })
    }

    fn of(rng: &mut Rng, mood: impl Fn(&mut Rng, u8) -> u8) -> Self {
        let mut mood = |most| mood(rng, most);
        Self {
            partial: mood(128),
            interrupted: mood(40),
            would_block: mood(60),
            spurious: mood(80),
            exhausted: mood(60),
            starves: mood(60),
            unwatched: mood(20),
            sudden: mood(100),
            ends: mood(100),
            loses: mood(160),
            late: mood(120),
            stalls: mood(60),
            edges: rng.bool(),
            terse: rng.bool(),
            chains: rng.bool(),
            endless: rng.bool(),
            unix: rng.bool(),
        }
    }
}

/// Whether something that happens so often out of 256 happens now.
pub(super) fn chance(rng: &mut Rng, of_256: u8) -> bool {
    of_256 > 0 && rng.u8(..) < of_256
}

/// Any number up to `most`; each order of magnitude is equally likely.
pub(super) fn size(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.u32(0..=most.max(1).ilog2());
    rng.u64(0..=(1 << bits)).min(most)
}

/// A time up to so many milliseconds, with a rest below the tick of the timers.
pub(super) fn time(rng: &mut Rng, most_ms: u64) -> Duration {
    let whole = Duration::from_millis(size(rng, most_ms));
    if rng.bool() { whole } else { whole + Duration::from_nanos(rng.u64(1..1_000_000)) }
}

/// What a seed decides.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) moods: Moods,
    pub(super) policy: Policy,
    /// Connections are dialled rather than accepted.
    pub(super) dials: bool,
    pub(super) parts: Vec<ConnectionScript>,
    /// The limits are changed while the loop runs.
    pub(super) switch: Option<(Duration, Policy)>,
    /// When the loop is asked to stop.
    pub(super) drain_at: Duration,
}

/// One connection: the peer's part and the session's.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionScript {
    pub(super) comes_at: Duration,
    /// Sizes of the kernel's buffers towards this end and towards the peer.
    pub(super) inbound: u64,
    pub(super) outbound: u64,
    /// Bytes the peer sends, at most so many at once, with such pauses.
    pub(super) says: u64,
    pub(super) chunk: u64,
    pub(super) pause_ms: u64,
    pub(super) then: Afterwards,
    pub(super) hears: Hearing,
    /// It breaks off at this time after it came.
    pub(super) breaks_off: Option<Duration>,
    /// The dial fails.
    pub(super) unreachable: bool,
    pub(super) acts: Acts,
}

/// What a peer does when it has said everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// Finishes sending, and goes on hearing.
    #[default]
    Finishes,
    /// Closes, whatever it has not heard.
    Leaves,
    /// Stays until this end closes.
    Stays,
}

/// How a peer takes what it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hearing {
    #[default]
    Eager,
    Slow {
        bytes: u64,
        pause_ms: u64,
    },
    Never,
}

/// What a session does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Acts {
    /// Sends back what it is shown. `thrifty`: stops when its outbox is full, and leaves the rest.
    Echo { thrifty: bool },
    /// Answers by mail, later.
    Mails { within_ms: u64 },
    /// Only takes whole units of this many bytes, and answers each; or one with each call, and wants to be called
    /// again.
    Units { unit: u64, answer: u64, singly: bool },
    /// Takes this much, and works until its timer, which may have a key, ends that; then it takes the next.
    Works { piece: u64, within_ms: u64, keyed: bool },
    /// Mails itself for each piece of mail, or twice, so many times.
    Spins { times: u32, doubles: bool },
    /// Sets and takes back timers under keys.
    Keyed { keys: u64, within_ms: u64 },
    /// Is woken again and again, and says something each time.
    Wakes { every_ms: u64, times: u32 },
    /// Does something final after this many bytes.
    Ends { after: u64, flow: Flow },
    /// Says much, as fast as it is taken; then something final.
    Produces { total: u64, piece: u64, flow: Flow },
    /// Panics after this many bytes.
    Panics { after: u64 },
    /// Is refused by the service.
    Refused,
    /// What somebody's own service does.
    #[default]
    Foreign,
}

impl Script {
    pub(super) fn new(rng: &mut Rng, completes: bool) -> Self {
        let mut moods = Moods::new(rng);
        let dials = rng.u8(..5) == 0;
        moods.unix &= !dials; // what is dialled has an address
        let policy = policy(rng, completes);
        let switch = (rng.u8(..4) == 0).then(|| {
            let other = self::policy(rng, completes).as_far_as_possible(&policy);
            (time(rng, 500), other)
        });
        let parts = (0..rng.usize(1..=10)).map(|_| part(rng)).collect();
        Self { moods, policy, dials, parts, switch, drain_at: Duration::from_micros(rng.u64(..1_200_000)) }
    }
}

impl Script {
    /// Some connections, and after them five that say something again and again, on a kernel that does as it is asked.
    #[cfg(test)]
    pub(super) fn beside(rng: &mut Rng, policy: Policy, others: (usize, ConnectionScript)) -> Self {
        let speaks = ConnectionScript {
            comes_at: Duration::from_millis(200),
            says: 200,
            chunk: 10,
            pause_ms: 20,
            hears: Hearing::Eager,
            ..ConnectionScript::floods()
        };
        let (count, other) = others;
        let parts = std::iter::repeat_n(other, count).chain(std::iter::repeat_n(speaks, 5)).collect();
        Self::calm(rng, policy, parts)
    }

    /// These connections on a kernel that does as it is asked.
    #[cfg(test)]
    pub(super) fn calm(rng: &mut Rng, policy: Policy, parts: Vec<ConnectionScript>) -> Self {
        let moods = Moods::of(rng, |_, _| 0);
        Self { moods, policy, dials: false, parts, switch: None, drain_at: Duration::from_secs(2000) }
    }
}

#[cfg(test)]
impl ConnectionScript {
    /// Says as much as is taken, and never hears the echo.
    pub(super) fn floods() -> Self {
        Self {
            comes_at: Duration::ZERO,
            inbound: 64 * 1024,
            outbound: 64 * 1024,
            says: 4 << 20,
            chunk: 8_000,
            pause_ms: 0,
            then: Afterwards::Stays,
            hears: Hearing::Never,
            breaks_off: None,
            unreachable: false,
            acts: Acts::Echo { thrifty: false },
        }
    }

    /// Says nothing.
    pub(super) fn rests() -> Self {
        Self { says: 0, ..Self::floods() }
    }
}

/// Pieces in which what a test gives is sent or heard, at most: so many turns may that cost.
const GIVEN_PIECES: u64 = 500;

/// Longest that a peer's pauses take together, in ms: no time limit of an ordinary policy is meant for those.
const GIVEN_PAUSES_MS: u64 = 2_000;

impl Script {
    /// For somebody's own service: peers send so many bytes each and hear at most so many.
    pub(super) fn given(rng: &mut Rng, policy: &Policy, bytes: &[(u64, u64)]) -> Self {
        let moods = Moods::new(rng);
        // Limits that no session can see.
        let tight = Policy {
            buffer_bytes: whole_pages(4096 * rng.usize(1..=4)),
            buffers: rng.usize(1..=8),
            drain_budget: rng.usize(1..=8),
            posted_sends: rng.usize(1..=3),
            posted_receives: rng.usize(1..=3),
            events_per_wait: size(rng, 32).max(1) as usize,
            threads: NonZeroUsize::new(1),
            ..policy.clone()
        };
        let policy = if tight.check().is_ok() { tight } else { policy.clone() };
        let parts = bytes.iter().map(|&(says, hears)| ConnectionScript::given(rng, says, hears)).collect();
        let drain_at = Duration::from_secs(3600); // or when all connections are closed
        Self { moods, policy, dials: false, parts, switch: None, drain_at }
    }
}

impl ConnectionScript {
    /// A peer of somebody's own service, which sends so many bytes and hears at most so many.
    pub(super) fn given(rng: &mut Rng, says: u64, hears: u64) -> Self {
        let mut step = |bytes: u64| size(rng, 64 * 1024).max(bytes / GIVEN_PIECES).max(1);
        let (inbound, outbound, chunk, heard) = (step(says), step(hears), step(says), step(hears));
        let mut pause = |bytes: u64, step: u64| size(rng, 64).min(GIVEN_PAUSES_MS / (2 * bytes / step + 1));
        let (pause_ms, hear_ms) = (pause(says, chunk.min(inbound)), pause(hears, heard.min(outbound)));
        let slow = rng.u8(..4) == 0;
        Self {
            comes_at: time(rng, 300),
            inbound,
            outbound,
            says,
            chunk,
            pause_ms: if rng.bool() { 0 } else { pause_ms },
            then: Afterwards::Finishes,
            hears: if slow { Hearing::Slow { bytes: heard, pause_ms: hear_ms } } else { Hearing::Eager },
            breaks_off: if rng.u8(..8) == 0 { Some(time(rng, 400)) } else { None },
            unreachable: false,
            acts: Acts::Foreign,
        }
    }
}

fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if rng.bool() { Some(make(rng)) } else { None }
}

/// Limits as tight as can be, so that each is met often.
fn policy(rng: &mut Rng, completes: bool) -> Policy {
    let idle = maybe(rng, |rng| time(rng, 600).max(Duration::from_micros(1)));
    let first = maybe(rng, |rng| time(rng, 600).max(Duration::from_micros(1)));
    let low = size(rng, 4096) as usize;
    let wait = match rng.u8(..20) {
        0 => Wait::Spin,
        1..4 => Wait::SpinThenBlock(Duration::from_micros(rng.u64(1..3_000))),
        _ => Wait::Block,
    };
    let posted = |rng: &mut Rng| {
        let high = rng.u32(1..=8);
        PostedAccepts { low: at_least_one(rng.u32(1..=high)), high: at_least_one(high) }
    };
    let coalesce = if wait == Wait::Block && rng.bool() { rng.u64(..=10_000) } else { 0 };
    Policy {
        coalesce: Duration::from_micros(coalesce),
        max_connections: rng.usize(1..=8),
        accept: Accept {
            backlog: rng.u32(1..=8),
            posted: if completes { maybe(rng, posted) } else { None },
            defer: maybe(rng, |_| Duration::from_secs(1)),
            batch: rng.usize(1..=4),
            ..Accept::default()
        },
        when_full: if rng.bool() { WhenFull::Wait } else { WhenFull::Refuse },
        first_byte_timeout: first.map(|first| idle.map_or(first, |idle| first.min(idle))),
        idle_timeout: idle,
        send_timeout: maybe(rng, |rng| time(rng, 600).max(Duration::from_micros(1))),
        shed_after: maybe(rng, |rng| time(rng, 300).max(Duration::from_micros(1))),
        linger_timeout: time(rng, 300),
        drain_timeout: time(rng, 400),
        min_rate: maybe(rng, |rng| MinRate {
            bytes_per_s: at_least_one(rng.u32(1..5_000)),
            grace: time(rng, 400).max(Duration::from_micros(1)),
        }),
        buffer_bytes: whole_pages(4096 * rng.usize(1..=2)),
        buffers: rng.usize(1..=4),
        input_bytes: size(rng, 16 * 1024).max(1) as usize,
        outbox: OutboxMarks { low, high: low + 1 + size(rng, 8 * 1024) as usize },
        outstanding_sends: if rng.u8(..3) == 0 { NonZeroU32::new(rng.u32(1..4)) } else { None },
        max_receiving: if rng.u8(..3) == 0 { NonZeroUsize::new(rng.usize(1..4)) } else { None },
        drain_budget: rng.usize(1..=8),
        posted_sends: if rng.bool() { 1 } else { rng.usize(2..=4) },
        posted_receives: if rng.bool() { 1 } else { rng.usize(2..=4) },
        threads: NonZeroUsize::new(1),
        events_per_wait: size(rng, 32).max(1) as usize,
        wait,
        mail_queue: if rng.u8(..8) == 0 { 4_096 } else { rng.usize(1..=16) },
        ..Policy::default()
    }
}

fn at_least_one(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN)
}

fn part(rng: &mut Rng) -> ConnectionScript {
    let says = match rng.u8(..8) {
        0 => 0,
        1 => size(rng, 200_000),
        _ => size(rng, 20_000),
    };
    let hears = match rng.u8(..8) {
        0 => Hearing::Never,
        1 | 2 => Hearing::Slow { bytes: size(rng, 4_000).max(1), pause_ms: size(rng, 64).max(1) },
        _ => Hearing::Eager,
    };
    let then = match rng.u8(..4) {
        0 => Afterwards::Leaves,
        1 => Afterwards::Stays,
        _ => Afterwards::Finishes,
    };
    let chunk = if rng.u8(..6) == 0 { 1 } else { size(rng, 8_000).max(1) };
    ConnectionScript {
        comes_at: time(rng, 300),
        inbound: size(rng, 64 * 1024).max(1),
        outbound: size(rng, 64 * 1024).max(1),
        says: says.min(chunk * 1_000),
        chunk,
        pause_ms: if rng.bool() { 0 } else { size(rng, 64) },
        then,
        hears,
        breaks_off: if rng.u8(..5) == 0 { Some(time(rng, 400)) } else { None },
        unreachable: rng.u8(..6) == 0,
        acts: acts(rng),
    }
}

fn acts(rng: &mut Rng) -> Acts {
    let last = |rng: &mut Rng| match rng.u8(..5) {
        0 => Flow::Abort,
        1 => Flow::Shutdown,
        2 => Flow::Linger,
        _ => Flow::Close,
    };
    match rng.u8(..22) {
        0..5 => Acts::Echo { thrifty: rng.bool() },
        5 | 6 => Acts::Mails { within_ms: size(rng, 200) },
        7 | 8 => {
            let (unit, answer) = (size(rng, 20_000).max(1), size(rng, 2_000));
            Acts::Units { unit, answer, singly: rng.bool() }
        }
        16..18 => Acts::Works { piece: size(rng, 8_000), within_ms: size(rng, 64), keyed: rng.bool() },
        18 | 19 => Acts::Spins { times: size(rng, 4_000) as u32, doubles: rng.bool() },
        20 | 21 => Acts::Keyed { keys: size(rng, 32), within_ms: size(rng, 256) },
        9 | 10 => Acts::Wakes { every_ms: size(rng, 128), times: rng.u32(1..8) },
        11 | 12 => Acts::Ends { after: size(rng, 10_000), flow: last(rng) },
        13 => Acts::Produces { total: size(rng, 200_000), piece: size(rng, 8_000).max(1), flow: last(rng) },
        14 => Acts::Panics { after: size(rng, 5_000) },
        _ => Acts::Refused,
    }
}
