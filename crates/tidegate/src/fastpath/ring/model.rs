//! The ring under loom: all interleavings of both sides, and all values that they may observe.
//!
//! `RUSTFLAGS="--cfg tidegate_loom" cargo test -p tidegate --lib model`.

use std::io::IoSlice;

use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Ended, Memory, Reader, Word, Writer};

/// More preemptions than this in one run find nothing new, and take long.
const PREEMPTIONS: usize = 3;
const CAPACITY: u32 = 2;

/// Memory made of loom types: a byte that was not published properly may be read with its old value.
#[derive(Default)]
struct Cells {
    words: [AtomicU32; 5],
    bytes: [AtomicU8; CAPACITY as usize],
}

impl Memory for Arc<Cells> {
    fn load(&self, word: Word) -> u32 {
        self.words[word as usize].load(Ordering::Acquire)
    }

    fn store(&self, word: Word, value: u32) {
        self.words[word as usize].store(value, Ordering::Release);
    }

    fn swap(&self, word: Word, value: u32) -> u32 {
        self.words[word as usize].swap(value, Ordering::AcqRel)
    }

    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (byte, cell) in into.iter_mut().zip(&self.bytes[at..]) {
            *byte = cell.load(Ordering::Relaxed);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (byte, cell) in from.iter().zip(&self.bytes[at..]) {
            cell.store(*byte, Ordering::Relaxed);
        }
    }
}

/// What a side sleeps on; remembers a wake-up.
#[derive(Default)]
struct Notify {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Notify {
    fn notify_one(&self) {
        *self.notified.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut notified = self.notified.lock().unwrap();
        while !*notified {
            notified = self.changed.wait(notified).unwrap();
        }
        *notified = false;
    }
}

/// Sends all of `bytes`, then ends the stream; sleeps when there is no room.
fn send(mut writer: Writer<Arc<Cells>>, mut bytes: &[u8], mine: &Notify, other: &Notify) {
    while !bytes.is_empty() {
        let moved = writer.write(&[IoSlice::new(bytes)]).unwrap();
        if moved.ring {
            other.notify_one();
        }
        bytes = &bytes[moved.bytes..];
        if moved.bytes == 0 && writer.prepare_sleep().unwrap() {
            mine.wait();
        }
    }
    if writer.end(Ended::Finished) {
        other.notify_one();
    }
}

/// Receives until the end; sleeps when nothing is available.
fn receive(mut reader: Reader<Arc<Cells>>, mine: &Notify, other: &Notify) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut buffer = [0; 4];
        let moved = reader.read(&mut buffer).unwrap();
        if moved.ring {
            other.notify_one();
        }
        all.extend(&buffer[..moved.bytes]);
        if moved.bytes > 0 {
            continue;
        }
        // Checked again: bytes may have arrived between the two checks.
        if reader.ended().unwrap() == Ended::Finished && reader.available().unwrap() == 0 {
            return all;
        }
        if reader.prepare_sleep().unwrap() {
            mine.wait();
        }
    }
}

fn explore(bytes: &'static [u8]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let cells = Arc::new(Cells::default());
        let (notifies, reader) = (
            (Arc::new(Notify::default()), Arc::new(Notify::default())),
            Reader::new(cells.clone(), CAPACITY),
        );
        let (writes, reads) = notifies.clone();
        let sender = thread::spawn(move || send(Writer::new(cells, CAPACITY), bytes, &writes, &reads));
        assert_eq!(receive(reader, &notifies.1, &notifies.0), bytes, "every byte once and in order");
        sender.join().unwrap();
    });
}

/// If a wake-up were lost, a side would sleep forever, which loom reports as a deadlock.
#[test]
fn no_byte_and_no_wake_up_is_lost() {
    explore(&[1, 2]);
}

/// More than fits, so that the writer sleeps too, and the ring wraps around.
#[test]
fn a_full_ring_wakes_its_writer() {
    explore(&[1, 2, 3]);
}
