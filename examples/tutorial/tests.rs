//! The tests of the tutorial: they run on every model that this system has.

// ANCHOR: harness
mod throttle;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Availability, Model, Running, Server};

use throttle::Throttle;

/// Runs `check` against a server on each model that works here.
fn on_every_model(bytes_per_s: usize, check: impl Fn(Model, Running, SocketAddr, &AtomicU64)) {
    for &model in Model::ALL {
        if let Availability::Available(_) = model.availability() {
            let echoed = Arc::new(AtomicU64::new(0));
            let service = Throttle { bytes_per_s, echoed: Arc::clone(&echoed) };
            let running = Server::new(service).model(model).bind("127.0.0.1:0").unwrap().start().unwrap();
            let addr = running.local_addr().addr().expect("a TCP address");
            check(model, running, addr, &echoed);
        }
    }
}

/// Sends everything, finishes sending, and receives until the server has finished, too.
fn exchange(addr: SocketAddr, message: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(message).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}
// ANCHOR_END: harness

// ANCHOR: tests
#[test]
fn every_byte_comes_back_and_is_counted() {
    on_every_model(1_000_000, |model, running, addr, echoed| {
        let message: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
        assert_eq!(exchange(addr, &message), message, "{model}");
        running.stop();
        let stats = running.join();
        assert_eq!(stats.accepted, 1, "{model}");
        assert_eq!(echoed.load(Ordering::Relaxed), 20_000, "{model}");
    });
}

#[test]
fn bytes_are_never_faster_than_the_rate() {
    on_every_model(100_000, |model, running, addr, _| {
        let begun = Instant::now();
        assert_eq!(exchange(addr, &[7; 40_000]).len(), 40_000, "{model}");
        // The first 10,000 leave at once; timers are never early, so the rest takes at least this long.
        assert!(begun.elapsed() >= Duration::from_millis(300), "{model}: {:?}", begun.elapsed());
        running.stop();
        running.join();
    });
}

#[test]
fn a_stop_sends_what_was_taken() {
    on_every_model(100_000, |model, running, addr, _| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&[7; 20_000]).unwrap();
        let mut first = [0];
        stream.read_exact(&mut first).unwrap(); // the server has begun with these bytes
        running.stop();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), 19_999, "{model}");
        running.join();
    });
}
// ANCHOR_END: tests
