//! Plain programs through the map of sockets, and every way back to TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use libtest_mimic::Trial;
use tidegate::fastpath::sockmap::{ControlGroup, Sockmap};
use tidegate_os::socket::segments;

use crate::harness;

pub(crate) fn trials() -> Vec<Trial> {
    if std::env::var_os(ROLE).is_some() {
        return tests![a_plain_program];
    }
    let rights = "the right to load BPF programs and to attach them to its control group";
    let mut all = tests![missing_rights_are_an_error_that_names_them];
    all.extend(harness::needs(
        may(),
        rights,
        tests![
            bytes_of_unchanged_programs_do_not_go_by_tcp,
            it_may_be_killed_while_connections_are_in_the_map,
            what_began_by_tcp_is_not_overtaken,
            what_the_command_comes_to_is_what_this_comes_to,
            a_folder_that_is_no_control_group_is_refused
        ],
    ));
    all
}

const ROLE: &str = "TIDEGATE_FASTPATH_ROLE";
const ROUNDS: usize = 200;

/// Ends the test run if the test takes longer: a test that hangs has failed.
struct Deadline(#[expect(dead_code, reason = "its end is what counts")] Sender<()>);

fn deadline() -> Deadline {
    let (alive, gone) = channel::<()>();
    std::thread::spawn(move || {
        if gone.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test of fastpath hangs");
            std::process::abort();
        }
    });
    Deadline(alive)
}

/// Whether this process may do it at all.
fn may() -> bool {
    Sockmap::load(1).and_then(|mut map| ControlGroup::own().and_then(|group| map.attach(&group))).is_ok()
}

fn fastpath(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("fastpath").args(args);
    command
}

/// What makes this binary a plain program.
fn role() -> [String; 4] {
    let me = std::env::current_exe().expect("this file").display().to_string();
    [me, harness::name(module_path!(), "a_plain_program"), "--exact".into(), "--nocapture".into()]
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A program that knows nothing of tidegate.
fn a_plain_program() {
    let role = std::env::var(ROLE).expect("the parent process sets it");
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("echo", _) => echo(TcpListener::bind("[::]:0").expect("bind")),
        // Server and client, two programs.
        ("both", rest) => {
            let (dest, server) = (rest.parse::<IpAddr>().expect("an address"), Echoing::start(None));
            report(&mut connect(SocketAddr::new(dest, server.port)), "then");
        }
        ("call", rest) => {
            let mut connection = connect(rest.parse().expect("an address"));
            report(&mut connection, "before");
            println!("ready");
            std::io::stdin().read_exact(&mut [0]).expect("a word");
            report(&mut connection, "after");
            report(&mut connect(rest.parse().expect("an address")), "anew");
        }
        // Sends three messages before anything has been accepted.
        ("hasty", rest) => {
            let mut connection = TcpStream::connect(rest).expect("connect");
            for message in [b"one", b"two", b"six"] {
                connection.write_all(message).expect("send");
            }
            connection.shutdown(Shutdown::Write).expect("finish");
            let mut back = String::new();
            Patient(&connection).read_to_string(&mut back).expect("receive");
            println!("back {back}");
        }
        (other, _) => panic!("{other} is nothing to be"),
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream
}

/// Receives once more where the map wakes a receiver for nothing (docs/fastpath.md): after its own half-close, or when
/// the process is stopped and goes on.
struct Patient<'a>(&'a TcpStream);

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }
}

/// Echoes each connection, one after the other.
fn echo(listener: TcpListener) {
    println!("port {}", listener.local_addr().expect("an address").port());
    for stream in listener.incoming() {
        let mut stream = stream.expect("accept");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = Patient(&stream).read(&mut buffer) {
                stream.write_all(&buffer[..n]).expect("send");
            }
        });
    }
}

/// Has bytes go to and fro, and says how many segments that took.
fn report(stream: &mut TcpStream, name: &str) {
    let before = segments(stream).expect("TCP");
    for round in 0..ROUNDS {
        let message: Vec<u8> = (0..64).map(|i| (round * 7 + i) as u8).collect();
        let mut back = [0; 64];
        stream.write_all(&message).expect("send");
        Patient(stream).read_exact(&mut back).expect("receive");
        assert_eq!(back[..], message);
    }
    let after = segments(stream).expect("TCP");
    println!("{name} {} {}", after.0 - before.0, after.1 - before.1);
}

/// Segments out and in that a program reported under a name.
fn reported(output: &str, name: &str) -> (u32, u32) {
    let line = output.lines().find_map(|line| line.split_once(&format!("{name} ")));
    let (_, numbers) = line.unwrap_or_else(|| panic!("no {name:?} in {output}"));
    let mut numbers = numbers.split(' ').map(|word| word.parse().expect("a number"));
    (numbers.next().expect("out"), numbers.next().expect("in"))
}

/// A plain echo server; killed when dropped.
struct Echoing {
    child: Child,
    port: u16,
}

impl Echoing {
    fn start(group: Option<&ControlGroup>) -> Self {
        let [me, rest @ ..] = role();
        let mut command = Command::new(me);
        command.args(rest).env(ROLE, "echo").stdout(Stdio::piped());
        if let Some(group) = group {
            tidegate_os::process::start_in_group(&mut command, group.processes().expect("may"))
                .expect("a group");
        }
        let mut child = command.spawn().expect("start");
        let port = line(&mut child, "port ").parse().expect("a port");
        Self { child, port }
    }
}

impl Drop for Echoing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of the first line with this in it.
fn line(child: &mut Child, with: &str) -> String {
    let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines().map_while(Result::ok);
    lines.find_map(|line| line.split_once(with).map(|(_, rest)| rest.to_owned())).expect("it says so")
}

