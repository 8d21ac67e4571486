use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::fake::{self, Call};
use super::{NotifyByPort, RequestQueue, RequestSetup, Requests, RioOutcome};
use crate::file::FileRange;
use crate::pages::Residence;
use crate::payload::Payload;
use crate::transmit::Parts;

const BYTES: usize = 4096;
/// `WSAENOBUFS`, `WSAECONNRESET` and `WSAEALREADY`: to the table they are numbers.
const NO_BUFFERS: i32 = 10055;
const RESET: i32 = 10054;
const ALREADY: i32 = 10037;

fn setup(buffers: usize) -> RequestSetup {
    RequestSetup {
        buffers,
        buffer_bytes: BYTES,
        residence: Residence::Pageable,
        posted: true,
        sockets: 1,
        events: 2,
    }
}

fn polled(buffers: usize) -> Requests {
    Requests::new(fake::table(), &setup(buffers), None).expect("a queue")
}

fn by_port() -> NotifyByPort {
    // SAFETY: the fake never looks at them.
    unsafe { NotifyByPort::new(std::ptr::null_mut(), 0, std::ptr::null_mut()) }
}

fn with_port() -> Requests {
    Requests::new(fake::table(), &setup(4), Some(by_port())).expect("a queue")
}

fn one(bytes: &'static [u8]) -> Payload {
    Payload::One(Bytes::from_static(bytes))
}

/// So many bytes from byte 1 of a file on, in the middle of `head` and `tail`.
fn around(file: File, bytes: usize, head: &'static str, tail: &'static str) -> Parts {
    let pieces = |text: &'static str| {
        let (first, rest) = text.split_at(text.len().min(1));
        [first, rest].map(|piece| Bytes::from_static(piece.as_bytes())).into()
    };
    Parts::new(pieces(head), FileRange::new(Arc::new(file), 1, bytes), pieces(tail))
}

fn parts(parts: Parts) -> Payload {
    Payload::Parts(Box::new(parts))
}

/// A file with this in it.
fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// Sends all of it, of which the kernel takes so many bytes at most at once; what it took each time.
fn send_all(requests: &mut Requests, queue: &RequestQueue, payload: Payload, most: usize) -> Vec<Vec<u8>> {
    let (mut left, mut taken) = (Some(payload), Vec::new());
    while let Some(payload) = left {
        requests.send(queue, payload, 1);
        taken.push(fake::take_sent(0, most).expect("a send"));
        requests.collect().unwrap();
        let (_, outcome, rest) = sent(requests);
        assert_eq!(outcome.unwrap(), taken[taken.len() - 1].len());
        left = rest;
    }
    taken
}

