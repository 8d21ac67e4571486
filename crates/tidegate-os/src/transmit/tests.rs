use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::fake::{self, A_SOCKET, Asked, Has};
use super::functions::MOST_OF_A_CALL;
use super::transmission::handle;
use super::*;
use crate::file::FileRange;

/// `WSAECONNRESET`, `ERROR_OPERATION_ABORTED`, `ERROR_HANDLE_EOF`.
const RESET: i32 = 10054;
const ABORTED: i32 = 995;
const END_OF_FILE: i32 = 38;

const BOTH: [Has; 2] = [Has::File, Has::Packets];

fn pieces(texts: &[&'static str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
}

fn memory(text: &str) -> Asked {
    Asked::Memory(text.as_bytes().to_vec())
}

/// A range of a file, and what it is asked for by.
fn range(at: u64, bytes: usize) -> (FileRange, usize) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"0123456789").unwrap();
    let range = FileRange::new(Arc::new(file), at, bytes);
    let name = handle(&range).addr();
    (range, name)
}

fn blank() -> Box<RawOverlapped> {
    Box::new(RawOverlapped { status: 0, bytes: 0, offset: 0, offset_high: 0, event: std::ptr::null_mut() })
}

/// A queue of one: what the engines do with a payload, on the table.
struct Bench {
    functions: Functions,
    most: usize,
}

impl Bench {
    fn new(has: Has, most: usize) -> Self {
        Self { functions: fake::table(has), most }
    }

    fn begin(&self, parts: Parts) -> io::Result<(Transmission, Box<RawOverlapped>)> {
        let TransmitStart::Transmission(transmission) =
            Transmission::begin(parts, &self.functions, self.most)
        else {
            panic!("the file is not in it")
        };
        let mut overlapped = blank();
        // SAFETY: the socket is a number to the table; both live until the operation was ended.
        match unsafe { transmission.start(&self.functions, A_SOCKET, &raw mut *overlapped) } {
            Err(e) if e.raw_os_error() == Some(fake::PENDING) => Ok((transmission, overlapped)),
            Err(e) => Err(e),
            Ok(()) => panic!("the table has everything pend"),
        }
    }

    /// Sends all of it, each operation taken as a whole; returns what was taken in each, and what was left of bytes.
    fn send(&self, parts: Parts) -> (Vec<usize>, Vec<Bytes>) {
        let (mut left, mut taken) = (Left::Parts(parts), Vec::new());
        loop {
            match left {
                Left::Nothing => return (taken, Vec::new()),
                Left::Bytes(bytes) => return (taken, bytes),
                Left::Parts(parts) => {
                    let (transmission, _overlapped) = self.begin(parts).unwrap();
                    fake::end();
                    let bytes = transmission.bytes();
                    let (outcome, rest) = transmission.finish(Ok(bytes));
                    taken.push(outcome.unwrap());
                    left = rest;
                }
            }
        }
    }
}

#[test]
fn head_file_and_tail_are_one_operation_in_this_order() {
    for has in BOTH {
        let bench = Bench::new(has, 1 << 20);
        let (file, name) = range(3, 5);
        let parts = Parts::new(pieces(&["head"]), file, pieces(&["tail"]));
        assert_eq!(bench.send(parts), (vec![13], vec![]), "{has:?}");
        assert_eq!(fake::calls(), [vec![memory("head"), Asked::File(name, 3, 5), memory("tail")]], "{has:?}");
    }
}

#[test]
fn a_file_by_itself_has_nothing_around_it() {
    for has in BOTH {
        let bench = Bench::new(has, 1 << 20);
        let (file, name) = range(0, 10);
        assert_eq!(bench.send(Parts::new(vec![], file, vec![])), (vec![10], vec![]));
        assert_eq!(fake::calls(), [vec![Asked::File(name, 0, 10)]]);
    }
}

#[test]
fn several_pieces_are_elements_or_are_put_together() {
    let (heads, tails) = (["a", "", "bc"], ["d", "ef"]);
    for (has, around) in [(Has::File, ["abc", "def"]), (Has::Packets, ["", ""])] {
        let bench = Bench::new(has, 1 << 20);
        let (file, name) = range(1, 2);
        assert_eq!(bench.send(Parts::new(pieces(&heads), file, pieces(&tails))), (vec![8], vec![]));
        let file = Asked::File(name, 1, 2);
        let expected = match has {
            Has::File => vec![memory(around[0]), file, memory(around[1])],
            _ => vec![memory("a"), memory("bc"), file, memory("d"), memory("ef")],
        };
        assert_eq!(fake::calls(), [expected], "no element without bytes: that would be all of a file");
    }
}

#[test]
fn many_bytes_before_the_file_go_without_it_where_one_piece_is_all() {
    let long = || vec![Bytes::from(vec![b'x'; 60_000]), Bytes::from(vec![b'y'; 60_000])];
    let functions = fake::table(Has::File);
    let (file, _) = range(0, 10);
    let begun = Transmission::begin(Parts::new(long(), file, vec![]), &functions, 1 << 20);
    let TransmitStart::Head(parts) = begun else { panic!("two pieces before the file") };
    assert_eq!(parts.head().len(), 2);
    let Left::Parts(parts) = parts.advance(120_000) else { panic!("the file is left") };
    assert!(matches!(Transmission::begin(parts, &functions, 1 << 20), TransmitStart::Transmission(_)));

    let bench = Bench::new(Has::File, 1 << 20);
    let (file, _) = range(0, 10);
    let (taken, left) = bench.send(Parts::new(vec![], file, long()));
    assert_eq!((taken, left.len()), (vec![10], 2), "what follows goes by itself, too");
}

