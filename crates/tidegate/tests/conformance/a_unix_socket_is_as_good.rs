//! Unix sockets: what differs from TCP is the file, and limits that have no effect there.
#![cfg(unix)]

use std::num::NonZeroU32;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tidegate::service::Origin;
use tidegate::{
    Client, CloseReason, Consumed, Dial, Endpoint, Flow, Model, Outbox, Peer, Policy, PolicyError, Refusal,
    Server, Service, Session, StartError,
};

use crate::kit::{self, Echo, Tape};

on_every_model!(case);

fn case(model: Model) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    only_the_file_of_a_dead_server_is_replaced(model, &path);
    what_is_not_a_socket_stays(model, &folder.path().join("file"));
    limits_of_tcp_are_refused_by_name(model, &path);
    dialled_connections_are_like_others(model, &Endpoint::unix(&path));
    if cfg!(target_os = "linux") {
        let name = format!("unix:@tidegate-test-{}-{model}", std::process::id());
        dialled_connections_are_like_others(model, &name.parse().expect("a name"));
    }
    assert!(!path.exists());
}

fn bind(model: Model, policy: Policy, at: &Endpoint) -> Result<tidegate::server::BoundServer, StartError> {
    Server::new(kit::sessions(Echo::default)).model(model).policy(policy).bind(at.clone())
}

fn only_the_file_of_a_dead_server_is_replaced(model: Model, path: &Path) {
    drop(UnixListener::bind(path).expect("bind")); // leaves its file, as a killed server does
    let at = Endpoint::unix(path);
    let server = bind(model, kit::policy(model), &at).expect("the file of a dead server is in nobody's way");
    let server = server.start().expect("start");
    match bind(model, kit::policy(model), &at) {
        Err(StartError::Listen { error, .. }) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        _ => panic!("the socket of a live server was taken away"),
    }
    kit::exchange(&mut kit::connect(&at), b"still here");
    server.stop();
    kit::check(&server.join());
    assert!(!path.exists(), "a server that has stopped leaves no file behind");
}

fn what_is_not_a_socket_stays(model: Model, path: &Path) {
    std::fs::write(path, "precious").expect("write");
    let Err(e) = bind(model, kit::policy(model), &Endpoint::unix(path)) else {
        panic!("a file was replaced")
    };
    assert!(
        e.to_string().contains("something else than a socket") && e.to_string().contains("another path"),
        "{e}"
    );
    assert_eq!(std::fs::read_to_string(path).expect("read"), "precious");
}

fn limits_of_tcp_are_refused_by_name(model: Model, path: &Path) {
    let default = kit::policy(model);
    let accept = default.accept.fast_open(NonZeroU32::new(16));
    for (policy, limit) in [
        (default.clone().accept(accept), "accept.fast_open"),
        (default.clone().socket_send_buffer(Some(65_536)), "socket_send_buffer"),
        (default.socket_receive_buffer(Some(65_536)), "socket_receive_buffer"),
    ] {
        match bind(model, policy, &Endpoint::unix(path)) {
            Err(StartError::Policy(PolicyError::NotOnSocket { name, .. })) => assert_eq!(name, limit),
            _ => panic!("{limit} was not refused"),
        }
    }
}

/// What became of the dialled connections: failed, or closed after so many bytes came back right.
type Log = Arc<Mutex<Vec<Result<(CloseReason, usize), String>>>>;

struct Calls(Log);

struct Call {
    tape: Tape,
    heard: usize,
    log: Log,
}

const BYTES: usize = 100_000;

impl Service for Calls {
    type Session = Call;

    fn open(&self, peer: &Peer) -> Result<Call, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        assert_eq!(peer.addr, None, "a Unix socket has no address of this kind");
        Ok(Call { tape: Tape::new(tag), heard: 0, log: self.0.clone() })
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        self.0.lock().expect("log").push(Err(format!("{}: {error}", dial.to)));
    }
}

impl Session for Call {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&self.tape.first(BYTES));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        self.tape.check(self.heard as u64, input);
        self.heard += input.len();
        Consumed::all(input).then(if self.heard == BYTES { Flow::Close } else { Flow::Continue })
    }

    fn on_close(&mut self, why: CloseReason) {
        self.log.lock().expect("log").push(Ok((why, self.heard)));
    }
}

fn dialled_connections_are_like_others(model: Model, at: &Endpoint) {
    const CALLS: usize = 20;
    let server = bind(model, kit::policy(model), at).expect("bind").start().expect("start");
    let log = Log::default();
    let client =
        Client::new(Calls(log.clone())).model(model).policy(kit::policy(model)).start().expect("start");
    for tag in 0..CALLS as u64 {
        client.dialler().dial(Dial::to(at).tag(tag)).expect("dial");
    }
    kit::until("all calls have ended", || log.lock().expect("log").len() == CALLS);
    assert_eq!(*log.lock().expect("log"), vec![Ok((CloseReason::Finished, BYTES)); CALLS]);
    server.stop();
    kit::check(&server.join());
    log.lock().expect("log").clear();
    client.dial(at).expect("dial");
    kit::until("nobody answers", || log.lock().expect("log").len() == 1);
    let failure = log.lock().expect("log").remove(0).expect_err("nobody listens");
    assert!(failure.contains(&at.to_string()), "{failure}");
    client.stop();
    kit::check(&client.join());
}
