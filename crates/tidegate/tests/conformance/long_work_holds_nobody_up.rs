//! [`Outbox::offload`]: a job runs beside the I/O threads, its result comes back as mail, its queue is bounded, and a
//! stop waits for it.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use tidegate::policy::Offload;
use tidegate::{CloseReason, Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Holds jobs until it is opened.
#[derive(Default)]
struct Barrier {
    open: Mutex<bool>,
    changed: Condvar,
    /// Jobs that were taken, and those that were refused.
    taken: AtomicUsize,
    refused: AtomicUsize,
}

impl Barrier {
    fn wait(&self) {
        let open = self.open.lock().expect("barrier");
        drop(self.changed.wait_while(open, |open| !*open).expect("barrier"));
    }

    fn open(&self) {
        *self.open.lock().expect("barrier") = true;
        self.changed.notify_all();
    }
}

/// Gives `work` and `fall` away, and echoes the rest.
struct Foreman(Arc<Barrier>);

impl Session for Foreman {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let barrier = self.0.clone();
        let taken = match input {
            b"work" => {
                let taken = out.offload(move || {
                    barrier.wait();
                    "done"
                });
                let count = if taken.is_ok() { &self.0.taken } else { &self.0.refused };
                count.fetch_add(1, SeqCst);
                taken
            }
            b"fall" => out.offload(|| -> () { kit::fall("on request") }),
            _ => {
                out.write(input);
                Ok(())
            }
        };
        if let Err(e) = taken {
            out.write(e.to_string().as_bytes());
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Done(result) => out.write(result.downcast_ref::<&str>().unwrap_or(&"?").as_bytes()),
            Mail::JobPanicked => out.write(b"fell"),
            other => panic!("unexpected mail {other:?}"),
        }
        Flow::Continue
    }
}

fn case(model: Model) {
    let barrier = Arc::new(Barrier::default());
    let its = barrier.clone();
    let asked = || barrier.taken.load(SeqCst) + barrier.refused.load(SeqCst);
    let policy = kit::with_threads(model, 1).offload(Offload::default().threads(1).queue(1));
    let server = kit::serve(model, policy, kit::sessions(move || Foreman(its.clone())));
    let connect = || kit::connect(server.local_addr());

    let mut falls = connect();
    falls.write_all(b"fall").expect("send");
    assert_eq!(kit::hear(&mut falls, 4), b"fell");

    let mut bystander = connect();
    let mut workers = Vec::new();
    let refused = loop {
        let mut worker = connect();
        worker.write_all(b"work").expect("send");
        kit::exchange(&mut bystander, b"not held up");
        kit::until("the job is taken or refused", || asked() > workers.len());
        if barrier.refused.load(SeqCst) > 0 {
            let mut answer = [0; 256];
            let n = kit::hear_some(&mut worker, &mut answer).expect("receive");
            break String::from_utf8_lossy(&answer[..n]).into_owned();
        }
        workers.push(worker);
        assert!(workers.len() < 3, "one runs and one waits at the most");
    };
    assert!(refused.contains("offload.queue"), "{refused}");

    server.stop();
    barrier.open();
    assert!(!workers.is_empty());
    for mut worker in workers {
        assert_eq!(kit::hear_all(&mut worker), (b"done".to_vec(), Ending::EndOfStream));
    }
    let stats = server.join();
    kit::check(&stats);
    assert_eq!(stats.closed_by(CloseReason::Finished), stats.closed_total());
}
