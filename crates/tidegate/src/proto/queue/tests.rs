use std::io::Write;
use std::sync::Arc;

use super::*;

fn content(queue: &SendQueue) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 16];
    let n = queue.slices(&mut slices);
    slices[..n].iter().flat_map(|s| s.iter().copied()).collect()
}

#[test]
fn pieces_leave_in_order_whatever_the_steps() {
    let mut queue = SendQueue::default();
    queue.push_copy(b"ab");
    queue.push_copy(b"cd");
    queue.push_shared(Bytes::from_static(b"efg"));
    queue.push_copy(b"h");
    assert_eq!(content(&queue), b"abcdefgh");
    let mut left = b"abcdefgh".to_vec();
    for step in [1, 3, 2, 2] {
        queue.confirm(step);
        left.drain(..step);
        assert_eq!(content(&queue), left);
        assert_eq!(queue.len(), left.len());
    }
    assert!(queue.is_empty() && queue.unsent.is_none());
}

#[test]
fn a_thread_of_one_connection_keeps_no_long_list() {
    let (mut queue, mut taken) = (SendQueue::default(), SendQueue::default());
    for _ in 0..1000 {
        queue.push_shared(Bytes::from_static(b"piece"));
    }
    queue.take_all(&mut taken);
    taken.confirm_and_free(999 * 5);
    assert!(taken.unsent.is_some());
    taken.confirm_and_free(5);
    assert!(taken.unsent.is_none());
}

#[test]
fn pieces_that_are_written_together_are_one_chunk() {
    let mut queue = SendQueue::default();
    let (head, body) = (vec![b'h'; 150], vec![b'b'; 4096]);
    queue.push_copies([&head[..], &[], &body].into_iter());
    assert_eq!(queue.only_slice(), Some([head, body].concat().as_slice()));
    queue.push_copies([&b"x"[..], b"y"].into_iter());
    assert_eq!((queue.only_slice().map(|all| all.len()), queue.len()), (Some(4248), 4248), "they are joined");
    queue.push_copies([&[0; JOIN_BYTES][..], b"z"].into_iter());
    assert_eq!((queue.only_slice(), queue.len()), (None, 4248 + JOIN_BYTES + 1));
    queue.confirm(4248);
    assert_eq!(queue.only_slice().map(|all| all.len()), Some(JOIN_BYTES + 1));
    queue.push_copies([&[][..]].into_iter());
    assert_eq!(queue.len(), JOIN_BYTES + 1);
}

#[test]
fn a_long_copy_is_freed_as_the_peer_takes_it() {
    let all: Vec<u8> = (0..3 * COPY_BYTES + 5).map(|at| (at % 251) as u8).collect();
    let (head, body) = all.split_at(7);
    let mut queue = SendQueue::default();
    queue.push_copies([head, body, &[]].into_iter());
    assert_eq!((content(&queue), queue.len()), (all.clone(), all.len()));
    let mut slices = [IoSlice::new(&[]); 16];
    let n = queue.slices(&mut slices);
    let lengths: Vec<usize> = slices[..n].iter().map(|slice| slice.len()).collect();
    assert_eq!(lengths, [COPY_BYTES, COPY_BYTES, COPY_BYTES, 5]);
    queue.confirm(3 * COPY_BYTES);
    assert_eq!(queue.only_slice(), Some(&all[3 * COPY_BYTES..]));
    let mut queue = SendQueue::default();
    queue.push_copies([&body[..COPY_BYTES - 7], head].into_iter());
    assert_eq!(queue.only_slice().map(<[u8]>::len), Some(COPY_BYTES), "no empty one behind it");
}

#[test]
fn a_buffer_has_room_for_at_most_a_quarter_more_than_is_in_it() {
    for step in [1, 9, 700, 5_000] {
        let mut queue = SendQueue::default();
        while queue.len() + step <= JOIN_BYTES {
            queue.push_copy(&vec![1; step]);
            let Some(Chunk::Copied(buffer)) = queue.front() else { panic!("a copy") };
            let most = buffer.len() + buffer.len() / 4;
            assert!((buffer.len()..=most).contains(&buffer.capacity()), "{step}: {}", buffer.capacity());
        }
        assert!(queue.only_slice().is_some_and(|all| all.len() == queue.len()), "{step}: joined");
    }
}

