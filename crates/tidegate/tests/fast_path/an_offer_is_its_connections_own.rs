//! What processes of the same user, of the allowed one and of others do to connections that are not theirs: nothing.
//!
//! Others are this test binary once more, told by the environment what to be; to be another user takes root.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use socket2::{Domain, SockRef, Socket, Type};
use tidegate::fastpath::layout::Rings;
use tidegate::fastpath::protocol::{hello, name};
use tidegate::policy::{FastPath, Wait};
use tidegate::{Client, CloseReason, Endpoint, Model, Peer, Refusal, Running, Server, Service};
use tidegate_os::{abstract_socket, handover};

use super::player::{Game, MODELS, Player, impostor, is_alone, policy};
use crate::conformance::descriptors_may_run_out::{DESCRIPTORS, OtherProcess};
use crate::conformance::kit::{self, Deadline, Echo};
use crate::harness;

const ROLE: &str = "TIDEGATE_FAST_PATH_OFFERER";
const NOBODY: u32 = 65_534;
const RING: usize = 16 * 1024;
/// How long closing a socket of [`lingering`] waits: longer than any case may take.
const LINGERS: Duration = Duration::from_secs(600);
/// The most that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    if std::env::var_os(ROLE).is_some() {
        return tests![role];
    }
    let mut all = tests![
        a_connection_of_somebody_else_cannot_be_offered,
        the_owners_offer_is_found_among_others,
        an_offer_ends_with_its_process,
        nobody_waits_for_ever_and_not_everybody_may_wait,
        who_waits_keeps_no_descriptor_from_a_connection,
        what_cannot_be_closed_holds_up_nobody,
        a_false_listener_holds_up_no_dialler,
    ];
    let root = rustix::process::geteuid().is_root();
    let others = tests![another_user_holds_up_nobody, a_name_is_worth_nothing_without_the_listener];
    all.extend(harness::needs(root, "root, to start a process of another user", others));
    let up = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).status();
    let namespaces = up.is_ok_and(|status| status.success());
    let twin = tests![a_connection_of_another_namespace_is_another];
    all.extend(harness::needs(namespaces, "network namespaces of its own (unshare, ip)", twin));
    all
}

fn serve(model: Model, change: impl Fn(FastPath) -> FastPath) -> (Running, SocketAddr) {
    let policy = policy(model, Wait::Block);
    let policy = policy.clone().fast_path(policy.fast_path.map(change));
    let server = kit::serve(model, policy, kit::sessions(Echo::default));
    let addr = server.local_addr().addr().expect("an address");
    (server, addr)
}

/// A socket that has its address, and is not connected yet.
fn bound() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
    let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket()).expect("address");
    (socket, addr)
}

/// Leaves an offer, with these descriptors.
fn leave(from: SocketAddr, to: SocketAddr, parts: &[BorrowedFd<'_>]) -> UnixStream {
    let control = abstract_socket::connect(&name(to)).expect("the server has the option");
    handover::send(&control, &hello(from, to), parts).expect("an offer");
    control
}

/// A socket whose last handle cannot be closed for a long time, and the one that it waits for.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    near.set_nonblocking(true).expect("nonblocking");
    while near.write(&[0; 65_536]).is_ok() {}
    SockRef::from(&near).set_linger(Some(LINGERS)).expect("linger");
    (near.into(), far)
}

/// Closes a socket of [`lingering`] on a thread of its own, for this may take long; returns when that has begun. The
/// last handle is then one that was sent, or the one that is being closed.
fn let_go(socket: OwnedFd) {
    let entry = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let which = std::fs::read_link(&entry).expect("a descriptor of this process");
    thread::spawn(move || drop(socket));
    kit::until("this process has no handle", || std::fs::read_link(&entry).ok().as_ref() != Some(&which));
}

/// The first who calls.
fn accept_one(listener: &UnixListener) -> UnixStream {
    kit::wait_for("somebody calls", || listener.accept().ok()).0
}

