//! [`Outbox::file`]: a large part of a file is handed to the system in large pieces, not in those in which it would be
//! read.

use std::io::{Read, Write};
use std::sync::Arc;

use tidegate::{Consumed, FileRange, Flow, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

/// Bytes of the file, which needs no blocks on the disk.
const TOTAL: usize = 256 << 20;

/// Bytes of the rings that connections over shared memory have in these tests.
const RING: usize = 4096;

/// Bytes that are read at once where a file cannot be sent by the system.
const READ_AT_ONCE: usize = 64 * 1024;

struct Librarian(Arc<std::fs::File>);

impl Session for Librarian {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.file(FileRange::new(self.0.clone(), 0, TOTAL));
        Consumed::all(input).then(Flow::Close)
    }
}

fn case(model: Model) {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(TOTAL as u64).expect("a long file");
    let file = Arc::new(file);
    let policy = kit::policy(model);
    let is_shared_memory = policy.fast_path.is_some();
    let server = kit::serve(model, policy, kit::sessions(move || Librarian(file.clone())));
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"go").expect("send");
    let (mut heard, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        match stream.read(&mut buffer).expect("a piece of the file") {
            0 => break,
            n => heard += n,
        }
    }
    assert_eq!(heard, TOTAL);
    let sends = kit::finish(server).sends as usize;
    println!("{model}: {sends} operations for {} MiB", TOTAL >> 20);
    let most = match model {
        _ if is_shared_memory => TOTAL / RING, // no system call at all
        Model::Iocp | Model::Overlapped => 64,
        _ if cfg!(windows) => TOTAL / READ_AT_ONCE * 16, // it is read, and sent in parts
        _ => TOTAL / READ_AT_ONCE / 2,
    };
    assert!(sends <= most, "{sends} operations on {model}");
}
