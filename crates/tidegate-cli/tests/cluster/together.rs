//! A run that agents carry together: what they are asked for is what is done.

use crate::kit::{Broker, begun_in_time, load, report, server, stderr, three};
use libtest_mimic::Trial;
use tidegate_load::histogram::{decode, empty};

pub(crate) fn trials() -> Vec<Trial> {
    crate::harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            three_agents_carry_exactly_what_was_asked,
            echo_messages_of_each_connection_are_counted_over_all_agents,
            seconds_of_all_agents_come_as_one_line_each
        ],
    )
}

/// What the parts are, the whole is: counts summed, and percentiles those of all parts' histograms together.
fn assert_whole(report: &tidegate_load::Report) {
    let together = report.together.as_ref().unwrap();
    assert!(together.troubles.is_empty(), "{:?}", together.troubles);
    let mut all = empty();
    for agent in &together.agents {
        all.add(decode(&agent.latency_v2).unwrap()).unwrap();
    }
    assert_eq!(decode(&report.latency_v2).unwrap(), all);
    assert_eq!(report.latency_us.p99, all.value_at_quantile(0.99));
    assert_eq!(report.requests, together.agents.iter().map(|a| a.requests).sum::<u64>());
    assert!(together.agents.iter().all(|a| a.counted && a.verdict.is_some()));
    assert!(report.verdict.is_some());
}

fn three_agents_carry_exactly_what_was_asked() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("http");
    let _agents = three(&broker.url);
    let target = format!("http://{addr}/");
    // Neither number can be divided by three.
    let output = load("http", &target, &broker.url, &["--agents", "3", "-c", "10", "-n", "1000"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let r = report(&output);
    assert_eq!((r.connections, r.connected, r.requests, r.failed), (10, 10, 1_000, 0));
    let agents = &r.together.as_ref().unwrap().agents;
    assert_eq!(
        agents.iter().map(|a| (a.connections, a.requests)).collect::<Vec<_>>(),
        [(4, 334), (3, 333), (3, 333)]
    );
    assert_whole(&r);

    // An open loop: each agent has its places in the one schedule.
    let rest = ["--agents", "3", "-c", "20", "--rate", "100", "-n", "200"];
    let output = load("http", &target, &broker.url, &rest);
    assert!(output.status.success(), "{}", stderr(&output));
    let r = report(&output);
    let open = r.open_loop.as_ref().unwrap();
    assert_eq!((open.scheduled, open.started, open.rate_per_s), (200, 200, 100.0));
    assert_eq!(r.requests, 200);
    assert!(r.seconds.len() >= 2);
    assert_eq!(r.seconds.iter().map(|s| s.requests).sum::<u64>(), 200);
    assert_whole(&r);
}

fn echo_messages_of_each_connection_are_counted_over_all_agents() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = three(&broker.url);
    let rest = ["--agents", "2", "-c", "5", "--messages", "7", "--size", "100"];
    let output = load("echo", &addr, &broker.url, &rest);
    assert!(output.status.success(), "{}", stderr(&output));
    let r = report(&output);
    assert_eq!((r.connected, r.verified_connections, r.requests, r.bytes_received), (5, 5, 35, 3_500));
    assert_whole(&r);
}

fn seconds_of_all_agents_come_as_one_line_each() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = three(&broker.url);
    let args = [
        "load",
        "echo",
        &addr,
        "--nats",
        &broker.url,
        "--agents",
        "3",
        "-c",
        "6",
        "-n",
        "120",
        "--rate",
        "60",
    ];
    let mut load = std::process::Command::new(crate::kit::TIDEGATE);
    load.args(args).args(["--ndjson", "--clock-bound", "1.5"]);
    let output = begun_in_time(|| load.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = String::from_utf8_lossy(&output.stdout);
    let seconds: Vec<tidegate_load::Second> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seconds.iter().map(|s| s.requests).sum::<u64>(), 120, "{lines}");
    assert!(seconds[0].latency_us.p50 > 0);
    assert!(stderr(&output).contains("agent        a3: 2 connections, 40 requests"), "{}", stderr(&output));
}
