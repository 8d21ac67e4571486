//! A session that aborts drops what it had to say, and its peer sees a reset.

use std::io::Write;
use std::sync::Arc;

use tidegate::{CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending, Witness};

on_every_model!(case);

struct Fuse(Arc<Witness>);

impl Session for Fuse {
    fn on_open(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.0.opened();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        let flow = if input.contains(&b'!') { Flow::Abort } else { Flow::Continue };
        Consumed::all(input).then(flow)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.0.closed(why);
    }
}

fn case(model: Model) {
    let witness = Arc::new(Witness::default());
    let seen = witness.clone();
    let server = kit::serve(model, kit::policy(model), kit::sessions(move || Fuse(seen.clone())));
    let mut bystander = kit::connect(server.local_addr());
    for _ in 0..10 {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"steady");
        stream.write_all(b"bang!").expect("send");
        assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::Reset));
    }
    kit::exchange(&mut bystander, b"still here");
    kit::until("every abort is counted", || server.stats().closed_by(CloseReason::Aborted) == 10);
    drop(bystander);
    kit::until("the bystander has left", || server.stats().open() == 0);
    kit::finish(server);
    let mut expected = vec![CloseReason::Aborted; 10];
    expected.push(CloseReason::Finished);
    assert_eq!(witness.closings(), expected);
}