fn code(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// The next outcome, which has to be a receive: its key and its bytes.
fn received(requests: &mut Requests) -> (u64, io::Result<Vec<u8>>) {
    let done = requests.take().expect("an outcome");
    let RioOutcome::Received(outcome) = done.outcome else { panic!("a send came back") };
    let bytes = outcome.map(|buffer| {
        let Some(buffer) = buffer else { return Vec::new() };
        let bytes = requests.bytes(&buffer).to_vec();
        requests.recycle(buffer);
        bytes
    });
    (done.key, bytes)
}

fn sent(requests: &mut Requests) -> (u64, io::Result<usize>, Option<Payload>) {
    let done = requests.take().expect("an outcome");
    let RioOutcome::Sent(outcome, rest) = done.outcome else { panic!("a receive came back") };
    (done.key, outcome, rest)
}

fn try_open(requests: &mut Requests, socket: usize) -> io::Result<RequestQueue> {
    // SAFETY: the functions of this table take any number for a socket.
    unsafe { requests.open(socket) }
}

fn open(requests: &mut Requests, count: usize) -> Vec<RequestQueue> {
    (0..count).map(|socket| try_open(requests, socket).expect("a request queue")).collect()
}

#[test]
fn memory_is_registered_once_and_given_back_at_the_end() {
    let requests = polled(8);
    assert_eq!(fake::left(), (1, true));
    drop(requests);
    assert_eq!(fake::left(), (0, false));
}

#[test]
fn a_refused_registration_or_queue_is_an_error_and_leaves_nothing() {
    let functions = fake::table();
    for call in [Call::Register, Call::CreateCompletionQueue] {
        fake::refuse(call, NO_BUFFERS);
        let refused = Requests::new(functions, &setup(4), None).err().expect("refused");
        assert_eq!(code(&refused), Some(NO_BUFFERS), "{call:?}");
        assert_eq!(fake::left(), (0, false), "{call:?}");
    }
    let huge = RequestSetup { buffers: 1 << 20, buffer_bytes: 1 << 20, ..setup(0) };
    let refused = Requests::new(functions, &huge, None).err().expect("refused");
    assert!(refused.to_string().contains("fewer or smaller buffers"));
}

#[test]
fn bytes_go_through_registered_memory_both_ways() {
    let mut requests = polled(4);
    let queues = open(&mut requests, 1);
    requests.receive(&queues[0], 7);
    assert_eq!(fake::receive_waits(0), Some(true), "a receive is posted with a buffer");
    fake::bytes_come(0, b"hello");
    requests.collect().unwrap();
    let (key, bytes) = received(&mut requests);
    assert_eq!((key, bytes.unwrap()), (7, b"hello".to_vec()));
    let pieces = vec![Bytes::from_static(b"head"), Bytes::from_static(b"body")];
    requests.send(&queues[0], Payload::Many(pieces), 8);
    assert_eq!(fake::take_sent(0, 99).unwrap(), b"headbody", "one span for all pieces");
    requests.collect().unwrap();
    let (key, outcome, rest) = sent(&mut requests);
    assert!(key == 8 && outcome.unwrap() == 8 && rest.is_none());
}

#[test]
fn completions_come_in_their_order_but_what_was_sent_comes_before_the_answer() {
    let mut requests = polled(8);
    let queues = open(&mut requests, 3);
    for (key, queue) in queues.iter().enumerate() {
        requests.receive(queue, key as u64);
    }
    for nth in [2, 0, 1] {
        fake::bytes_come(nth, &[nth as u8]);
    }
    requests.collect().unwrap(); // two at a time
    let keys: Vec<u64> = (0..3).map(|_| received(&mut requests).0).collect();
    assert_eq!(keys, [2, 0, 1]);
    requests.receive(&queues[0], 10);
    requests.send(&queues[0], one(b"question"), 11);
    fake::bytes_come(0, b"answer");
    fake::take_sent(0, 8);
    requests.collect().unwrap();
    assert_eq!((sent(&mut requests).0, received(&mut requests).0), (11, 10));
}

#[test]
fn a_polled_queue_is_never_reported() {
    let mut requests = polled(4);
    let queues = open(&mut requests, 1);
    requests.receive(&queues[0], 1);
    fake::bytes_come(0, b"x");
    assert_eq!(requests.arm().unwrap_err().kind(), ErrorKind::Unsupported);
    requests.collect().unwrap();
    assert!(requests.has_ready());
    assert_eq!(fake::tellings(), (0, 0));
}

#[test]
fn a_queue_is_reported_once_each_time_it_is_armed() {
    let mut requests = with_port();
    let queues = open(&mut requests, 2);
    requests.receive(&queues[0], 1);
    requests.receive(&queues[1], 2);
    requests.arm().unwrap();
    requests.arm().unwrap();
    assert_eq!(fake::tellings(), (1, 0), "it is asked once");
    fake::bytes_come(0, b"x");
    fake::bytes_come(1, b"y");
    assert_eq!(fake::tellings(), (1, 1), "and tells once");
    requests.reported();
    requests.arm().unwrap();
    assert_eq!(fake::tellings(), (2, 2), "what is there already counts");
    requests.collect().unwrap();
    assert_eq!((received(&mut requests).0, received(&mut requests).0), (1, 2));
}

#[test]
fn a_refused_notification_is_an_error_and_can_be_requested_again() {
    let mut requests = with_port();
    fake::refuse(Call::Notify, ALREADY);
    assert_eq!(code(&requests.arm().unwrap_err()), Some(ALREADY));
    requests.arm().unwrap();
    assert_eq!(fake::tellings(), (1, 0));
}

#[test]
fn without_a_buffer_a_receive_waits_for_data_and_takes_one_then() {
    let setup = RequestSetup { posted: false, ..setup(2) };
    let mut requests = Requests::new(fake::table(), &setup, None).unwrap();
    let queues = open(&mut requests, 1);
    requests.receive(&queues[0], 5);
    assert_eq!(fake::receive_waits(0), Some(false), "nothing is pinned");
    assert_eq!(fake::bytes_come(0, b"data"), Some(0));
    requests.collect().unwrap();
    assert!(!requests.has_ready());
    assert_eq!(fake::receive_waits(0), Some(true));
    fake::bytes_come(0, b"data");
    requests.collect().unwrap();
    assert_eq!(received(&mut requests).1.unwrap(), b"data");
}

#[test]
fn however_many_receives_wait_for_data_all_buffers_are_left_for_sends() {
    const BUFFERS: usize = 8;
    let setup = RequestSetup { posted: false, ..setup(BUFFERS) };
    let mut requests = Requests::new(fake::table(), &setup, None).unwrap();
    let queues = open(&mut requests, 100);
    for (key, queue) in queues.iter().enumerate() {
        requests.receive(queue, key as u64);
        assert_eq!(fake::receive_waits(key), Some(false), "nothing is pinned");
    }
    queues[..BUFFERS].iter().for_each(|queue| requests.send(queue, one(b"x"), 7));
    for nth in 0..BUFFERS {
        assert_eq!(fake::take_sent(nth, 1).as_deref(), Some(&b"x"[..]), "send {nth}");
    }
}

#[test]
fn receives_pin_nothing_while_memory_is_short_and_do_again_after_that() {
    let mut requests = polled(8);
    let queues = open(&mut requests, 3);
    requests.set_posted(false);
    requests.receive(&queues[0], 0);
    requests.set_posted(true);
    requests.receive(&queues[1], 1);
    assert_eq!((fake::receive_waits(0), fake::receive_waits(1)), (Some(false), Some(true)));
    fake::bytes_come(0, b"data"); // what was posted before is served as it was posted
    requests.collect().unwrap();
    assert_eq!(fake::receive_waits(0), Some(true));
    fake::bytes_come(0, b"data");
    requests.collect().unwrap();
    assert_eq!(received(&mut requests).1.unwrap(), b"data");
}

#[test]
fn at_most_half_of_the_buffers_are_posted_and_a_shortage_is_reported() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 3);
    requests.receive(&queues[0], 0);
    requests.receive(&queues[1], 1);
    assert_eq!((fake::receive_waits(0), fake::receive_waits(1)), (Some(true), Some(false)));
    requests.send(&queues[2], one(b"takes the other one"), 2);
    fake::bytes_come(1, b"x");
    requests.collect().unwrap();
    assert_eq!(received(&mut requests).1.unwrap_err().kind(), ErrorKind::ResourceBusy);
}