fn bytes_of_unchanged_programs_do_not_go_by_tcp() {
    let _deadline = deadline();
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    for to in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into(), mapped.into()] {
        let play = |inside: bool| {
            let [me, rest @ ..] = role();
            let mut command = if inside { fastpath(&["--", &me]) } else { Command::new(me) };
            let output = command.args(rest).env(ROLE, format!("both {to}")).output().expect("start");
            assert!(output.status.success(), "{}", text(&output));
            text(&output)
        };
        let (out, back) = reported(&play(false), "then");
        assert!(out >= ROUNDS as u32 && back >= ROUNDS as u32, "{to}: by TCP each message is a segment");
        let shown = play(true);
        assert_eq!(reported(&shown, "then"), (0, 0), "{to}");
        assert!(shown.contains(&format!("{} messages by sockmap, 0 by TCP", 2 * ROUNDS)), "{shown}");
    }
}

/// A group for a test; removed at the end.
fn somewhere(name: &str) -> (ControlGroup, PathBuf) {
    let own = ControlGroup::own().expect("a group");
    let path = own.path().with_file_name(format!("tidegate-test-{name}-{}", std::process::id()));
    (ControlGroup::at(&path).expect("another"), path)
}

fn it_may_be_killed_while_connections_are_in_the_map() {
    let _deadline = deadline();
    let (group, path) = somewhere("killed");
    let mut map = fastpath(&["--cgroup", path.to_str().expect("text")]);
    let mut map = map.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start");
    assert_eq!(Path::new(&line(&mut map, "fast path on ")), path);
    let server = Echoing::start(Some(&group));
    let [me, rest @ ..] = role();
    let mut caller = Command::new(me);
    caller.args(rest).env(ROLE, format!("call 127.0.0.1:{}", server.port));
    tidegate_os::process::start_in_group(&mut caller, group.processes().expect("may")).expect("a group");
    let mut caller = caller.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let before = line(&mut caller, "before ");
    map.kill().expect("kill");
    map.wait().expect("wait");
    caller.stdin.take().expect("piped").write_all(b"g").expect("say");
    let output = text(&caller.wait_with_output().expect("wait"));
    assert_eq!(before, "0 0");
    assert_eq!(reported(&output, "after"), (0, 0), "a connection in the map stays there");
    assert!(reported(&output, "anew").0 >= ROUNDS as u32, "a new one is TCP");
    drop(server);
}

/// A listener that defers accepts has the first bytes by TCP: all of that direction stays there, in order.
fn what_began_by_tcp_is_not_overtaken() {
    let _deadline = deadline();
    let (group, path) = somewhere("hasty");
    let mut map = fastpath(&["--cgroup", path.to_str().expect("text")]);
    let mut map = map.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    line(&mut map, "fast path on ");
    let mut server = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    server.args(["serve", "echo", "--listen", "127.0.0.1:0", "--defer-accept", "1s"]);
    tidegate_os::process::start_in_group(&mut server, group.processes().expect("may")).expect("a group");
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start");
    let addr = line(&mut server, "listening on tcp://");
    for _ in 0..50 {
        let [me, rest @ ..] = role();
        let mut caller = Command::new(me);
        caller.args(rest).env(ROLE, format!("hasty {addr}"));
        tidegate_os::process::start_in_group(&mut caller, group.processes().expect("may")).expect("a group");
        let output = caller.output().expect("start");
        assert!(text(&output).contains("back onetwosix"), "{}", text(&output));
    }
    tidegate_os::process::ask_to_end(map.id()).expect("signal");
    let output = map.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("messages by sockmap"), "{}", text(&output));
    assert!(!text(&output).contains(" 0 by TCP"), "{}", text(&output));
    server.kill().expect("kill");
    server.wait().expect("wait");
}

fn what_the_command_comes_to_is_what_this_comes_to() {
    let _deadline = deadline();
    let code = |script: &str| fastpath(&["--", "sh", "-c", script]).output().expect("start").status.code();
    assert_eq!((code("exit 7"), code("kill -9 $$")), (Some(7), Some(137)));
    let missing = fastpath(&["--", "/there/is/no/such/program"]).output().expect("start");
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing));
    let mut asked = fastpath(&["--", "sleep", "600"]);
    let mut asked = asked.stderr(Stdio::null()).spawn().expect("start");
    while !std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", asked.id()))
        .is_ok_and(|c| !c.is_empty())
    {
        std::thread::yield_now();
    }
    tidegate_os::process::ask_to_end(asked.id()).expect("signal");
    assert_eq!(asked.wait().expect("wait").code(), Some(143), "the signal is passed on");
}

fn missing_rights_are_an_error_that_names_them() {
    let _deadline = deadline();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tidegate");
    // Where another user can reach it.
    std::fs::hard_link(env!("CARGO_BIN_EXE_tidegate"), &file)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_tidegate"), &file).map(drop))
        .expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("open to all");
    let mut command = Command::new(&file);
    command.args(["fastpath", "--", "true"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let output = command.output().expect("start");
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(
        shown.contains("not permitted") && shown.contains("CAP_BPF") && shown.contains("root"),
        "{shown}"
    );
}

fn a_folder_that_is_no_control_group_is_refused() {
    let _deadline = deadline();
    let output = fastpath(&["--cgroup", "/usr/tidegate", "--", "true"]).output().expect("start");
    assert!(text(&output).contains("not inside a cgroup2 mount"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fastpath(&["--connections", "0"]).output().expect("start").status.code(), Some(2));
}