/// A connection that others have tried to spoil: over plain TCP, and right.
fn is_served(socket: Socket, to: SocketAddr) {
    socket.connect(&to.into()).expect("connect");
    let mut plain = TcpStream::from(socket);
    plain.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    plain.write_all(b"mine").expect("send");
    let mut answer = [0; 4];
    plain.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"mine");
}

fn hung_up(control: &UnixStream) -> bool {
    abstract_socket::ended([control].into_iter()).expect("poll") == [true]
}

/// Somebody leaves offers in the name of a connection that is not his: with no socket, with others, with what is none.
fn a_connection_of_somebody_else_cannot_be_offered() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("offers for another's connection, {model}"));
        let (server, to) = serve(model, |fast| fast);
        let (other, _) = bound();
        other.connect(&to.into()).expect("connect");
        let (unconnected, _) = bound();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let file = std::fs::File::open("/dev/null").expect("open");
        let fakes = [other.as_fd(), unconnected.as_fd(), listener.as_fd(), datagrams.as_fd(), file.as_fd()];
        for fake in [None].into_iter().chain(fakes.map(Some)) {
            let (mine, from) = bound();
            let (rings, memory) = Rings::create(RING).expect("memory");
            let parts: Vec<_> = [Some(memory.as_fd()), fake].into_iter().flatten().collect();
            let control = leave(from, to, &parts);
            is_served(mine, to);
            assert!(!rings.is_taken(), "{fake:?}");
            kit::until("he is hung up on", || hung_up(&control));
        }
        let stats = kit::finish(server);
        assert_eq!((stats.fast_paths, stats.fast_paths_refused), (0, 6), "{model}");
    }
}

/// The owner's own offer counts, also if others have left one in his name before or after it.
fn the_owners_offer_is_found_among_others() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("offers beside the right one, {model}"));
        let (server, to) = serve(model, |fast| fast);
        let (other, _) = bound();
        let (mine, from) = bound();
        let all = [&other, &mine, &other].map(|socket| {
            let (rings, memory) = Rings::create(RING).expect("memory");
            (leave(from, to, &[memory.as_fd(), socket.as_fd()]), rings)
        });
        mine.connect(&to.into()).expect("connect");
        kit::until("all are answered", || all.iter().all(|(control, _)| hung_up(control)));
        assert_eq!(all.each_ref().map(|(_, rings)| rings.is_taken()), [false, true, false], "{model}");
        drop(mine);
        assert_eq!(kit::finish(server).fast_paths, 1);
    }
}

/// The same two addresses, established, in a network namespace of his own.
fn a_connection_of_another_namespace_is_another() {
    let _deadline = Deadline::new("a twin in another namespace".into());
    let (server, to) = serve(Model::Epoll, |fast| fast);
    let (mine, from) = bound();
    let control = abstract_socket::connect(&name(to)).expect("the server has the option");
    let me = std::env::current_exe().expect("this file");
    let script =
        r#"ip link set lo up && exec "$0" an_offer_is_its_connections_own::role --exact --nocapture"#;
    let mut twin = Command::new("unshare");
    twin.args(["-rn", "sh", "-c", script]).arg(me).env(ROLE, format!("twin {from} {to}"));
    let stdin = Stdio::from(OwnedFd::from(control.try_clone().expect("a second handle")));
    let twin = twin.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut twin = Other(twin.expect("unshare(1)"));
    assert!(twin.line("left").is_some());
    is_served(mine, to);
    kit::until("he is hung up on", || hung_up(&control));
    let stats = kit::finish(server);
    assert_eq!((stats.fast_paths, stats.fast_paths_refused), (0, 1));
}

