//! A file becomes shorter than the part of it that was promised: the peer gets what there was of it and then an end
//! before its time, never other bytes; and nobody waits for what will not come.

use std::io::Write;
use std::sync::Arc;

use tidegate::{CloseReason, Consumed, FileRange, Model, Outbox, Session};

use crate::kit::{self, Tape};

on_every_model!(case);

/// More than the kernel holds of a connection.
const TOTAL: usize = 24 << 20;
/// What is left of it. Nothing, as the kernel clears the rest of a page that is cut off in the middle also where it is
/// on its way to a socket, and it has pages of many sizes.
const LEFT: u64 = 0;

struct Sender(Arc<std::fs::File>);

impl Session for Sender {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.file(FileRange::new(self.0.clone(), 0, TOTAL));
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let tape = Tape::new(5);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&tape.first(TOTAL)).expect("write");
    let file = Arc::new(file);
    let its = file.clone();
    let policy = kit::policy(model).socket_send_buffer(Some(64 * 1024));
    let server = kit::serve(model, policy, kit::sessions(move || Sender(its.clone())));

    let mut stream = kit::connect_narrow(server.local_addr());
    stream.write_all(b"go").expect("send");
    let mut buffer = vec![0; 128 * 1024];
    let first = kit::hear_some(&mut stream, &mut buffer).expect("receive");
    tape.check(0, &buffer[..first]);
    file.set_len(LEFT).expect("truncate");
    let (rest, _) = kit::hear_all(&mut stream);
    assert!(first + rest.len() < TOTAL, "all of a file that has shrunk");
    tape.check(first as u64, &rest);
    kit::until("the connection is closed", || server.stats().closed_total() == 1);
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Error), 1, "{stats:?}");
}