#[test]
fn a_send_waits_for_a_buffer_and_long_ones_go_piece_by_piece() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 3);
    let long = vec![7u8; BYTES + 10];
    requests.send(&queues[0], Payload::One(long.into()), 0);
    requests.send(&queues[1], one(b"b"), 1);
    requests.send(&queues[2], one(b"c"), 2);
    assert!(fake::take_sent(2, 9).is_none(), "two buffers, two sends");
    assert_eq!(fake::take_sent(0, usize::MAX).unwrap().len(), BYTES);
    requests.collect().unwrap();
    let (key, outcome, rest) = sent(&mut requests);
    assert_eq!((key, outcome.unwrap()), (0, BYTES));
    assert_eq!(rest.expect("ten bytes are left").pieces()[0].len(), 10);
    assert_eq!(fake::take_sent(2, 9).unwrap(), b"c", "who waited has the buffer now");
}

#[test]
fn what_was_not_taken_of_a_send_comes_back() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    requests.send(&queues[0], one(b"abcdef"), 0);
    fake::take_sent(0, 2);
    requests.collect().unwrap();
    let (_, outcome, rest) = sent(&mut requests);
    assert_eq!(outcome.unwrap(), 2);
    assert_eq!(&rest.expect("four bytes are left").pieces()[0][..], b"cdef");
}

#[test]
fn head_file_and_tail_fill_buffer_after_buffer_in_this_order() {
    let content: Vec<u8> = (0..3 * BYTES).map(|at| (at % 251) as u8).collect();
    let of_file = 2 * BYTES + 10;
    let expected = [b"head", &content[1..=of_file], b"tail"].concat();
    for most in [usize::MAX, BYTES - 1, 1000] {
        let mut requests = polled(2);
        let queues = open(&mut requests, 1);
        let payload = parts(around(file(&content), of_file, "head", "tail"));
        let taken = send_all(&mut requests, &queues[0], payload, most);
        let lengths: Vec<usize> = taken.iter().map(Vec::len).collect();
        assert_eq!(taken.concat(), expected, "{lengths:?}");
        assert!(most < BYTES || lengths == [BYTES, BYTES, 18], "no buffer is left half empty: {lengths:?}");
    }
}

#[test]
fn of_a_file_no_more_is_read_at_once_than_a_step_has() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    let mut steps = around(file(b"0123456789"), 9, "head", "tail");
    steps.begin_step(4, Instant::now());
    let taken = send_all(&mut requests, &queues[0], parts(steps), usize::MAX);
    assert_eq!(taken, [&b"head1234"[..], b"5678", b"9tail"]);
}