/// Nobody connects any more, and yet the offers of those who have gone are let go of, with all they hold.
fn an_offer_ends_with_its_process() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("offers of the dead, {model}"));
        let (server, to) = serve(model, |fast| fast.handshake_timeout(Duration::from_secs(3600)));
        let kept: Vec<_> = (0..100)
            .map(|_| {
                let (here, there) = UnixStream::pair().expect("a pair");
                let (_, memory) = Rings::create(RING).expect("memory");
                leave(bound().1, to, &[memory.as_fd(), there.as_fd()]);
                here
            })
            .collect();
        for mut here in kept {
            here.set_read_timeout(Some(TIMEOUT)).expect("timeout");
            assert_eq!(here.read(&mut [0; 1]).expect("nobody holds the other end"), 0);
        }
        kit::finish(server);
    }
}

/// Callers that say nothing and offers that nobody comes for are hung up on after a while, and before that if there
/// are too many.
fn nobody_waits_for_ever_and_not_everybody_may_wait() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("too many who wait, {model}"));
        let (server, to) = serve(model, |fast| fast.handshake_timeout(Duration::from_secs(3600)));
        let call = || loop {
            match abstract_socket::connect(&name(to)) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(), // as many as are let in at once
                outcome => return outcome.expect("the server has the option"),
            }
        };
        let silent: Vec<_> = (0..100).map(|_| call()).collect();
        kit::until("callers are hung up on", || silent.iter().filter(|one| hung_up(one)).count() == 36);
        let (_, memory) = Rings::create(RING).expect("memory");
        let (mine, _) = bound();
        let offers: Vec<_> = (1..=600)
            .map(|port| {
                let control = call();
                let from = SocketAddr::from(([127, 0, 0, 1], port));
                handover::send(&control, &hello(from, to), &[memory.as_fd(), mine.as_fd()]).expect("offer");
                control
            })
            .collect();
        kit::until("offers are hung up on", || offers.iter().filter(|one| hung_up(one)).count() >= 88);
        is_served(bound().0, to);
        kit::finish(server);

        let (server, to) = serve(model, |fast| fast.handshake_timeout(Duration::from_millis(1)));
        let waits = [(); 2].map(|()| abstract_socket::connect(&name(to)).expect("call"));
        // He may have been hung up on before he makes his offer.
        let _ = handover::send(&waits[1], &hello(bound().1, to), &[memory.as_fd()]);
        kit::until("both are hung up on", || waits.iter().all(hung_up));
        kit::finish(server);
    }
}

