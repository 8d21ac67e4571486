//! What one connection does: the same for client and session, from the seed and the number of the connection.

use crate::random::Random;
use crate::tape::WORD;

/// How a session makes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At once, copied.
    Copied,
    /// At once, shared.
    Shared,
    /// At once: some bytes, a file that is made for it, some bytes.
    File,
    /// When mail to itself has come.
    OwnMail,
    /// When another session, which may be gone, has answered its mail; or a timer.
    AskedMail,
    /// When a timer has fired.
    Timer,
    /// When an offloaded job is done.
    Job,
    /// When what it said to its group has come back.
    Group,
}

/// How a session takes its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// All that comes.
    Pieces,
    /// Whole requests; leaves the beginning of the next one.
    Whole,
    /// One request; leaves the rest until its answer is complete (`Activity::Work`).
    OneByOne,
}

/// How the connection ends, after all answers unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The service refuses it.
    Refused,
    /// The client finishes sending; the session closes when it has answered everything.
    ClientFinishes,
    /// `Flow::Shutdown`; the client finishes as soon as it has sent everything.
    ShutdownAtOnce,
    /// `Flow::Shutdown`; the client reads the end, sends so many bytes more, and closes.
    Shutdown { more: u64 },
    /// `Flow::Close`.
    Close,
    /// `Flow::Linger`, while the client goes on sending so many bytes.
    Linger { more: u64 },
    /// `Flow::Abort` in place of the last answer.
    Abort,
    /// The client resets it after so many steps.
    ClientResets { after: usize },
    /// The client closes it after so many steps, whatever was not read.
    ClientVanishes { after: usize },
}

/// A request and its answer: their sizes, and how they are made.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub request: u64,
    pub answer: u64,
    pub way: Way,
    /// For [`Way::Timer`].
    pub delay_us: u64,
}

/// The plan of one connection.
#[derive(Clone, Debug)]
pub struct Script {
    pub exchanges: Vec<Exchange>,
    pub taking: Taking,
    pub ending: Ending,
}

/// One thing that a client does: the operations that a run counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Connect,
    /// Up to this byte of what it sends.
    Send(u64),
    ReceiveGreeting,
    /// Up to this byte of what the session sends.
    Receive(u64),
    FinishSending,
    /// The end of the stream, and nothing before it.
    ExpectEnd,
    /// A reset; what came before it may be less than was promised.
    ExpectReset,
    /// The service refuses: an end or a reset, and not a byte.
    ExpectRefusal,
    Reset,
    Close,
}

/// What may be under way towards the session while it cannot take it: less than any socket buffer.
const UNREAD: u64 = 2048;
const REQUEST_BITS: u64 = 16;
const ANSWER_BITS: u64 = 18;
const FILE_MOST: u64 = 48 * 1024;