#[test]
fn a_file_that_is_shorter_or_cannot_be_read_fails_after_what_came_before_it() {
    let unreadable = tempfile::NamedTempFile::new().unwrap();
    let unreadable = || File::options().write(true).open(&unreadable).unwrap();
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    for _ in 0..4 {
        for (file, head, before, is_shorter) in [
            (file(b"0123456789"), "head", "head123456789", true),
            (file(b"0"), "", "", true),
            (unreadable(), "head", "head", false),
            (unreadable(), "", "", false),
        ] {
            let mut payload = parts(around(file, 20, head, "tail"));
            if !before.is_empty() {
                requests.send(&queues[0], payload, 1);
                assert_eq!(fake::take_sent(0, usize::MAX).as_deref(), Some(before.as_bytes()));
                requests.collect().unwrap();
                payload = sent(&mut requests).2.expect("the file is left");
            }
            requests.send(&queues[0], payload, 2);
            assert_eq!(fake::take_sent(0, usize::MAX), None, "nothing of it is sent");
            let (key, outcome, rest) = sent(&mut requests);
            let error = outcome.unwrap_err();
            assert_eq!((key, error.kind() == ErrorKind::UnexpectedEof), (2, is_shorter), "{error}");
            assert!(rest.is_none() && (is_shorter || code(&error).is_some()), "{error}");
        }
    }
}

#[test]
fn a_file_whose_send_is_refused_can_be_sent_again() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    fake::refuse(Call::Send, NO_BUFFERS);
    requests.send(&queues[0], parts(around(file(b"0123456789"), 9, "head", "tail")), 1);
    let (_, outcome, rest) = sent(&mut requests);
    assert_eq!(code(&outcome.unwrap_err()), Some(NO_BUFFERS));
    let taken = send_all(&mut requests, &queues[0], rest.expect("all of it"), usize::MAX);
    assert_eq!(taken, [b"head123456789tail"]);
}

#[test]
fn a_refused_request_comes_back_with_the_error_and_its_buffer_is_free_again() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    for _ in 0..8 {
        fake::refuse(Call::Receive, NO_BUFFERS);
        requests.receive(&queues[0], 1);
        assert_eq!(code(&received(&mut requests).1.unwrap_err()), Some(NO_BUFFERS));
        fake::refuse(Call::Send, RESET);
        requests.send(&queues[0], one(b"x"), 2);
        assert_eq!(code(&sent(&mut requests).1.unwrap_err()), Some(RESET));
    }
    requests.receive(&queues[0], 1);
    assert_eq!(fake::receive_waits(0), Some(true));
}

#[test]
fn an_end_is_no_bytes_and_a_failure_is_the_error() {
    let mut requests = polled(4);
    let queues = open(&mut requests, 1);
    requests.receive(&queues[0], 1);
    fake::bytes_come(0, b"");
    requests.collect().unwrap();
    assert_eq!(received(&mut requests).1.unwrap(), b"");
    requests.receive(&queues[0], 1);
    fake::receive_fails(0, RESET);
    requests.collect().unwrap();
    assert_eq!(code(&received(&mut requests).1.unwrap_err()), Some(RESET));
}

#[test]
fn the_completion_queue_has_two_places_for_each_socket_and_grows() {
    let mut requests = polled(2);
    let mut queues = open(&mut requests, 1);
    assert_eq!(fake::places(), 2);
    fake::refuse(Call::Resize, NO_BUFFERS);
    assert_eq!(code(&try_open(&mut requests, 1).unwrap_err()), Some(NO_BUFFERS));
    queues.extend(open(&mut requests, 1));
    assert_eq!(fake::places(), 4);
    fake::refuse(Call::CreateRequestQueue, RESET);
    requests.close(queues.remove(0));
    assert_eq!(code(&try_open(&mut requests, 2).unwrap_err()), Some(RESET));
    open(&mut requests, 1);
    assert_eq!(fake::places(), 4, "who is gone, and who was refused, has no places");
}

#[test]
fn a_closed_socket_keeps_its_places_until_its_requests_are_back() {
    let mut requests = polled(4);
    let mut queues = open(&mut requests, 1);
    requests.receive(&queues[0], 1);
    requests.close(queues.remove(0));
    open(&mut requests, 1);
    assert_eq!(fake::places(), 4);
    fake::receive_fails(0, RESET);
    requests.collect().unwrap();
    open(&mut requests, 1);
    assert_eq!(fake::places(), 4);
}

#[test]
fn a_corrupt_queue_is_an_error_and_its_memory_is_left_alone() {
    let mut requests = polled(2);
    let queues = open(&mut requests, 1);
    requests.receive(&queues[0], 1);
    fake::corrupt();
    assert!(requests.collect().unwrap_err().to_string().contains("corrupt"));
    drop(requests);
    assert_eq!(fake::left(), (1, false), "the kernel may still write there");
}