/// Appends so many bytes, has them sent, and returns where they lay.
fn sent_from(bytes: usize) -> *const u8 {
    let mut queue = SendQueue::default();
    queue.push_copy(&vec![1; bytes]);
    let at = queue.only_slice().unwrap().as_ptr();
    queue.confirm(1);
    queue.confirm(bytes - 1);
    at
}

#[test]
fn a_buffer_that_was_sent_is_used_again_for_what_nearly_fills_it() {
    let spare = || spare_buffer::take(1600).capacity();
    sent_from(2000);
    assert!(sent_from(1800) == sent_from(1600), "it went back each time");
    assert_eq!(spare(), 2000);
    sent_from(2001);
    assert_eq!(spare(), 1600, "too large for so few");
    sent_from(JOIN_BYTES + 1);
    assert_eq!(spare_buffer::take(JOIN_BYTES).capacity(), JOIN_BYTES, "a large one is not kept");
    sent_from(2000);
    sent_from(1000);
    assert_eq!(spare(), 2000, "a small one is not kept in its place");
}

#[test]
fn a_thread_of_one_connection_keeps_no_buffer() {
    let leave = [
        |queue: &mut SendQueue| {
            let mut taken = SendQueue::default();
            queue.take_all(&mut taken);
            taken.confirm_and_free(2000);
        },
        |queue: &mut SendQueue| assert_eq!(queue.copy_into(&mut [0; 2000]).unwrap(), 2000),
    ];
    for leave in leave {
        let mut queue = SendQueue::default();
        queue.push_copy(&[1; 2000]);
        leave(&mut queue);
        assert_eq!(spare_buffer::take(1100).capacity(), 1100);
    }
}

/// Three bytes of memory, five of a file, and three more.
fn pieces(pieces: usize) -> TakeLimits {
    TakeLimits { pieces, bytes: usize::MAX }
}

fn with_a_file() -> SendQueue {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"0123456789").unwrap();
    let mut queue = SendQueue::default();
    queue.push_copy(b"abc");
    queue.push_file(FileRange::new(Arc::new(file), 2, 5));
    queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 0));
    queue.push_copy(b"xyz");
    queue
}

#[test]
fn a_part_of_a_file_is_handed_out_by_itself_and_in_its_place() {
    let mut queue = with_a_file();
    assert_eq!((queue.len(), content(&queue)), (11, b"abc".to_vec()));
    let take = |queue: &mut SendQueue| queue.take(pieces(9), FileSending::Alone);
    assert!(queue.next_file().is_none() && matches!(take(&mut queue), Pieces::One(b) if b == "abc"));
    assert!(queue.next_file().is_some_and(|range| range.len() == 5) && content(&queue).is_empty());
    let Pieces::File { head, range, tail } = take(&mut queue) else { panic!("a file") };
    assert_eq!((range.at(), range.len(), head.len(), tail.len()), (2, 5, 0, 0));
    assert!(matches!(take(&mut queue), Pieces::One(b) if b == "xyz"));
    queue.confirm(11);
    assert!(queue.is_empty());
}

#[test]
fn a_part_of_a_file_is_handed_out_among_the_bytes_around_it() {
    let mut queue = with_a_file();
    queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 4));
    let Pieces::File { head, range, tail } = queue.take(pieces(9), FileSending::Among) else {
        panic!("a file")
    };
    assert_eq!((head, range.len(), tail), (vec![Bytes::from("abc")], 5, vec![Bytes::from("xyz")]));
    assert_eq!((queue.len(), queue.in_flight), (15, 11));
    let Pieces::File { head, range, tail } = queue.take(pieces(9), FileSending::Among) else {
        panic!("the next")
    };
    assert_eq!((head.len(), range.len(), tail.len(), queue.has_unsent()), (0, 4, 0, false));
    queue.confirm(15);
    assert!(queue.is_empty());
    queue.push_copy(b"only bytes");
    assert!(matches!(queue.take(pieces(9), FileSending::Among), Pieces::One(b) if b == "only bytes"));
}

