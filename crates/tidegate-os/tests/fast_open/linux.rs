use std::num::NonZeroU32;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Completion, Trial};
use tidegate_os::socket::{Blocking, ListenOptions, Listener};

use super::kit::OPTIONS;

const NAME: &str = "with_fast_open_first_data_comes_with_the_first_packet";
/// Says that this process is inside.
const INSIDE: &str = "TIDEGATE_FAST_OPEN_IS_ON";

/// In a network namespace, where the option may be turned on: this test once more, told so by the environment.
pub fn main() -> ExitCode {
    let trial = Trial::ignorable_test(NAME, || {
        if std::env::var_os(INSIDE).is_some() {
            fast_open();
            return Ok(Completion::Completed);
        }
        if !in_namespace("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Ok(Completion::ignored_with(
                "needs a network namespace with TCP Fast Open (unshare, ip)",
            ));
        }
        let ended = in_namespace(&format!("exec \"$0\" --exact {NAME} --nocapture")).status()?;
        assert!(ended.success(), "{ended}");
        Ok(Completion::Completed)
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// A command in such a namespace; its `$0` is this program.
fn in_namespace(then: &str) -> Command {
    let turn_on = "ip link set lo up && echo 3 > /proc/sys/net/ipv4/tcp_fastopen";
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &format!("{turn_on} && {then}")]);
    command.arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    command
}

fn fast_open() {
    let options = ListenOptions { fast_open: NonZeroU32::new(16), ..OPTIONS };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let addr = listener.local_addr().unwrap().addr().unwrap();
    listener.set_blocking(Blocking::Waits).unwrap();
    for brought_data in [0, 1] {
        let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // The first one asks for a cookie, the second one has it.
        assert_eq!(client.send_to_with_flags(b"early", &addr.into(), libc::MSG_FASTOPEN).unwrap(), 5);
        let (near, _) = listener.accept(Blocking::Waits).unwrap();
        let mut room = [0; 9];
        assert_eq!(near.receive(&mut room).unwrap(), 5);
        assert_eq!(tcp_counter("TCPFastOpenPassive"), brought_data);
    }
}

/// A counter of this network namespace.
fn tcp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|word| word == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}
