//! A connection that never says a first byte is closed by [`Policy::first_byte_timeout`]; one that has spoken is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Model};

use crate::kit::{self, Echo};

on_every_model!(case);

const LIMIT: Duration = Duration::from_millis(300);

fn case(model: Model) {
    let (service, witness) = Echo::service();
    let mut policy = kit::policy(model).first_byte_timeout(Some(LIMIT));
    policy.accept.defer = None; // otherwise the kernel keeps silent connections from the server
    let server = kit::serve(model, policy, service);

    // On a machine that is suspended for longer than the limit the first byte may come too late: try again.
    let mut late = 0;
    let mut spoken = loop {
        let start = Instant::now();
        let mut stream = kit::connect(server.local_addr());
        if say_a_byte(&mut stream) {
            break stream;
        }
        assert!(start.elapsed() >= LIMIT, "closed before its time was over");
        late += 1;
    };
    let start = Instant::now();
    let mut silent = kit::connect(server.local_addr());
    let (heard, _) = kit::hear_all(&mut silent);
    assert!(heard.is_empty());
    assert!(start.elapsed() >= LIMIT, "closed after {:?}", start.elapsed());
    kit::until("it is counted", || server.stats().closed_by(CloseReason::FirstByteTimeout) == late + 1);
    // The other one was quiet for as long, and is still served.
    kit::exchange(&mut spoken, b"still here");
    drop(spoken);
    kit::until("the other has left", || server.stats().open() == 0);
    let mut expected = vec![CloseReason::FirstByteTimeout; late as usize + 1];
    expected.push(CloseReason::Finished);
    kit::finish(server);
    assert_eq!(witness.closings(), expected);
}

fn say_a_byte(stream: &mut TcpStream) -> bool {
    stream.write_all(b"a").is_ok() && stream.read_exact(&mut [0]).is_ok()
}
