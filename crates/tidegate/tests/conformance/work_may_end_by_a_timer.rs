//! Input that a session left while it was at work is shown again as soon as the work ends, whatever ended it: here
//! its timer. That is how a session limits the rate of its peer.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Answers one byte of its input in each interval.
struct RateLimiter;

const INTERVAL: Duration = Duration::from_millis(2);

impl Session for RateLimiter {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(&input[..1]);
        out.set_activity(Activity::Work);
        out.wake_at(out.now() + INTERVAL);
        Consumed::bytes(1)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if !matches!(mail, Mail::Timer) {
            return Flow::Abort;
        }
        out.set_activity(Activity::Nothing);
        Flow::Continue
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(b".");
        Flow::Close
    }
}

fn case(model: Model) {
    let server = kit::serve(model, kit::policy(model), kit::sessions(|| RateLimiter));
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"all at once").expect("send");
    assert_eq!(kit::hear(&mut stream, 11), b"all at once");
    // The end of the peer is reported behind the last of its bytes.
    stream.write_all(b"and the end").expect("send");
    stream.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(kit::hear_all(&mut stream), (b"and the end.".to_vec(), Ending::EndOfStream));
    let stats = kit::finish(server);
    assert_eq!(stats.closed_by(CloseReason::Finished), 1);
}
