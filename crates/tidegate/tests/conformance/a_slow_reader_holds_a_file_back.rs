//! A peer that does not read holds up its own file, and nobody else of its thread; when it reads, all of it comes. One
//! that reads nothing for too long is cut off. That it has finished sending is known meanwhile.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::{CloseReason, Consumed, FileRange, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Tape, Witness};

on_every_model!(case);

/// More than the kernel holds of a connection.
const TOTAL: usize = 24 << 20;

/// Answers `go` with the file, and sends everything else back.
struct Sender(Arc<std::fs::File>, Arc<Witness>);

impl Session for Sender {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match input {
            b"go" => out.file(FileRange::new(self.0.clone(), 0, TOTAL)),
            other => out.write(other),
        }
        Consumed::all(input)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.1.ends.fetch_add(1, SeqCst);
        Flow::Close
    }
}

fn case(model: Model) {
    let tape = Tape::new(6);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&tape.first(TOTAL)).expect("write");
    let file = Arc::new(file);
    let witness = Arc::new(Witness::default());
    let serve = |policy| {
        let (file, seen) = (file.clone(), witness.clone());
        kit::serve(model, policy, kit::sessions(move || Sender(file.clone(), seen.clone())))
    };

    let narrow = kit::with_threads(model, 1).socket_send_buffer(Some(64 * 1024));
    let server = serve(narrow.clone());
    let mut slow = kit::connect_narrow(server.local_addr());
    slow.write_all(b"go").expect("send");
    let mut heard = kit::hear(&mut slow, 1);
    let mut bystander = kit::connect(server.local_addr());
    for _ in 0..100 {
        kit::exchange(&mut bystander, b"not held up");
    }
    let mut buffer = vec![0; 48 * 1024];
    while heard.len() < TOTAL {
        let n = kit::hear_some(&mut slow, &mut buffer).expect("receive");
        assert!(n > 0, "an end after {} bytes", heard.len());
        heard.extend_from_slice(&buffer[..n]);
        std::thread::yield_now(); // never in a hurry
    }
    tape.check(0, &heard);
    kit::exchange(&mut slow, b"and it lives on");
    drop((slow, bystander));
    kit::until("both have gone", || server.stats().closed_total() == 2);
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Finished), 2, "{stats:?}");

    let server = serve(narrow.clone().outbox(OutboxMarks::default().low(TOTAL).high(2 * TOTAL)));
    let mut finished = kit::connect_narrow(server.local_addr());
    finished.write_all(b"go").expect("send");
    kit::hear(&mut finished, 1);
    finished.shutdown(Shutdown::Write).expect("finish");
    // Under Wine a blocking receive hears of the end only when a send of the other thread has come back.
    let reads = cfg!(windows) && model == Model::Blocking;
    let mut before = 1;
    while reads && witness.ends.load(SeqCst) < 3 {
        before += kit::hear_some(&mut finished, &mut buffer).expect("receive");
    }
    kit::until("the end is known", || witness.ends.load(SeqCst) == 3);
    assert!(before < TOTAL, "the end was known only when all had come");
    let (heard, ending) = kit::hear_all(&mut finished);
    assert_eq!((before + heard.len(), ending), (TOTAL, Ending::EndOfStream));
    kit::finish(server);

    let server = serve(narrow.send_timeout(Some(Duration::from_millis(300))));
    let mut stuck = kit::connect_narrow(server.local_addr());
    stuck.write_all(b"go").expect("send");
    kit::until("it is cut off", || server.stats().closed_total() == 1);
    let (heard, ending) = kit::hear_all(&mut stuck);
    assert!(heard.len() < TOTAL && ending == Ending::Reset, "{} bytes, {ending:?}", heard.len());
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::SendTimeout), 1, "{stats:?}");
}