#[test]
fn a_long_file_goes_in_steps_and_the_rest_only_with_the_last() {
    for has in BOTH {
        let bench = Bench::new(has, 4);
        let (file, name) = range(0, 10);
        let parts = Parts::new(pieces(&["head"]), file, pieces(&["tail"]));
        assert_eq!(bench.send(parts), (vec![8, 4, 6], vec![]), "{has:?}");
        let expected = [
            vec![memory("head"), Asked::File(name, 0, 4)],
            vec![Asked::File(name, 4, 4)],
            vec![Asked::File(name, 8, 2), memory("tail")],
        ];
        assert_eq!(fake::calls(), expected, "{has:?}");
    }
}

#[test]
fn places_and_sizes_past_two_and_four_gibibytes_are_right() {
    for has in BOTH {
        let bench = Bench::new(has, usize::MAX);
        let (at, bytes) = ((7 << 32) + 5, 5 << 30);
        let (file, name) = range(at, bytes);
        let (taken, left) = bench.send(Parts::new(pieces(&["head"]), file, pieces(&["tail"])));
        assert_eq!((taken.iter().sum::<usize>(), left.len()), (bytes + 8, 0));
        assert!(taken.iter().all(|&n| n <= MOST_OF_A_CALL) && taken.len() == 3, "{taken:?}");
        let (mut next, mut asked_for) = (at, 0);
        for call in fake::calls().into_iter().flatten() {
            let Asked::File(of, from, length) = call else { continue };
            assert_eq!((of, from), (name, next));
            next += u64::from(length);
            asked_for += length as usize;
        }
        assert_eq!(asked_for, bytes, "{has:?}");
    }
}

#[test]
fn what_was_taken_in_part_goes_on_where_it_stopped() {
    for has in BOTH {
        let bench = Bench::new(has, 1 << 20);
        let (file, name) = range(0, 10);
        let (transmission, _overlapped) = bench.begin(Parts::new(pieces(&["head"]), file, vec![])).unwrap();
        fake::end();
        let (outcome, left) = transmission.finish(Ok(7));
        let Left::Parts(rest) = left else { panic!("seven bytes are left") };
        assert_eq!(outcome.unwrap(), 7);
        assert_eq!(bench.send(rest), (vec![7], vec![]));
        assert_eq!(fake::calls()[1], [Asked::File(name, 3, 7)], "{has:?}");
    }
}

#[test]
fn a_step_that_was_refused_says_nothing_of_the_pace() {
    let now = Instant::now();
    let mut parts = Parts::new(pieces(&["head"]), range(0, 10).0, vec![]);
    parts.begin_step(6, now);
    assert_eq!((parts.step(), parts.last_step()), (6, None), "it may come back as it is");
    let Left::Parts(mut rest) = parts.advance(4 + 6) else { panic!("four bytes are left") };
    assert_eq!(rest.last_step(), Some((6, now)));
    rest.begin_step(3, now);
    assert_eq!((rest.step(), rest.last_step()), (3, None));
}

#[test]
fn a_file_that_has_become_shorter_is_an_error_and_never_a_loop() {
    let outcomes = [
        ("", Ok(4)),     // all before the file, nothing of it
        ("tail", Ok(9)), // what follows would be taken for its content
        ("", Err(io::Error::from_raw_os_error(END_OF_FILE))),
    ];
    for has in BOTH {
        for (tail, outcome) in &outcomes {
            let bench = Bench::new(has, 1 << 20);
            let (file, _) = range(5, 8);
            let parts = Parts::new(pieces(&["head"]), file, pieces(&[tail]));
            let (transmission, _overlapped) = bench.begin(parts).unwrap();
            fake::end();
            let outcome = match outcome {
                Ok(n) => Ok(*n),
                Err(e) => Err(io::Error::from_raw_os_error(e.raw_os_error().unwrap())),
            };
            let (outcome, left) = transmission.finish(outcome);
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert!(matches!(left, Left::Nothing));
        }
    }
}

#[test]
fn errors_of_the_call_and_of_the_operation_are_reported() {
    for has in BOTH {
        let bench = Bench::new(has, 1 << 20);
        fake::refuse(RESET);
        let refused = bench.begin(Parts::new(vec![], range(0, 10).0, vec![])).err().unwrap();
        assert_eq!((refused.raw_os_error(), fake::under_way()), (Some(RESET), 0));

        let (transmission, _overlapped) = bench.begin(Parts::new(vec![], range(0, 10).0, vec![])).unwrap();
        fake::end();
        let (outcome, left) = transmission.finish(Err(io::Error::from_raw_os_error(RESET)));
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(RESET));
        assert!(matches!(left, Left::Nothing));
    }
}

#[test]
fn one_that_is_cancelled_keeps_what_the_kernel_reads_until_it_has_ended() {
    for has in BOTH {
        let bench = Bench::new(has, 1 << 20);
        let (head, shared) = (Bytes::from(vec![b'x'; 9]), Arc::new(tempfile::tempfile().unwrap()));
        let parts = Parts::new(vec![head.clone()], FileRange::new(shared.clone(), 0, 9), vec![]);
        let (transmission, _overlapped) = bench.begin(parts).unwrap();
        assert!(!head.is_unique() && Arc::strong_count(&shared) == 2 && fake::under_way() == 1);
        fake::end();
        let (outcome, _) = transmission.finish(Err(io::Error::from_raw_os_error(ABORTED)));
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(ABORTED));
        assert!(head.is_unique() && Arc::strong_count(&shared) == 1, "and lets go of it then");
    }
}

#[test]
fn a_table_without_them_says_so() {
    assert!(!fake::table(Has::Neither).send_files());
    assert!(fake::table(Has::File).send_files() && fake::table(Has::Packets).send_files());
}
