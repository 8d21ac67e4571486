//! Several servers in one process: `serve --config` with several `[[server]]`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::config::File;
use crate::kit::{DEADLINE, Server, run, tidegate, with_descriptors};
use crate::metrics;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn serve(file: &File) -> Server {
    Server::start(&["serve", "--config", file.name()])
}

fn addr(url: &str) -> SocketAddr {
    url.split("//").nth(1).unwrap().trim_end_matches('/').parse().unwrap()
}

fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr(url), DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn echoes(mut stream: impl Read + Write) {
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}

#[test]
fn all_servers_of_a_file_serve_in_one_process_and_end_together() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let file = File::of(&format!(
        "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nstats = true\n\
         [[server]]\nservice = \"echo\"\nlisten = \"unix:{}\"\nmodel = \"epoll\"\nstats = true\nname = \"inner\"\n\
         [[server]]\nservice = \"udp\"\nkind = \"echo\"\nlisten = \"127.0.0.1:0\"\nmodel = \"select\"\nstats = true\n",
        socket.display()
    ));
    let mut server = serve(&file);
    let (second, third) = (server.next_url(), server.next_url());
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    assert_eq!(second, format!("unix:{}", socket.display()));
    assert!(third.starts_with("udp://127.0.0.1:"), "{third}");

    assert!(server.talk(GET).starts_with("HTTP/1.1 200"));
    let stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    echoes(stream);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(DEADLINE)).unwrap();
    udp.send_to(b"hello", addr(&third)).unwrap();
    let mut back = [0; 9];
    assert_eq!(udp.recv(&mut back).unwrap(), 5);

    server.signal(Signal::TERM);
    let (status, stdout, stderr) = server.ended();
    assert_eq!((status.code(), stdout.as_str()), (Some(0), ""));
    assert!(!socket.exists());
    let counters: Vec<serde_json::Value> =
        stderr.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |n: usize, key: &str| counters[n][key].clone();
    assert_eq!(counters.len(), 3, "{stderr:?}");
    assert_eq!(
        (of(0, "server"), of(0, "model"), of(0, "accepted")),
        ("http".into(), "poll".into(), 1.into())
    );
    assert_eq!(
        (of(1, "server"), of(1, "model"), of(1, "accepted")),
        ("inner".into(), "epoll".into(), 1.into())
    );
    assert_eq!((of(2, "server"), of(2, "datagrams_in")), ("udp".into(), 1.into()));
    for name in ["http", "inner", "udp"] {
        let drained = format!("note: {name}: drained: ");
        assert!(stderr.iter().any(|line| line.starts_with(&drained)), "{stderr:?}");
    }
}