/// A peer leaves as many offers as the server has descriptors, and another one for each that is let go of. They may
/// wait for longer than any case may take, and yet others get in.
fn who_waits_keeps_no_descriptor_from_a_connection() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("as many offers as descriptors, {model}"));
        let server = OtherProcess::start(model);
        let (to, are_let_go) = (server.addr, AtomicBool::new(false));
        let mut offers = Vec::new();
        let mut refill = || {
            let before = offers.len();
            offers.retain(|control| !hung_up(control));
            are_let_go.fetch_or(offers.len() < before, SeqCst);
            while offers.len() < DESCRIPTORS as usize
                && let Ok(control) = abstract_socket::connect(&name(to))
            {
                let from = SocketAddr::from(([127, 0, 0, 1], 1 + offers.len() as u16));
                if handover::send(&control, &hello(from, to), &[]).is_ok() {
                    offers.push(control);
                }
            }
        };
        thread::scope(|scope| {
            let here = Arc::new(()); // dropped also if something fails
            let case = Arc::downgrade(&here);
            scope.spawn(move || {
                while case.strong_count() > 0 {
                    refill();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            kit::until("there were as many as descriptors", || are_let_go.load(SeqCst));
            (0..3).for_each(|_| is_served(bound().0, to));
        });
        assert_eq!(server.stop().accepted, 3, "{model}");
    }
}

/// What cannot be closed is sent in the place of memory, of a socket, behind more than is ever opened, in a second
/// message, by who has gone and by who makes no offer. The server has the last handle.
fn what_cannot_be_closed_holds_up_nobody() {
    if !is_alone("an_offer_is_its_connections_own::what_cannot_be_closed_holds_up_nobody") {
        return;
    }
    for model in MODELS {
        let _deadline = Deadline::new(format!("sockets that linger, {model}"));
        let (server, to) = serve(model, |fast| fast.handshake_timeout(Duration::from_secs(3600)));
        let (_, memory) = Rings::create(RING).expect("memory");
        for (before, second) in [(0, false), (1, false), (9, false), (2, true)] {
            let ((socket, _far), (mine, from)) = (lingering(), bound());
            let mut parts = vec![memory.as_fd(); before];
            parts.extend((!second).then_some(socket.as_fd()));
            let control = leave(from, to, &parts);
            if second {
                handover::send(&control, b"again", &[socket.as_fd()]).expect("send");
            }
            let_go(socket);
            is_served(mine, to);
            assert!(hung_up(&control), "{before} {second}");
        }
        let ((socket, _far), (mine, from)) = (lingering(), bound());
        drop(leave(from, to, &[socket.as_fd()]));
        let odd = abstract_socket::connect(&name(to)).expect("the server has the option");
        handover::send(&odd, b"no offer", &[socket.as_fd()]).expect("send");
        let_go(socket);
        is_served(mine, to);
        is_served(bound().0, to);
        assert_eq!(kit::finish(server).fast_paths, 0);
    }
}

/// Another user, who may not take part, sends what cannot be closed.
fn another_user_holds_up_nobody() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("sockets of another user that linger, {model}"));
        let (server, to) = serve(model, |fast| fast);
        let mut other = Other::start(&format!("lingers {to}"), NOBODY);
        assert!(other.line("left").is_some());
        (0..3).for_each(|_| is_served(bound().0, to));
        kit::until("he is turned down", || server.stats().fast_paths_refused > 0);
        is_served(bound().0, to);
        assert_eq!(kit::finish(server).fast_paths, 0);
    }
}

/// Who has the name that belongs to a listener sends what cannot be closed to every caller. That message has the last
/// handle when the dialler finds it: until then another connection holds its I/O thread, if it has one.
fn a_false_listener_holds_up_no_dialler() {
    if !is_alone("an_offer_is_its_connections_own::a_false_listener_holds_up_no_dialler") {
        return;
    }
    for model in MODELS {
        let _deadline = Deadline::new(format!("a false listener that sends sockets that linger, {model}"));
        let plain = policy(model, Wait::Block).fast_path(None);
        let (socket, listener) = impostor();
        let server = Server::new(kit::sessions(Echo::default)).model(model).policy(plain);
        let server = server.listen_on(OwnedFd::from(socket)).expect("listen").start().expect("start");
        let (game, pause) = (Game::new(50_000), Arc::new(Barrier::new(2)));
        let service = Paused { game: game.clone(), pause: Mutex::new(Some(pause.clone())) };
        let patient = policy(model, Wait::Block);
        let fast = patient.fast_path.map(|fast| fast.handshake_timeout(Duration::from_secs(3600)));
        let client = Client::new(service).model(model).policy(patient.fast_path(fast));
        let client = client.start().expect("start");
        client.dial(server.local_addr().clone()).expect("dial");
        let control = accept_one(&listener);

        let elsewhere = TcpListener::bind("127.0.0.1:0").expect("bind");
        client.dial(Endpoint::Tcp(elsewhere.local_addr().expect("address"))).expect("dial");
        pause.wait();
        let (socket, _far) = lingering();
        handover::send(&control, b"take it", &[socket.as_fd()]).expect("send");
        let_go(socket);
        pause.wait();
        kit::until("it is over", || !game.witness.closings().is_empty());
        assert_eq!((game.witness.closings(), game.right()), (vec![CloseReason::Finished], game.bytes));
        client.stop();
        assert_eq!((client.join().fast_paths, kit::finish(server).fast_paths), (0, 0));
    }
}

