//! A thread's requests: one completion queue, a request queue for each socket, and the buffers that requests are about.
//!
//! The rule that keeps it safe: **a buffer that a request names belongs to that request**, in [`Requests::under_way`],
//! until its completion was taken from the queue.

use std::collections::VecDeque;
use std::io;

use slab::Slab;

use super::buffers::{RioBuffer, RioBuffers};
use super::functions::{CORRUPT, Functions, NO_QUEUE, NotifyByPort, RequestFn, RioBuf, RioResult};
use crate::pages::Residence;
use crate::payload::Payload;

/// How a thread's requests are set up.
pub struct RequestSetup {
    /// Buffers for both directions, at least two.
    pub buffers: usize,
    /// Bytes of each.
    pub buffer_bytes: usize,
    /// Whether they are locked in memory besides being registered.
    pub residence: Residence,
    /// Whether a receive takes a buffer when it is made, while fewer than half of them are taken so, rather than when
    /// there is data.
    pub posted: bool,
    /// Sockets that there is room for at first.
    pub sockets: u32,
    /// Completions taken at once.
    pub events: usize,
}

/// A socket's request queue: one receive and one send at a time. It goes with its socket.
#[derive(Debug)]
pub struct RequestQueue {
    at: usize,
    /// The completion queue that it was made with.
    of: isize,
}

/// What is known of a request queue. It keeps its places in the completion queue until its last request has come back.
struct RequestQueueState {
    raw: isize,
    under_way: u32,
    open: bool,
}

/// What came back.
pub struct RioDone {
    /// The number the request was made with.
    pub key: u64,
    /// What became of it.
    pub outcome: RioOutcome,
}

/// What became of a request.
pub enum RioOutcome {
    /// Bytes came; none is the end of the stream. [`io::ErrorKind::ResourceBusy`]: there are, and no buffer for them.
    Received(io::Result<Option<RioBuffer>>),
    /// Bytes were taken; what was not comes back, unless it is a file that cannot be read.
    Sent(io::Result<usize>, Option<Payload>),
}

/// What a request is about.
enum RequestKind {
    /// Waits for data, without a buffer.
    Look,
    Receive {
        buffer: RioBuffer,
        posted: bool,
    },
    Send {
        buffer: RioBuffer,
        payload: Payload,
    },
}

struct UnderWay {
    queue: usize,
    key: u64,
    kind: RequestKind,
}

/// A send that waits for a buffer.
struct WaitingSend {
    queue: usize,
    key: u64,
    payload: Payload,
}

/// Requests of each socket at once: a receive and a send.
const EACH: u32 = 2;

/// Places of a completion queue at most (`RIO_MAX_CQ_SIZE`).
const MOST_PLACES: u32 = 0x800_0000;

/// See the module.
pub struct Requests {
    functions: Functions,
    completions: isize,
    /// Places of the completion queue, and how many of them request queues have reserved.
    places: u32,
    reserved: u32,
    /// Its notification is asked for and has not arrived.
    armed: bool,
    notifies: bool,
    queues: Slab<RequestQueueState>,
    under_way: Slab<UnderWay>,
    ready: VecDeque<RioDone>,
    waiting: VecDeque<WaitingSend>,
    buffers: RioBuffers,
    /// Buffers that receives took when they were made.
    posted: usize,
    posts: bool,
    taken: Vec<RioResult>,
}

