//! Connections that say nothing keep nobody out, also where an accept or the kernel waits for first data
//! ([`Accept::defer`](tidegate::policy::Accept::defer)); and they are ended by [`Policy::first_byte_timeout`], also
//! while an accept still holds them, where it completes with the first data (`SO_CONNECT_TIME` on Windows).

use std::net::TcpStream;
use std::time::Duration;

use tidegate::{CloseReason, Model, Running};

use crate::kit::{self, Echo};

on_every_model!(case);

const SILENT: usize = 40;

fn case(model: Model) {
    let server = kit::serve(model, kit::policy(model), kit::sessions(Echo::default));
    let silent = silent_connections(&server);
    for _ in 0..3 {
        kit::exchange(&mut kit::connect(server.local_addr()), b"who speaks is heard");
    }
    drop(silent);
    kit::finish(server);

    let limit = Some(Duration::from_secs(1)); // SO_CONNECT_TIME counts whole seconds
    let policy = kit::policy(model).first_byte_timeout(limit);
    let server = kit::serve(model, policy, kit::sessions(Echo::default));
    for mut stream in silent_connections(&server) {
        assert!(kit::hear_all(&mut stream).0.is_empty());
    }
    kit::until("all are counted", || {
        let stats = server.stats();
        stats.attempted == SILENT as u64 && stats.open() == 0
    });
    server.stop();
    let stats = server.join();
    assert_eq!(stats.accepted, stats.closed_by(CloseReason::FirstByteTimeout));
    let in_accepts = matches!(model, Model::Iocp | Model::Overlapped | Model::Rio);
    assert_eq!(stats.accepted < SILENT as u64, in_accepts, "{} of {SILENT} were accepted", stats.accepted);
}

fn silent_connections(server: &Running) -> Vec<TcpStream> {
    (0..SILENT).map(|_| kit::connect(server.local_addr())).collect()
}