#[test]
fn one_that_cannot_listen_ends_all_and_is_named() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let file = File::of(&format!(
        "[[server]]\nservice = \"echo\"\nlisten = \"unix:{}\"\n[[server]]\nservice = \"http\"\nlisten = \"{}\"\n",
        socket.display(),
        holder.local_addr().unwrap()
    ));
    let outcome = run(&mut tidegate(&["serve", "--config", file.name()]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    for text in ["[[server]] 2 (http)", "another program uses port"] {
        assert!(outcome.stderr.contains(text), "{}", outcome.stderr);
    }
    assert!(!socket.exists());
}

#[test]
fn what_contradicts_between_tables_is_refused() {
    let two = |first: &str, second: &str| {
        File::of(&format!(
            "[[server]]\nservice = \"http\"\n{first}\n[[server]]\nservice = \"echo\"\n{second}\n"
        ))
    };
    for (first, second, says) in [
        ("name = \"a\"", "name = \"a\"", "both called a"),
        (
            "handover = \"/none/handover.sock\"",
            "handover = \"/none/handover.sock\"",
            "the handover path /none/handover.sock",
        ),
        ("", "outbox-low = \"64k\"\noutbox-high = \"16k\"", "[[server]] 2 (echo)"),
        ("model = \"poll\"\nmax-connections = 10000", "", "max-connections of all servers"),
    ] {
        let file = two(first, second);
        let outcome = run(&mut with_descriptors(600, &["serve", "--config", file.name()]));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    }
}

#[test]
fn descriptors_are_shared_and_it_is_said_what_each_got() {
    let one = |name: &str, keys: &str| {
        format!(
            "[[server]]\nservice = \"echo\"\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nthreads = 1\n{keys}"
        )
    };
    let file = File::of(&[one("a", ""), one("b", "max-connections = 134\n"), one("c", "")].concat());
    // b needs 134 and 66 for itself; of what is left a and c have one half each, and keep a quarter of a small share
    // for themselves.
    let server = Server::of(&mut with_descriptors(600, &["serve", "--config", file.name()]));
    for name in ["a", "c"] {
        let line = server.wait_for("max-connections lowered to");
        let says = format!(
            "note: {name}: max-connections lowered to 148: the descriptor limit is 600, of which this server has 200;"
        );
        assert!(line.starts_with(&says), "{line}");
    }
}

#[test]
fn servers_of_one_address_share_a_page_and_are_ready_together() {
    let keys = "listen = \"127.0.0.1:0\"\nmodel = \"poll\"\nmetrics = \"127.0.0.1:0\"\n";
    let file = File::of(&format!(
        "[[server]]\nservice = \"http\"\n{keys}[[server]]\nservice = \"echo\"\n{keys}[[server]]\nservice = \"http\"\n{keys}\
         [[server]]\nservice = \"udp\"\nkind = \"sink\"\n{keys}"
    ));
    let mut server = serve(&file);
    let page = server.wait_for("metrics on http://");
    let page = page.split("http://").nth(1).unwrap().trim_end_matches("/metrics").parse().unwrap();
    assert!(server.talk(GET).starts_with("HTTP/1.1 200"));
    echoes(connect(&server.next_url()));
    let samples = metrics::samples(&metrics::get(page, "/metrics").1);
    for (name, accepted) in [("http-1", 1), ("echo", 1), ("http-3", 0)] {
        let key = format!("tidegate_connections_accepted_total{{server=\"{name}\"}}");
        assert_eq!(samples.get(&key), Some(&accepted), "{key}");
    }
    assert_eq!(samples[r#"tidegate_datagrams_received_total{server="udp"}"#], 0);
    assert_eq!(metrics::get(page, "/readyz").1, "accepting\n");
}

/// Each server has a successor of its own; the process ends with the last of them.
#[test]
fn servers_are_handed_over_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let handover = |name: &str| folder.path().join(name).display().to_string();
    let file = File::of(&format!(
        "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nhandover = \"{}\"\n\
         [[server]]\nservice = \"echo\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nhandover = \"{}\"\n",
        handover("http"),
        handover("echo")
    ));
    let mut first = serve(&file);
    let (http, echo) = (first.url.clone(), first.next_url());
    let second = Server::start(&["serve", "http", "--model", "poll", "--handover", &handover("http")]);
    assert_eq!(second.url, http);
    first.wait_for("http: a successor accepts");
    echoes(connect(&echo));
    let third = Server::start(&["serve", "echo", "--model", "poll", "--handover", &handover("echo")]);
    assert_eq!(third.url, echo);
    assert_eq!(first.ended().0.code(), Some(0));
    assert!(second.talk(GET).starts_with("HTTP/1.1 200"));
    echoes(connect(&echo));
}

/// Both servers of a file go to those of the next process, which has the same file.
#[test]
fn a_process_takes_all_sockets_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let one = |service: &str| {
        let handover = folder.path().join(service);
        format!(
            "[[server]]\nservice = \"{service}\"\nmodel = \"poll\"\nlisten = \"127.0.0.1:0\"\nhandover = \"{}\"\n",
            handover.display()
        )
    };
    let file = File::of(&[one("http"), one("echo")].concat());
    let mut first = serve(&file);
    let echo = first.next_url();
    let mut second = serve(&file);
    let echo_again = second.next_url();
    assert_eq!((&second.url, &echo_again), (&first.url, &echo));
    assert_eq!(first.ended().0.code(), Some(0));
    assert!(second.talk(GET).starts_with("HTTP/1.1 200"));
    echoes(connect(&echo));
}

/// Threads of each server may run on its own processors only, which `/proc` shows.
#[cfg(target_os = "linux")]
#[test]
fn each_server_keeps_to_its_processors() {
    let allowed = tidegate::system::allowed_cpus();
    let (Some(first), Some(last)) = (allowed.first(), allowed.last()) else { panic!("no processor") };
    let file = File::of(&format!(
        "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\ncpus = [{first}]\n\
         [[server]]\nservice = \"echo\"\nlisten = \"127.0.0.1:0\"\nmodel = \"select\"\ncpus = [{last}]\n"
    ));
    let mut server = serve(&file);
    server.next_url();
    let mut seen = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        seen.push((field("Name:"), field("Cpus_allowed_list:")));
    }
    let mut kept: Vec<_> =
        seen.iter().filter(|(name, _)| name == "tidegate-0").map(|(_, cpus)| cpus).collect();
    let mut wanted = [&first.to_string(), &last.to_string()];
    kept.sort();
    wanted.sort();
    assert_eq!(kept, wanted, "{seen:?}");
}

#[test]
fn a_strategy_is_for_all_of_them() {
    let keys = "listen = \"127.0.0.1:0\"\nmodel = \"poll\"\n";
    let file =
        File::of(&format!("[[server]]\nservice = \"http\"\n{keys}[[server]]\nservice = \"echo\"\n{keys}"));
    let mut server = serve(&file);
    server.next_url();
    server.signal(Signal::USR1);
    server.wait_for("http: the strategy is now Throughput");
    server.wait_for("echo: the strategy is now Throughput");
}

/// As `systemd.socket(5)` passes them: by number, with names beside them, in an order of its own.
#[test]
fn each_server_takes_the_passed_socket_with_its_name() {
    let two = File::of(
        "[[server]]\nservice = \"http\"\nmodel = \"poll\"\n[[server]]\nservice = \"echo\"\nname = \"inner\"\nmodel = \"poll\"\n",
    );
    let (echo, http) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (echo_at, http_at) = (echo.local_addr().unwrap(), http.local_addr().unwrap());
    let start = |file: &File, names: &str| {
        // The two sockets come as the standard input and error of the shell.
        let script = "exec 3<&0 4>&2 </dev/null 2>&1; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate"), "serve", "--config", file.name()]);
        command.env("LISTEN_FDNAMES", names).stdout(Stdio::piped());
        command.stdin(OwnedFd::from(echo.try_clone().unwrap()));
        command.stderr(OwnedFd::from(http.try_clone().unwrap())).spawn().unwrap()
    };
    let said_by =
        |child: &mut Child| BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);

    let mut child = start(&two, "inner:http");
    let pid = Pid::from_child(&child);
    let mut urls =
        said_by(&mut child).filter_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    assert_eq!(urls.next(), Some(format!("http://{http_at}/")));
    assert_eq!(urls.next(), Some(format!("tcp://{echo_at}")));
    echoes(connect(&format!("tcp://{echo_at}")));
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(urls.count(), 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let mut child = start(&two, "inner:other");
    let says: Vec<String> = said_by(&mut child).collect();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let says = says.join("\n");
    assert!(says.contains("(LISTEN_FDS) is called other") && says.contains("http, inner"), "{says}");
}