impl Requests {
    /// For the calling thread. With `notify` an empty completion queue can tell when it is no longer; without, it is
    /// polled.
    ///
    /// # Errors
    /// The system has no memory left that can be registered or is not paged.
    pub fn new(functions: Functions, setup: &RequestSetup, notify: Option<NotifyByPort>) -> io::Result<Self> {
        let buffers = RioBuffers::new(functions, setup.buffers, setup.buffer_bytes, setup.residence)?;
        let places = setup.sockets.clamp(1, MOST_PLACES / EACH) * EACH;
        let how = notify.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: what `how` names stays as long as the queue, as who made it promised.
        let completions = unsafe { (functions.create_completion_queue)(places, how) };
        if completions == NO_QUEUE {
            return Err((functions.last_error)());
        }
        Ok(Self {
            functions,
            completions,
            places,
            reserved: 0,
            armed: false,
            notifies: notify.is_some(),
            queues: Slab::new(),
            under_way: Slab::new(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            buffers,
            posted: 0,
            posts: setup.posted,
            taken: vec![RioResult::default(); setup.events.max(1)],
        })
    }

    /// Makes the request queue of a socket that is connected or being connected.
    ///
    /// # Errors
    /// The socket was not made for Registered I/O, or the completion queue cannot grow.
    ///
    /// # Safety
    /// The handle is that of a socket which is open.
    pub unsafe fn open(&mut self, socket: usize) -> io::Result<RequestQueue> {
        self.reserve()?;
        let (each, one, queue) = (1, 1, self.completions);
        // SAFETY: the caller answers for the socket; the rest are numbers of this set.
        let made = unsafe {
            (self.functions.create_request_queue)(
                socket,
                each,
                one,
                each,
                one,
                queue,
                queue,
                std::ptr::null(),
            )
        };
        if made == NO_QUEUE {
            let why = (self.functions.last_error)();
            self.reserved -= EACH;
            return Err(why);
        }
        let at = self.queues.insert(RequestQueueState { raw: made, under_way: 0, open: true });
        Ok(RequestQueue { at, of: self.completions })
    }

    /// Each request queue has its places in the completion queue: it would be corrupt if more came back than it has.
    fn reserve(&mut self) -> io::Result<()> {
        if self.reserved + EACH > self.places {
            let more = self.places.saturating_mul(2).min(MOST_PLACES);
            // SAFETY: numbers only; the queue is open.
            if unsafe { (self.functions.resize_completion_queue)(self.completions, more) } == 0 {
                return Err((self.functions.last_error)());
            }
            self.places = more;
        }
        self.reserved += EACH;
        Ok(())
    }

    /// The socket of a queue is being closed. What is under way still comes back.
    pub fn close(&mut self, queue: RequestQueue) {
        let queue = self.place(&queue);
        self.waiting.retain(|waiting| waiting.queue != queue);
        self.queues[queue].open = false;
        self.forget_if_over(queue);
    }

    /// Where a queue is in the table. The number of another thread's would lead to a stranger's socket.
    fn place(&self, queue: &RequestQueue) -> usize {
        assert!(queue.of == self.completions, "a request queue of another thread");
        queue.at
    }

    fn forget_if_over(&mut self, queue: usize) {
        let RequestQueueState { under_way, open, .. } = self.queues[queue];
        if !open && under_way == 0 {
            self.queues.remove(queue);
            self.reserved -= EACH;
        }
    }

    /// Whether receives take a buffer when they are posted ([`RequestSetup::posted`]), from now on.
    pub fn set_posted(&mut self, posted: bool) {
        self.posts = posted;
    }

    /// Receives once.
    pub fn receive(&mut self, queue: &RequestQueue, key: u64) {
        let queue = self.place(queue);
        let posts = self.posts && self.posted < self.buffers.count() / 2;
        let kind = match posts.then(|| self.buffers.take()).flatten() {
            Some(buffer) => RequestKind::Receive { buffer, posted: true },
            None => RequestKind::Look,
        };
        self.posted += usize::from(matches!(kind, RequestKind::Receive { .. }));
        self.submit(UnderWay { queue, key, kind });
        self.send_waiting();
    }

    /// Sends as much of it as a buffer takes, as soon as there is one; a file is read then.
    pub fn send(&mut self, queue: &RequestQueue, payload: Payload, key: u64) {
        let queue = self.place(queue);
        self.waiting.push_back(WaitingSend { queue, key, payload });
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some(mut buffer) = self.buffers.take() else { return };
            let Some(WaitingSend { queue, key, payload }) = self.waiting.pop_front() else { return };
            match self.buffers.fill(&mut buffer, &payload) {
                Ok(()) => self.submit(UnderWay { queue, key, kind: RequestKind::Send { buffer, payload } }),
                Err(e) => {
                    self.buffers.give_back(buffer);
                    self.ready.push_back(RioDone { key, outcome: RioOutcome::Sent(Err(e), None) });
                }
            }
        }
    }

    /// Hands a request over; one that is refused comes back at once.
    fn submit(&mut self, request: UnderWay) {
        let (call, buf): (RequestFn, Option<RioBuf>) = match &request.kind {
            RequestKind::Look => (self.functions.receive, None),
            RequestKind::Receive { buffer, .. } => (self.functions.receive, Some(self.buffers.whole(buffer))),
            RequestKind::Send { buffer, .. } => (self.functions.send, Some(self.buffers.part(buffer))),
        };
        let (spans, count) = buf.as_ref().map_or((std::ptr::null(), 0), |buf| (std::ptr::from_ref(buf), 1));
        let queue = &mut self.queues[request.queue];
        queue.under_way += 1;
        let (raw, place) = (queue.raw, self.under_way.insert(request));
        let context = std::ptr::without_provenance(place);
        // SAFETY: the queue is one of an open socket; the span is copied by the call, and what it names belongs to the
        // request until its completion was taken.
        if unsafe { call(raw, spans, count, 0, context) } == 0 {
            let why = (self.functions.last_error)();
            self.finish(place, Err(why));
        }
    }