#[test]
fn more_bytes_than_may_be_around_a_file_go_before_it() {
    let mut queue = SendQueue::default();
    ["a", "b", "c"].into_iter().for_each(|piece| queue.push_shared(Bytes::from_static(piece.as_bytes())));
    queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 4));
    ["d", "e", "f"].into_iter().for_each(|piece| queue.push_shared(Bytes::from_static(piece.as_bytes())));
    assert!(matches!(queue.take(pieces(2), FileSending::Among), Pieces::Many(two) if two == ["a", "b"]));
    let Pieces::File { head, tail, .. } = queue.take(pieces(2), FileSending::Among) else { panic!("a file") };
    assert_eq!((head, tail), (vec![Bytes::from("c")], vec![Bytes::from("d"), Bytes::from("e")]));
    assert!(matches!(queue.take(pieces(2), FileSending::Among), Pieces::One(b) if b == "f"));
}

#[test]
fn what_is_taken_has_no_more_bytes_than_may_be_taken() {
    let mut queue = SendQueue::default();
    ["abcde", "fg", "hijklmno"]
        .into_iter()
        .for_each(|piece| queue.push_shared(Bytes::from_static(piece.as_bytes())));
    queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 4));
    queue.push_shared(Bytes::from_static(b"pqrstuv"));
    let most = TakeLimits { pieces: 9, bytes: 4 };
    assert!(matches!(queue.take(most, FileSending::Among), Pieces::One(b) if b == "abcd"));
    assert!(matches!(queue.take(most, FileSending::Among), Pieces::Many(three) if three == ["e", "fg", "h"]));
    assert!(matches!(queue.take(most, FileSending::Among), Pieces::One(b) if b == "ijkl"));
    let Pieces::File { head, range, tail } = queue.take(most, FileSending::Among) else { panic!("a file") };
    assert_eq!((head, range.len(), tail), (vec![Bytes::from("mno")], 4, vec![Bytes::from("pqrs")]));
    assert_eq!((queue.len(), queue.in_flight), (26, 23));
    assert!(matches!(queue.take(most, FileSending::Among), Pieces::One(b) if b == "tuv"));
    queue.confirm(26);
    assert!(queue.is_empty());
}

#[test]
fn a_part_of_a_file_may_be_read_in_pieces() {
    let mut queue = with_a_file();
    queue.load(2).unwrap();
    assert_eq!(content(&queue), b"abc", "it is not next");
    queue.confirm(3);
    let mut all = Vec::new();
    while queue.has_unsent() {
        queue.load(2).unwrap();
        let piece = content(&queue);
        queue.confirm(1);
        all.push(piece[0]);
    }
    assert_eq!((all.as_slice(), queue.len()), (&b"23456xyz"[..], 0));
    let (mut queue, mut all) = (with_a_file(), [0; 20]);
    assert_eq!((queue.copy_into(&mut all).unwrap(), &all[..11]), (11, &b"abc23456xyz"[..]));
}

#[test]
fn taken_pieces_count_until_they_are_confirmed() {
    let mut queue = SendQueue::default();
    queue.push_shared(Bytes::from_static(b"one"));
    queue.push_shared(Bytes::from_static(b"two"));
    queue.push_shared(Bytes::from_static(b"three"));
    let Pieces::Many(taken) = queue.take(pieces(2), FileSending::Alone) else { panic!("two pieces") };
    assert_eq!(taken, ["one", "two"]);
    assert_eq!((queue.len(), queue.has_unsent()), (11, true));
    queue.confirm(6);
    assert_eq!(queue.len(), 5);
    assert!(matches!(queue.take(pieces(2), FileSending::Alone), Pieces::One(b) if b == "three"));
    assert_eq!((queue.len(), queue.has_unsent()), (5, false));
    queue.confirm(5);
    assert!(queue.is_empty());
}
