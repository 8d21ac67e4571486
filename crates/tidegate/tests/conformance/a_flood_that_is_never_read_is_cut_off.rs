//! Who sends for ever and never reads is no longer received from, and reset after
//! [`Policy::send_timeout`]; the others are served meanwhile.

use std::io::ErrorKind;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use tidegate::{CloseReason, Model};

use crate::kit::{self, Echo};

on_every_model!(case);

/// What server and kernel may take in of the flood with the small buffers set here, generously.
const MOST: u64 = 4 << 20;

/// What a connection that is not received from may hold of input that was in flight, generously.
const HELD: usize = 1 << 20;

fn case(model: Model) {
    let (service, witness) = Echo::service();
    let policy = kit::policy(model)
        .send_timeout(Some(Duration::from_millis(300)))
        .socket_send_buffer(Some(64 * 1024))
        .socket_receive_buffer(Some(64 * 1024));
    let high = policy.outbox.high;
    let server = kit::serve(model, policy, service);
    let mut calm = kit::connect(server.local_addr());
    kit::exchange(&mut calm, b"first");

    let addr = server.local_addr().clone();
    let flood = thread::spawn(move || {
        let mut stream = kit::connect_narrow(addr);
        loop {
            if let Err(e) = kit::send_all(&mut stream, &[b'x'; 64 * 1024]) {
                return e.kind();
            }
        }
    });
    let (mut served, mut calm_bytes) = (0, 9); // "first" and "last"
    loop {
        let text = format!("exchange {served}");
        kit::exchange(&mut calm, text.as_bytes());
        served += 1;
        calm_bytes += text.len() as u64;
        if flood.is_finished() {
            break;
        }
    }
    let end = flood.join().expect("flood");
    assert!(matches!(end, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "the flood ended with {end}");
    kit::until("it is counted", || server.stats().closed_by(CloseReason::SendTimeout) == 1);
    assert_eq!(witness.closings(), [CloseReason::SendTimeout]);
    kit::exchange(&mut calm, b"last");
    drop(calm);
    let stats = kit::finish(server);
    let of_the_flood = stats.bytes_in - calm_bytes;
    assert!(of_the_flood < MOST, "{of_the_flood} bytes were taken in");
    // Input that was in flight when the outbox became full is shown in one call.
    let (most, shown) = (witness.most_queued.load(SeqCst), witness.most_shown.load(SeqCst));
    assert!(most < high + shown, "the outbox held {most} bytes, one call produced {shown}");
    assert!(shown < HELD, "{shown} bytes were held back");
}
