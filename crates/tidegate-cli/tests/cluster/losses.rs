//! An agent is killed in the middle of a load, and the others go on: what it would have done is missing, or done by
//! them. The result says which.

use crate::harness;
use libtest_mimic::Trial;
use tidegate_load::verdict::{LimitedBy, Warning};
use tidegate_load::{AgentReport, Report};

use crate::kit::{Broker, agent, begin, finish, report, seen_to_run, server, stderr, talking_agent, three};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            the_others_go_on_without_a_killed_agent_if_that_is_the_setting,
            the_others_take_over_what_a_killed_agent_would_still_have_done,
            a_number_of_requests_is_answered_though_an_agent_is_killed,
            nothing_is_missing_if_an_agent_is_killed_before_the_start
        ],
    )
}

/// A load of 6 connections and 60 requests a second over three agents, of which the third is killed after the first
/// second.
fn with_one_killed(on_lost: &str, amount: &[&str]) -> (Report, String) {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let mut agents = three(&broker.url);
    let json = tempfile::NamedTempFile::new().unwrap();
    let path = json.path().to_str().unwrap();
    let fixed = ["--agents", "3", "-c", "6", "--on-lost", on_lost, "--json", path];
    let child = seen_to_run(&broker.url, &addr, &[&fixed[..], amount].concat());
    // Kill, as by `kill -9`.
    agents[2].0.kill().unwrap();
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let report: Report = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(!report.is_clean() && !report.interrupted);
    (report, text)
}

fn agents(report: &Report) -> &[AgentReport] {
    &report.together.as_ref().unwrap().agents
}

