//! A session that left more than `input_bytes` says its last word, and the peer reads it however much it has sent
//! behind; one that says nothing is cut off. Both count as ended by the limit.

use std::io::Write;
use std::net::Shutdown;

use tidegate::{CloseReason, Consumed, Flow, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Waits for the end of a message that never ends.
struct Patient(Option<Flow>);

impl Session for Patient {
    fn on_bytes(&mut self, _: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::bytes(0)
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b"too long");
        self.0.unwrap_or(Flow::Abort)
    }
}

fn case(model: Model) {
    for flow in [Flow::Linger, Flow::Close] {
        let policy = kit::policy(model).input_bytes(5_000);
        let server = kit::serve(model, policy, kit::sessions(move || Patient(Some(flow))));
        let mut stream = kit::connect(server.local_addr());
        kit::send_all(&mut stream, &[b'x'; 300_000]).expect("send");
        stream.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(kit::hear_all(&mut stream), (b"too long".to_vec(), Ending::EndOfStream), "{flow:?}");
        let stats = kit::finish(server);
        assert_eq!(stats.closed_by(CloseReason::InputLimit), 1, "{flow:?}");
    }
    // What could not be kept is not asked for any more.
    for flow in [None, Some(Flow::Continue), Some(Flow::Shutdown)] {
        let policy = kit::policy(model).input_bytes(5_000);
        let server = kit::serve(model, policy, kit::sessions(move || Patient(flow)));
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(&[b'x'; 5_001]).expect("send");
        assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::Reset), "{flow:?}");
        let stats = kit::finish(server);
        assert_eq!(stats.closed_by(CloseReason::InputLimit), 1, "{flow:?}");
    }
}
