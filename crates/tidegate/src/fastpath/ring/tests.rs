use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// One process that plays both sides, and writes what it likes.
#[derive(Default)]
struct Plain {
    words: [u32; 5],
    bytes: Vec<u8>,
}

type Cells = Rc<RefCell<Plain>>;

impl Memory for Cells {
    fn load(&self, word: Word) -> u32 {
        self.borrow().words[word as usize]
    }

    fn store(&self, word: Word, value: u32) {
        self.borrow_mut().words[word as usize] = value;
    }

    fn swap(&self, word: Word, value: u32) -> u32 {
        std::mem::replace(&mut self.borrow_mut().words[word as usize], value)
    }

    fn barrier(&self) {}

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.borrow().bytes[at..at + into.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.borrow_mut().bytes[at..at + from.len()].copy_from_slice(from);
    }
}

fn ring(capacity: u32) -> (Cells, Writer<Cells>, Reader<Cells>) {
    let cells = Cells::new(RefCell::new(Plain { words: [0; 5], bytes: vec![0; capacity as usize] }));
    (cells.clone(), Writer::new(cells.clone(), capacity), Reader::new(cells, capacity))
}

proptest! {
    #[test]
    fn it_is_a_queue_of_bytes(steps in proptest::collection::vec((any::<bool>(), 0usize..20), 1..200)) {
        let (_, mut writer, mut reader) = ring(16);
        let (mut expected, mut next) = (VecDeque::<u8>::new(), 0u8);
        for (write, n) in steps {
            if write {
                let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                let (a, b) = bytes.split_at(n / 3);
                let moved = writer.write(&[IoSlice::new(a), IoSlice::new(b)]).unwrap();
                prop_assert_eq!(moved.bytes, n.min(16 - expected.len()));
                expected.extend(&bytes[..moved.bytes]);
            } else {
                let mut buffer = vec![0; n];
                let moved = reader.read(&mut buffer).unwrap();
                prop_assert_eq!(moved.bytes, n.min(expected.len()));
                prop_assert!(expected.drain(..moved.bytes).eq(buffer[..moved.bytes].iter().copied()));
            }
        }
    }

    #[test]
    fn wild_words_are_corrupt_and_never_more_than_the_ring(wild in any::<[u32; 5]>(), n in 0usize..64) {
        let (cells, mut writer, mut reader) = ring(16);
        let _ = writer.write(&[IoSlice::new(&[7; 9])]).unwrap();
        cells.borrow_mut().words = wild;
        let mut buffer = vec![0; n];
        if let Ok(moved) = reader.read(&mut buffer) {
            prop_assert!(moved.bytes <= 16);
        } else {
            prop_assert!(wild[Word::Tail as usize] > 16);
        }
        cells.borrow_mut().words = wild;
        match writer.write(&[IoSlice::new(&buffer)]) {
            Ok(moved) => prop_assert!(moved.bytes <= 16),
            Err(Corrupt) => prop_assert!(9u32.wrapping_sub(wild[Word::Head as usize]) > 16),
        }
    }
}

#[test]
fn who_sleeps_is_rung_for_once() {
    let (_, mut writer, mut reader) = ring(4);
    assert_eq!(writer.write(&[IoSlice::new(b"ab")]), Ok(Moved { bytes: 2, ring: false }));
    assert_eq!(reader.prepare_sleep(), Ok(false), "there is something");
    assert_eq!(reader.read(&mut [0; 9]), Ok(Moved { bytes: 2, ring: false }));
    assert_eq!(reader.prepare_sleep(), Ok(true));
    assert_eq!(writer.write(&[IoSlice::new(b"c")]), Ok(Moved { bytes: 1, ring: true }));
    assert_eq!(writer.write(&[IoSlice::new(b"defg")]), Ok(Moved { bytes: 3, ring: false }));
    assert_eq!(writer.prepare_sleep(), Ok(true));
    assert_eq!(reader.read(&mut [0; 1]), Ok(Moved { bytes: 1, ring: true }));
    assert_eq!(writer.prepare_sleep(), Ok(false));
}

#[test]
fn the_end_wakes_the_reader_and_comes_after_the_bytes() {
    let (cells, mut writer, mut reader) = ring(4);
    assert_eq!(reader.prepare_sleep(), Ok(true));
    let _ = writer.write(&[IoSlice::new(b"x")]).unwrap();
    assert_eq!(reader.prepare_sleep(), Ok(false));
    let _ = reader.read(&mut [0; 4]).unwrap();
    assert_eq!(reader.prepare_sleep(), Ok(true));
    assert!(writer.end(Ended::Finished));
    assert_eq!((reader.ended(), reader.prepare_sleep()), (Ok(Ended::Finished), Ok(false)));
    cells.borrow_mut().words[Word::Ended as usize] = 4;
    assert_eq!(reader.ended(), Err(Corrupt));
}