/// The game; the thread that opens the first connection waits at the barrier twice, and refuses it.
struct Paused {
    game: Game,
    pause: Mutex<Option<Arc<Barrier>>>,
}

impl Service for Paused {
    type Session = Player;

    fn open(&self, peer: &Peer) -> Result<Player, Refusal> {
        let Some(pause) = self.pause.lock().expect("nobody panics").take() else {
            return self.game.open(peer);
        };
        pause.wait();
        pause.wait();
        Err(Refusal)
    }
}

/// Three users: somebody whom the dialler allows has the name that belongs to the listener of a third. He gets nothing.
fn a_name_is_worth_nothing_without_the_listener() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("the listener is of another user, {model}"));
        let plain = policy(model, Wait::Block).fast_path(None);
        let server = kit::serve(model, plain, kit::sessions(Echo::default));
        let to = server.local_addr().addr().expect("an address");
        let mut other = Other::start(&format!("listens {to}"), NOBODY);
        assert!(other.line("open").is_some());
        let game = Game::new(50_000);
        let trusting = policy(model, Wait::Block);
        let fast = trusting.fast_path.map(|fast| fast.also_user(Some(NOBODY)));
        let client = game.play(server.local_addr(), model, trusting.fast_path(fast), 1);
        assert_eq!(other.line("heard").as_deref(), Some(" 0 bytes, 0 descriptors"));
        kit::until("it is over", || !game.witness.closings().is_empty());
        assert_eq!((game.witness.closings(), game.right()), (vec![CloseReason::Finished], game.bytes));
        client.stop();
        assert_eq!((client.join().fast_paths, kit::finish(server).fast_paths), (0, 0));
    }
}

/// The other process, killed when dropped.
struct Other(Child);

impl Other {
    fn start(role: &str, user: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this file"));
        command.args(["an_offer_is_its_connections_own::role", "--exact", "--nocapture"]).env(ROLE, role);
        command.uid(user).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Self(command.spawn().expect("another process"))
    }

    /// The rest of the next line of its output that has this word in it.
    fn line(&mut self, with: &str) -> Option<String> {
        let mut lines = BufReader::with_capacity(1, self.0.stdout.as_mut()?).lines().map_while(Result::ok);
        lines.find_map(|line| line.split_once(with).map(|(_, rest)| rest.to_owned()))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the other process does.
fn role() {
    let role = std::env::var(ROLE).expect("the parent process sets it");
    let words: Vec<_> = role.split(' ').collect();
    let addr = |at: usize| words[at].parse::<SocketAddr>().expect("an address");
    match words[0] {
        "lingers" => {
            let (socket, _far) = lingering();
            let mut silent = Vec::new();
            for _ in 0..3 {
                let control = abstract_socket::connect(&name(addr(1))).expect("the server has the option");
                let _ = handover::send(&control, &hello(addr(1), addr(1)), &[socket.as_fd()]);
                silent.push(control);
            }
            drop(silent);
            let_go(socket);
            println!("left");
            kit::until("it is killed", || false);
        }
        "listens" => {
            let listener = kit::wait_for("the name is free", || abstract_socket::listen(&name(addr(1))).ok());
            println!("open");
            let caller = accept_one(&listener);
            let (bytes, descriptors) = handover::receive(&caller, &mut [0; 200]).unwrap_or_default();
            println!("heard {bytes} bytes, {} descriptors", descriptors.len());
        }
        "twin" => {
            let (from, to) = (addr(1), addr(2));
            let _listener = TcpListener::bind(to).expect("the same address here");
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
            socket.bind(&from.into()).expect("the same address here");
            socket.connect(&to.into()).expect("connect");
            let (_rings, memory) = Rings::create(RING).expect("memory");
            let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("handle"));
            handover::send(&control, &hello(from, to), &[memory.as_fd(), socket.as_fd()]).expect("an offer");
            println!("left");
            kit::until("it is killed", || false);
        }
        other => panic!("{other} is nothing to be"),
    }
}
