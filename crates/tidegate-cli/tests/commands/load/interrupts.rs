//! Ctrl-C in the middle of a run, or a terminal that is closed: there is a result of what was measured until then.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::TIDEGATE;
use crate::kit::finish;

/// Sends everything back, and says so after the tenth message.
fn echo_of_streams() -> (String, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let (mut times, mut bytes) = (0, [0; 4096]);
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..n]).is_err() {
                return;
            }
            times += 1;
            if times == 10 {
                let _ = sender.send(());
            }
        }
    });
    (addr, requests)
}

/// The same for datagrams.
fn echo_of_datagrams() -> (String, Receiver<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap().to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let (mut times, mut bytes) = (0, [0; 4096]);
        while let Ok((n, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..n], from);
            times += 1;
            if times == 10 {
                let _ = sender.send(());
            }
        }
    });
    (addr, requests)
}

/// Interrupts a load of ten minutes once it is going; its result.
fn interrupted(protocol: &str, (target, going): (String, Receiver<()>)) -> serde_json::Value {
    let mut command = Command::new(TIDEGATE);
    command.args(["load", protocol, &target, "-c", "1", "-d", "600", "--json", "-"]);
    let load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_going = going.recv_timeout(Duration::from_secs(20));
    kill_process(Pid::from_child(&load), Signal::INT).unwrap();
    let output = load.wait_with_output().unwrap();
    assert_eq!((is_going, output.status.code()), (Ok(()), Some(1)), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("interrupted; the result is of the"),
        "{output:?}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_hangup_ends_a_load_like_an_interrupt_with_its_summary() {
    for (protocol, (target, going), line) in [
        ("echo", echo_of_streams(), "\nverdict "),
        ("udp", echo_of_datagrams(), "\nverdict "),
        ("ping", echo_of_streams(), "\nround trips "),
    ] {
        // Under nohup(1) SIGHUP is ignored, and stays so in what it starts: here it is as a terminal leaves it.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", TIDEGATE, "load", protocol, &target, "-c", "1", "-d", "600"]);
        let load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let is_going = going.recv_timeout(Duration::from_secs(20));
        kill_process(Pid::from_child(&load), Signal::HUP).unwrap();
        let outcome = finish(load);
        assert_eq!((is_going, outcome.code), (Ok(()), Some(1)), "{protocol}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("interrupted; the result is of the"), "{}", outcome.stderr);
        assert!(outcome.stdout.contains(line), "{protocol}: {}", outcome.stdout);
    }
}

#[test]
fn an_interrupted_echo_load_tells_what_it_has() {
    let result = interrupted("echo", echo_of_streams());
    assert!(result["interrupted"] == true && result["requests"].as_u64() >= Some(9), "{result}");
}

#[test]
fn an_interrupted_load_of_datagrams_tells_what_it_has() {
    let result = interrupted("udp", echo_of_datagrams());
    assert!(result["interrupted"] == true && result["requests"].as_u64() >= Some(1), "{result}");
}

#[test]
fn an_interrupted_ping_tells_what_it_has() {
    let result = interrupted("ping", echo_of_streams());
    // Round trips before the window, in the warm-up, do not count.
    assert!(result["interrupted"] == true && result["lost"] == 0, "{result}");
}
