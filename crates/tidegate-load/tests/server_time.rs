//! The processor time of a server is that of the window: what it spends before and after belongs to no request.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::{Model, Server};
use tidegate_load::cpu_time::cpu_s;
use tidegate_load::{Amount, Plan, Protocol, Rate, RunEvent, run};
use tidegate_services::Echo;

/// A process that spends processor time on demand, and else none.
struct Spender {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Spender {
    fn start() -> Self {
        let count = "while read line; do i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; done";
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-c", count]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, answers }
    }

    /// Returns the seconds that it has spent.
    fn spend(&mut self) -> f64 {
        let before = cpu_s(self.child.id());
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("a request");
        self.answers.read_line(&mut String::new()).expect("heard");
        cpu_s(self.child.id()) - before
    }
}

impl Drop for Spender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_a_server_spends_outside_of_the_window_does_not_count() {
    let server = Server::new(Echo).model(Model::Poll).bind("127.0.0.1:0").unwrap().start().unwrap();
    for rate in [None, Some(1_000.0)] {
        let mut spender = Spender::start();
        let echo = Protocol::Echo { size: 64, window: 1 };
        let window = Amount::Time(Duration::from_millis(100));
        let plan = Plan {
            rate: rate.map(|requests_per_s| Rate { requests_per_s, ramp: None }),
            warm_up: Duration::from_millis(10),
            timeout: Duration::from_secs(60),
            model: Some(Model::Poll),
            server_pid: Some(spender.child.id()),
            ..Plan::new(server.local_addr().clone(), echo, 1, window)
        };
        let (mut outside, mut inside) = (0.0, 0.0);
        let report = run(&plan, |event| match event {
            RunEvent::Connected { .. } | RunEvent::Done { .. } => outside += spender.spend(),
            RunEvent::Measuring => inside += spender.spend(),
            _ => {}
        });
        let counted = report.unwrap().server_cpu_s.expect("it was looked at");
        assert!(outside > 0.0 && inside > 0.0, "it spends processor time");
        // To look costs the one that looks; this one sleeps.
        assert!((counted / inside - 1.0).abs() < 0.1, "{counted} of {inside} inside, {outside} outside");
    }
    server.stop();
    server.join();
}