    /// Has the completion queue tell once that it is not empty, unless that is asked for already.
    ///
    /// # Errors
    /// The queue was made to be polled, or the system refuses.
    pub fn arm(&mut self) -> io::Result<()> {
        if !self.notifies {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this completion queue is polled"));
        }
        if !self.armed {
            // SAFETY: the queue is open, and was made with a way to notify.
            match unsafe { (self.functions.notify)(self.completions) } {
                0 => self.armed = true,
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
        Ok(())
    }

    /// The notification has arrived.
    pub fn reported(&mut self) {
        self.armed = false;
    }

    /// Takes all completions that are there.
    ///
    /// # Errors
    /// The queue is corrupt: nothing can be done with it any more.
    pub fn collect(&mut self) -> io::Result<()> {
        loop {
            let mut taken = std::mem::take(&mut self.taken);
            // SAFETY: pointer and length describe `taken`, which the call overwrites from the front.
            let count = unsafe {
                (self.functions.dequeue_completion)(self.completions, taken.as_mut_ptr(), taken.len() as u32)
            };
            let found = if count == CORRUPT { 0 } else { count as usize };
            // Sends are reported before what the peer answered to them.
            let receives = |done: &RioResult| {
                self.under_way
                    .get(done.request as usize)
                    .is_some_and(|request| !matches!(request.kind, RequestKind::Send { .. }))
            };
            taken[..found].sort_by_key(receives);
            for done in &taken[..found] {
                self.finish(done.request as usize, outcome(done));
            }
            self.send_waiting();
            let full = found == taken.len();
            self.taken = taken;
            match count {
                CORRUPT => return Err(io::Error::other("the completion queue is corrupt (RIO_CORRUPT_CQ)")),
                _ if full => {}
                _ => return Ok(()),
            }
        }
    }

    fn finish(&mut self, place: usize, result: io::Result<u32>) {
        let Some(UnderWay { queue, key, kind }) = self.under_way.try_remove(place) else { return };
        self.queues[queue].under_way -= 1;
        let outcome = match kind {
            RequestKind::Look if result.is_ok() && self.queues[queue].open => match self.buffers.take() {
                Some(buffer) => {
                    return self.submit(UnderWay {
                        queue,
                        key,
                        kind: RequestKind::Receive { buffer, posted: false },
                    });
                }
                None => RioOutcome::Received(Err(io::ErrorKind::ResourceBusy.into())),
            },
            RequestKind::Look => {
                let ended = io::Error::from(io::ErrorKind::ConnectionAborted);
                RioOutcome::Received(Err(result.err().unwrap_or(ended)))
            }
            RequestKind::Receive { buffer, posted } => {
                self.posted -= usize::from(posted);
                RioOutcome::Received(self.received(buffer, result))
            }
            RequestKind::Send { buffer, payload } => {
                self.buffers.give_back(buffer);
                match result {
                    Ok(n) => RioOutcome::Sent(Ok(n as usize), payload.advance(n as usize)),
                    Err(e) => RioOutcome::Sent(Err(e), Some(payload)),
                }
            }
        };
        self.ready.push_back(RioDone { key, outcome });
        self.forget_if_over(queue);
    }

    fn received(&mut self, buffer: RioBuffer, result: io::Result<u32>) -> io::Result<Option<RioBuffer>> {
        match result {
            Ok(n) if n > 0 => Ok(Some(RioBuffer { filled: n, ..buffer })),
            other => {
                self.buffers.give_back(buffer);
                other.map(|_| None)
            }
        }
    }

    /// Whether an outcome waits to be taken.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next outcome.
    pub fn take(&mut self) -> Option<RioDone> {
        self.ready.pop_front()
    }

    /// The bytes in a buffer.
    pub fn bytes(&self, buffer: &RioBuffer) -> &[u8] {
        self.buffers.received(buffer)
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: RioBuffer) {
        self.buffers.give_back(buffer);
        self.send_waiting();
    }
}

/// What a completion says.
fn outcome(done: &RioResult) -> io::Result<u32> {
    match done.status {
        0 => Ok(done.bytes),
        error if done.bytes == 0 => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::ErrorKind::ConnectionAborted.into()), // a part was sent: it cannot be sent again
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // Every socket is closed by now, so what is under way has ended; if its completion cannot be found, the
        // registered memory, the only one that the kernel has, is left alone.
        let _ = self.collect();
        if !self.under_way.is_empty() {
            self.buffers.leak();
        }
        // SAFETY: the queue is open, and not used any more.
        unsafe { (self.functions.close_completion_queue)(self.completions) };
    }
}
