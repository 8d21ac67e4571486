//! A table of functions that replaces the system's: it keeps the rules of Registered I/O, and breaks off where the
//! caller does not.
//!
//! What the kernel would do is done by the tests: let bytes come, take what is sent, refuse a call.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::io;

use super::functions::{CORRUPT, Functions, NO_BUFFER, NO_QUEUE, NotifyByPort, RioBuf, RioResult};

/// Calls that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Register,
    CreateCompletionQueue,
    Resize,
    CreateRequestQueue,
    Receive,
    Send,
    Notify,
}

/// A request as it was made.
#[derive(Clone, Copy)]
struct Asked {
    buf: Option<RioBuf>,
    context: u64,
}

#[derive(Default)]
struct Queue {
    receives: VecDeque<Asked>,
    sends: VecDeque<Asked>,
}

#[derive(Default)]
struct Kernel {
    registered: HashMap<isize, (*mut u8, u32)>,
    next: isize,
    places: u32,
    completions: VecDeque<RioResult>,
    queues: HashMap<isize, Queue>,
    open: bool,
    notifies: bool,
    armed: bool,
    corrupt: bool,
    refusals: HashMap<Call, i32>,
    error: i32,
    /// How often the queue has reported, and was asked to.
    reported: u32,
    asked: u32,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
}

fn with<T>(run: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(run)
}

impl Kernel {
    fn refuses(&mut self, call: Call) -> bool {
        let refusal = self.refusals.remove(&call);
        self.error = refusal.unwrap_or(self.error);
        refusal.is_some()
    }

    fn name(&mut self) -> isize {
        self.next += 1;
        self.next
    }

    fn memory(&self, buf: RioBuf) -> *mut u8 {
        let (at, bytes) = self.registered[&buf.buffer];
        assert!(buf.offset + buf.length <= bytes, "outside of what is registered: {buf:?}");
        at.wrapping_add(buf.offset as usize)
    }

    fn complete(&mut self, asked: Asked, status: i32, bytes: u32) {
        assert!((self.completions.len() as u32) < self.places, "more completions than places");
        self.completions.push_back(RioResult { status, bytes, socket: 0, request: asked.context });
        self.announce();
    }

    fn announce(&mut self) {
        if self.armed && !self.completions.is_empty() {
            self.armed = false;
            self.reported += 1;
        }
    }
}

unsafe extern "system" fn register(at: *const u8, bytes: u32) -> isize {
    with(|kernel| {
        if kernel.refuses(Call::Register) {
            return NO_BUFFER;
        }
        let id = kernel.name();
        kernel.registered.insert(id, (at.cast_mut(), bytes));
        id
    })
}

unsafe extern "system" fn deregister(id: isize) {
    with(|kernel| assert!(kernel.registered.remove(&id).is_some(), "{id} was not registered"));
}

unsafe extern "system" fn create_completion_queue(places: u32, how: *const NotifyByPort) -> isize {
    with(|kernel| {
        if kernel.refuses(Call::CreateCompletionQueue) {
            return NO_QUEUE;
        }
        (kernel.places, kernel.notifies, kernel.open) = (places, !how.is_null(), true);
        kernel.name()
    })
}

unsafe extern "system" fn resize(_: isize, places: u32) -> i32 {
    with(|kernel| {
        if kernel.refuses(Call::Resize) {
            return 0;
        }
        kernel.places = places;
        1
    })
}

unsafe extern "system" fn close_completion_queue(_: isize) {
    with(|kernel| assert!(std::mem::take(&mut kernel.open), "closed twice"));
}

unsafe extern "system" fn create_request_queue(
    _socket: usize,
    receives: u32,
    receive_spans: u32,
    sends: u32,
    send_spans: u32,
    _: isize,
    _: isize,
    _: *const c_void,
) -> isize {
    with(|kernel| {
        assert_eq!((receives, receive_spans, sends, send_spans), (1, 1, 1, 1), "one of each");
        if kernel.refuses(Call::CreateRequestQueue) {
            return NO_QUEUE;
        }
        let id = kernel.name();
        kernel.queues.insert(id, Queue::default());
        id
    })
}

/// # Safety
/// `spans` has `count` spans.
unsafe fn asked(spans: *const RioBuf, count: u32, context: *const c_void) -> Asked {
    assert!(count <= 1, "a request takes one span or none");
    // SAFETY: as promised.
    let buf = if count == 1 { Some(unsafe { *spans }) } else { None };
    Asked { buf, context: context.addr() as u64 }
}

unsafe extern "system" fn receive(
    queue: isize,
    spans: *const RioBuf,
    count: u32,
    _: u32,
    context: *const c_void,
) -> i32 {
    // SAFETY: passed on.
    let asked = unsafe { asked(spans, count, context) };
    with(|kernel| {
        if kernel.refuses(Call::Receive) {
            return 0;
        }
        let receives = &mut kernel.queues.get_mut(&queue).expect("an open queue").receives;
        assert!(receives.is_empty(), "more than one receive");
        receives.push_back(asked);
        1
    })
}