impl Script {
    /// The plan of connection `number` in a run with this seed.
    pub fn new(seed: u64, number: u64, refusals: bool) -> Self {
        let mut random = Random::new(seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let taking = match random.below(4) {
            0 => Taking::Whole,
            1 => Taking::OneByOne,
            _ => Taking::Pieces,
        };
        let many = if random.below(3) == 0 { random.size(3) } else { 1 };
        let exchanges: Vec<_> = (0..many).map(|_| Exchange::new(&mut random, taking)).collect();
        let ending = Self::ending(&mut random, refusals, many);
        Self { exchanges, taking, ending }
    }

    fn ending(random: &mut Random, refusals: bool, many: usize) -> Ending {
        let more = random.size(14) as u64;
        let after = 1 + random.below(2 * many as u64 + 1) as usize;
        match random.below(20) {
            0 if refusals => Ending::Refused,
            0..=3 => Ending::ClientFinishes,
            4..=8 => Ending::ShutdownAtOnce,
            9..=10 => Ending::Shutdown { more },
            11..=13 => Ending::Close,
            14..=15 => Ending::Linger { more },
            16 => Ending::Abort,
            17..=18 => Ending::ClientResets { after },
            _ => Ending::ClientVanishes { after },
        }
    }

    /// Bytes that the client sends before the ending, its name (the first word) among them.
    pub fn asked(&self, exchanges: usize) -> u64 {
        WORD as u64 + self.exchanges[..exchanges].iter().map(|e| e.request).sum::<u64>()
    }

    /// Bytes that the session sends for so many exchanges.
    pub fn answered(&self, exchanges: usize) -> u64 {
        self.exchanges[..exchanges].iter().map(|e| e.answer).sum()
    }

    /// What the client does. It decides how requests are cut and how far they run ahead of the answers.
    pub fn steps(&self, seed: u64, number: u64, greeted: bool) -> Vec<Step> {
        let mut random = Random::new(!seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if self.ending == Ending::Refused {
            return vec![Step::Connect, Step::Send(WORD as u64), Step::ExpectRefusal];
        }
        let mut steps = vec![Step::Connect];
        if greeted {
            steps.push(Step::ReceiveGreeting);
        }
        let last = self.exchanges.len() - usize::from(self.ending == Ending::Abort);
        let mut heard = 0;
        for (i, exchange) in self.exchanges.iter().enumerate() {
            let (from, to) = (self.asked(i), self.asked(i + 1));
            if to - self.asked(heard) > UNREAD {
                hear(&mut steps, &mut random, self.answered(heard)..self.answered(i));
                heard = i;
            }
            cut(&mut steps, &mut random, from..to);
            if i < last && exchange.answer > 0 && random.below(2) == 0 {
                hear(&mut steps, &mut random, self.answered(heard)..self.answered(i + 1));
                heard = i + 1;
            }
        }
        let unheard = self.answered(heard)..self.answered(last);
        self.end(&mut steps, &mut random, unheard);
        steps
    }

    fn end(&self, steps: &mut Vec<Step>, random: &mut Random, unheard: std::ops::Range<u64>) {
        let asked = self.asked(self.exchanges.len());
        match self.ending {
            Ending::Refused => {}
            Ending::ClientFinishes | Ending::ShutdownAtOnce => {
                steps.push(Step::FinishSending);
                hear(steps, random, unheard);
                steps.extend([Step::ExpectEnd, Step::Close]);
            }
            Ending::Shutdown { more } => {
                hear(steps, random, unheard);
                steps.extend([Step::ExpectEnd, Step::Send(asked + more), Step::Close]);
            }
            Ending::Close => {
                hear(steps, random, unheard);
                steps.extend([Step::ExpectEnd, Step::Close]);
            }
            Ending::Linger { more } => {
                steps.push(Step::Send(asked + more.min(UNREAD)));
                hear(steps, random, unheard);
                steps.extend([Step::Send(asked + more.max(UNREAD)), Step::ExpectEnd, Step::Close]);
            }
            Ending::Abort => steps.extend([Step::ExpectReset, Step::Close]),
            Ending::ClientResets { after } => {
                hear(steps, random, unheard);
                steps.truncate(1 + after);
                steps.push(Step::Reset);
            }
            Ending::ClientVanishes { after } => {
                hear(steps, random, unheard);
                steps.truncate(1 + after);
                steps.push(Step::Close);
            }
        }
    }
}

impl Exchange {
    fn new(random: &mut Random, taking: Taking) -> Self {
        let way = match random.below(16) {
            0..=3 => Way::Copied,
            4..=5 => Way::Shared,
            6..=7 => Way::File,
            8..=9 => Way::OwnMail,
            10..=11 => Way::AskedMail,
            12 => Way::Timer,
            13..=14 => Way::Job,
            _ => Way::Group,
        };
        // Most are small, so that connections come and go.
        let bits = |random: &mut Random, most| if random.below(8) == 0 { most } else { 8 };
        // What is left unconsumed is bounded by `Policy::input_bytes`.
        let request_bits = if taking == Taking::Pieces { bits(random, REQUEST_BITS) } else { 10 };
        let answer_bits = bits(random, ANSWER_BITS);
        let (request, answer) = (random.size(request_bits) as u64, random.size(answer_bits) as u64);
        let answer = if way == Way::File { answer.min(FILE_MOST) } else { answer };
        Self { request, answer, way, delay_us: random.below(3000) }
    }
}

/// Sends a range in one to three pieces.
fn cut(steps: &mut Vec<Step>, random: &mut Random, range: std::ops::Range<u64>) {
    let mut at = range.start;
    for _ in 0..random.below(3) {
        at += random.below(range.end - at + 1);
        if at > range.start && at < range.end {
            steps.push(Step::Send(at));
        }
    }
    steps.push(Step::Send(range.end));
}

/// Receives a range in one or two pieces.
fn hear(steps: &mut Vec<Step>, random: &mut Random, range: std::ops::Range<u64>) {
    if range.is_empty() {
        return;
    }
    if random.below(4) == 0 {
        steps.push(Step::Receive(range.start + random.below(range.end - range.start)));
    }
    steps.push(Step::Receive(range.end));
}