fn the_others_go_on_without_a_killed_agent_if_that_is_the_setting() {
    let (r, text) = with_one_killed("continue", &["--rate", "60", "-d", "30"]);
    assert_eq!(agents(&r).iter().map(|a| a.counted).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(r.open_loop.as_ref().unwrap().scheduled, 1_200, "two of three shares of 1,800");
    let together = r.together.as_ref().unwrap();
    assert!(together.troubles.iter().any(|t| t.contains("agent a3 has said nothing")), "{together:?}");
    let loss = agents(&r)[2].loss.as_ref().unwrap();
    assert_eq!((loss.connections, loss.missing_requests), (2, Some(600)));
    assert!(loss.taken_over_by.is_empty() && loss.heard_s < loss.noticed_s, "{loss:?}");
    assert!(
        text.contains("nobody took its part over; 600 requests of the schedule are in nobody's result"),
        "{text}"
    );
    // The rate was not kept, and it was not the server.
    let verdict = r.verdict.as_ref().unwrap();
    assert_eq!(verdict.limited_by, LimitedBy::Generator);
    assert!(verdict.warnings.contains(&Warning::AgentsLost { lost: 1 }), "{verdict:?}");
    assert!(verdict.because.contains("a3"), "{verdict:?}");
}

fn the_others_take_over_what_a_killed_agent_would_still_have_done() {
    let amount = ["--rate", "60", "-d", "30"];
    let (r, text) = with_one_killed("redistribute", &amount);
    let rows: Vec<_> =
        agents(&r).iter().map(|a| (&*a.name, a.taken_over_from.as_deref(), a.counted)).collect();
    assert_eq!(
        rows,
        [
            ("a1", None, true),
            ("a2", None, true),
            ("a3", None, false),
            ("a1", Some("a3"), true),
            ("a2", Some("a3"), true)
        ]
    );
    let loss = agents(&r)[2].loss.clone().unwrap();
    assert_eq!((loss.connections, &*loss.taken_over_by), (2, &["a1".to_owned(), "a2".to_owned()][..]));
    let from_s = loss.taken_over_s.unwrap();
    assert!(loss.heard_s.unwrap() < loss.noticed_s.unwrap() && loss.noticed_s.unwrap() < from_s, "{loss:?}");
    // It is exact: its 20 requests a second until then are missing, and nothing else.
    assert_eq!(loss.missing_requests, Some((20.0 * from_s).round() as u64), "{loss:?}");
    let open = r.open_loop.as_ref().unwrap();
    assert_eq!(open.scheduled + loss.missing_requests.unwrap(), 1_800);
    // A machine that stalls at the end has some of what is due then not begun.
    assert_eq!((r.requests, r.failed), (open.started, 0), "{text}");
    assert_eq!(open.started + open.not_started, open.scheduled, "{text}");
    assert!(open.not_started <= 5 * 60, "more than of the last five seconds: {text}");
    assert!(agents(&r)[3..].iter().all(|a| a.requests > 0), "{text}");
    assert_eq!(agents(&r).iter().map(|a| a.requests).sum::<u64>(), r.requests);
    assert_eq!(r.connected, 6, "all connections that were asked for");
    assert_eq!(r.elapsed_s, 30.0);
    assert!(text.contains("a1 and a2 took its part over"), "{text}");
    assert!(text.contains("agent        a2, for a3: 1 connections"), "{text}");
    // The seconds of those that came later are seconds of the whole: each has the whole rate again.
    let full = r.seconds.iter().filter(|s| s.at_s > from_s + 1.5 && s.at_s < 29.5);
    assert!(full.clone().count() > 0, "{:?}", r.seconds);
    let sum: u64 = r.seconds.iter().map(|s| s.requests).sum();
    assert!(sum >= r.requests, "what the killed one said is in its seconds: {sum} of {}", r.requests);
}

fn a_number_of_requests_is_answered_though_an_agent_is_killed() {
    // Without a schedule: at 100 connections' worth of 2 bytes a second it takes some seconds.
    let amount = ["-n", "60", "--size", "100", "-r", "500"];
    let (r, text) = with_one_killed("redistribute", &amount);
    // Which of its 20 the killed one did nobody knows: they are done again.
    assert_eq!((r.requests, r.failed), (60, 0), "{text}");
    let done: Vec<_> = agents(&r).iter().map(|a| (a.counted, a.requests)).collect();
    assert_eq!(done, [(true, 20), (true, 20), (false, 0), (true, 10), (true, 10)], "{text}");
    let loss = agents(&r)[2].loss.as_ref().unwrap();
    assert_eq!(loss.missing_requests, None);
    assert!(!r.verdict.unwrap().because.contains("missing"), "all 60 were done");
}

fn nothing_is_missing_if_an_agent_is_killed_before_the_start() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _others = ["a1", "a2"].map(|name| agent(&broker.url, name, &[]));
    let (mut killed, says) = talking_agent(&broker.url, "a3", &[]);
    // Connections take their time, so that it is among the first of them.
    let rest = ["--agents", "3", "-c", "12", "--ramp-connections", "6", "--rate", "30", "-n", "60"];
    let timeout = ["--on-lost", "redistribute", "--agent-timeout", "10", "--clock-bound", "30"];
    let child = begin("echo", &addr, &broker.url, &[&rest[..], &timeout].concat());
    says.wait_for("4 connections to");
    killed.0.kill().unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(1), "what happened is said");
    let r = report(&output);
    assert_eq!((r.requests, r.failed, r.connected), (60, 0, 12), "{}", stderr(&output));
    let done: Vec<_> = agents(&r).iter().map(|a| (a.connections, a.requests)).collect();
    assert_eq!(done, [(4, 20), (4, 20), (0, 0), (2, 10), (2, 10)]);
    let loss = agents(&r)[2].loss.as_ref().unwrap();
    assert_eq!((loss.heard_s, loss.taken_over_s, loss.missing_requests), (None, None, Some(0)));
    assert!(
        stderr(&output)
            .contains("agent a3 was lost before the start: a1 and a2 took its part over before the start")
    );
    assert!(!r.verdict.unwrap().because.contains("missing"));
}