unsafe extern "system" fn send(
    queue: isize,
    spans: *const RioBuf,
    count: u32,
    _: u32,
    context: *const c_void,
) -> i32 {
    // SAFETY: passed on.
    let asked = unsafe { asked(spans, count, context) };
    with(|kernel| {
        if kernel.refuses(Call::Send) {
            return 0;
        }
        let sends = &mut kernel.queues.get_mut(&queue).expect("an open queue").sends;
        assert!(sends.is_empty(), "more than one send");
        sends.push_back(asked);
        1
    })
}

unsafe extern "system" fn dequeue(_: isize, into: *mut RioResult, room: u32) -> u32 {
    with(|kernel| {
        if kernel.corrupt {
            return CORRUPT;
        }
        let count = kernel.completions.len().min(room as usize);
        for (at, done) in kernel.completions.drain(..count).enumerate() {
            // SAFETY: there is room for `room` of them.
            unsafe { into.add(at).write(done) };
        }
        count as u32
    })
}

unsafe extern "system" fn notify(_: isize) -> i32 {
    with(|kernel| {
        if let Some(code) = kernel.refusals.remove(&Call::Notify) {
            return code;
        }
        assert!(
            kernel.notifies && !std::mem::replace(&mut kernel.armed, true),
            "armed twice, or without a port"
        );
        kernel.asked += 1;
        kernel.announce();
        0
    })
}

/// The table. The kernel behind it is that of the calling thread, and new.
pub(super) fn table() -> Functions {
    with(|kernel| *kernel = Kernel::default());
    Functions {
        register_buffer: register,
        deregister_buffer: deregister,
        create_completion_queue,
        resize_completion_queue: resize,
        close_completion_queue,
        create_request_queue,
        receive,
        send,
        dequeue_completion: dequeue,
        notify,
        last_error: || io::Error::from_raw_os_error(with(|kernel| kernel.error)),
    }
}

/// The next such call is refused with this error.
pub(super) fn refuse(call: Call, code: i32) {
    with(|kernel| kernel.refusals.insert(call, code));
}

/// The `nth` request queue that was made, from 0.
fn queue(kernel: &mut Kernel, nth: usize) -> &mut Queue {
    let mut names: Vec<_> = kernel.queues.keys().copied().collect();
    names.sort_unstable();
    kernel.queues.get_mut(&names[nth]).expect("it was made")
}

/// Bytes come: those that fit into the receive that waits, none if it has no span. `None` if nothing waits.
pub(super) fn bytes_come(nth: usize, bytes: &[u8]) -> Option<usize> {
    with(|kernel| {
        let asked = queue(kernel, nth).receives.pop_front()?;
        let taken = asked.buf.map_or(0, |buf| bytes.len().min(buf.length as usize));
        if let Some(buf) = asked.buf {
            // SAFETY: registered memory of that length, which nobody reads meanwhile.
            unsafe { kernel.memory(buf).copy_from_nonoverlapping(bytes.as_ptr(), taken) };
        }
        kernel.complete(asked, 0, taken as u32);
        Some(taken)
    })
}

/// A request ends with an error.
pub(super) fn receive_fails(nth: usize, code: i32) {
    with(|kernel| {
        let asked = queue(kernel, nth).receives.pop_front().expect("a receive waits");
        kernel.complete(asked, code, 0);
    });
}

/// At most so many bytes of the send that waits are taken. `None` if nothing waits.
pub(super) fn take_sent(nth: usize, most: usize) -> Option<Vec<u8>> {
    with(|kernel| {
        let asked = queue(kernel, nth).sends.pop_front()?;
        let buf = asked.buf.expect("a send has bytes");
        let mut bytes = vec![0; most.min(buf.length as usize)];
        // SAFETY: registered memory of that length, which nobody writes meanwhile.
        unsafe { kernel.memory(buf).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        kernel.complete(asked, 0, bytes.len() as u32);
        Some(bytes)
    })
}

/// Whether a receive waits, and whether it has a span.
pub(super) fn receive_waits(nth: usize) -> Option<bool> {
    with(|kernel| queue(kernel, nth).receives.front().map(|asked| asked.buf.is_some()))
}

/// From now on the completion queue is corrupt.
pub(super) fn corrupt() {
    with(|kernel| kernel.corrupt = true);
}

/// How often the queue was asked to tell, and has reported.
pub(super) fn tellings() -> (u32, u32) {
    with(|kernel| (kernel.asked, kernel.reported))
}

/// Places of the completion queue.
pub(super) fn places() -> u32 {
    with(|kernel| kernel.places)
}

/// Registrations that are left, and whether the completion queue is open.
pub(super) fn left() -> (usize, bool) {
    with(|kernel| (kernel.registered.len(), kernel.open))
}
