//! A broker, or the way to it, that is only slow. Either the result is as right as ever, or what was late is said.

use crate::harness;
use libtest_mimic::Trial;
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;
use tidegate_load::Report;

use crate::kit::{
    Broker, Guard, agent, begin, finish, load, report, seen_to_run, server, stderr, talking_agent,
};
use crate::relay::{Relay, Way};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            a_broker_that_is_far_away_changes_nothing_in_the_result,
            a_way_that_is_slow_in_one_direction_only_moves_clocks_within_their_bound,
            what_was_kept_on_the_way_and_comes_at_once_is_counted_as_ever,
            a_broker_that_stands_still_for_a_moment_costs_nothing_or_is_named,
            a_start_that_comes_too_late_is_said,
            an_agent_that_cannot_be_heard_any_more_is_dismissed,
            a_broker_that_falls_silent_before_the_start_is_named,
            who_was_dismissed_hears_it_also_if_the_word_was_lost,
            who_is_to_end_hears_it_also_if_the_word_was_lost
        ],
    )
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An agent whose way to the broker is slow.
fn slow_agent(broker: &Broker, name: &str, delays: [Duration; 2]) -> (Relay, Guard) {
    let relay = Relay::start(&broker.url, delays);
    let agent = agent(&relay.url, name, &[]);
    (relay, agent)
}

/// Nothing is missing, nothing is too much, and nobody says anything else.
fn assert_right(output: &Output, report: &Report, requests: u64) {
    let together = report.together.as_ref().unwrap();
    assert!(output.status.success() && together.troubles.is_empty(), "{}", stderr(output));
    assert_eq!((report.requests, report.failed), (requests, 0));
    assert_eq!(report.open_loop.as_ref().unwrap().scheduled, requests);
    assert_eq!(report.seconds.iter().map(|s| s.requests).sum::<u64>(), requests);
    assert!(together.agents.iter().all(|a| a.counted && a.loss.is_none()));
}

/// All clocks here are one, so what an agent's seems to be ahead is the error, and that may be half a round trip.
fn assert_clocks_within_their_bound(report: &Report, least_ms: f64) {
    for agent in &report.together.as_ref().unwrap().agents {
        assert!(agent.round_trip_us >= least_ms * 1e3, "a round trip cannot be so quick: {agent:?}");
        // The two clocks of a reading are read one after the other, and adjtime(3) may slew one of them meanwhile.
        assert!(agent.clock_ahead_us.abs() <= agent.round_trip_us / 2.0 + 1e4, "{agent:?}");
    }
}

fn a_broker_that_is_far_away_changes_nothing_in_the_result() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let delays = [ms(300); 2];
    let _agents = ["a1", "a2"].map(|name| slow_agent(&broker, name, delays));
    let lead = Relay::start(&broker.url, delays);
    let rest = ["--agents", "2", "-c", "6", "--rate", "30", "-n", "61"];
    let output = load("echo", &addr, &lead.url, &rest);
    let r = report(&output);
    assert_right(&output, &r, 61);
    assert_clocks_within_their_bound(&r, 1_200.0);
    // Half a round trip is more than the bound that is given without --clock-bound: that is said, and nothing is begun.
    let output = load("echo", &addr, &lead.url, &[&rest[..], &["--clock-bound", "0.5"]].concat());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("so its start cannot be determined exactly; the load was not started"), "{text}");
}

fn a_way_that_is_slow_in_one_direction_only_moves_clocks_within_their_bound() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _there = slow_agent(&broker, "there", [Duration::ZERO, ms(400)]);
    let _back = slow_agent(&broker, "back", [ms(400), Duration::ZERO]);
    let rest = ["--agents", "2", "-c", "2", "--rate", "20", "-n", "20"];
    let output = load("echo", &addr, &broker.url, &rest);
    let r = report(&output);
    assert_right(&output, &r, 20);
    assert_clocks_within_their_bound(&r, 400.0);
    // It could not be known, and is the most that it can be.
    let agents = &r.together.as_ref().unwrap().agents;
    let ahead = |name: &str| agents.iter().find(|a| a.name == name).unwrap().clock_ahead_us;
    assert!(ahead("there") > 0.0 && ahead("back") < 0.0, "{agents:?}");
}

fn what_was_kept_on_the_way_and_comes_at_once_is_counted_as_ever() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let (relay, _a1) = slow_agent(&broker, "a1", [Duration::ZERO; 2]);
    let _a2 = agent(&broker.url, "a2", &[]);
    // From its third message of a second on, and the result is among what is kept.
    relay.hold_at("\"event\":\"second\"", ms(2_500));
    let rest = ["--agents", "2", "-c", "4", "--rate", "30", "-n", "60", "--agent-timeout", "30"];
    let child = begin("echo", &addr, &broker.url, &[&rest[..], &["--clock-bound", "30"]].concat());
    relay.wait_until_held();
    let output = finish(child);
    assert_right(&output, &report(&output), 60);
}

fn a_broker_that_stands_still_for_a_moment_costs_nothing_or_is_named() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = ["a1", "a2"].map(|name| agent(&broker.url, name, &[]));
    let json = tempfile::NamedTempFile::new().unwrap();
    let path = json.path().to_str().unwrap();
    let rest = ["--agents", "2", "-c", "4", "--rate", "30", "-n", "180", "--json", path];
    let child = seen_to_run(&broker.url, &addr, &[&rest[..], &["--agent-timeout", "30"]].concat());
    broker.process.signal(Signal::STOP);
    std::thread::sleep(ms(2_500)); // the time it is suspended
    broker.process.signal(Signal::CONT);
    let output = finish(child);
    let r: Report = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    if output.status.success() {
        return assert_right(&output, &r, 180);
    }
    // It was longer on a machine that is busy: then messages are missing, or somebody is lost.
    let troubles = &r.together.as_ref().unwrap().troubles;
    assert!(!troubles.is_empty() && stderr(&output).contains(&troubles[0]), "{}", stderr(&output));
}

fn a_start_that_comes_too_late_is_said() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = ["a1", "a2"].map(|name| agent(&broker.url, name, &[]));
    let lead = Relay::start(&broker.url, [Duration::ZERO; 2]);
    lead.hold_at("\"ask\":\"start\"", ms(3_000));
    let rest = ["--agents", "2", "-c", "4", "--rate", "30", "-n", "60", "--on-lost", "continue"];
    let output = load("echo", &addr, &lead.url, &[&rest[..], &["--clock-bound", "1.5"]].concat());
    let r = report(&output);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for name in ["a1", "a2"] {
        assert!(text.contains(&format!("agent {name} began ")) && text.contains(" s too late"), "{text}");
    }
    // All of it was done all the same.
    assert_eq!((r.requests, r.failed), (60, 0), "{text}");
}

fn an_agent_that_cannot_be_heard_any_more_is_dismissed() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let (relay, _a1) = slow_agent(&broker, "a1", [Duration::ZERO; 2]);
    let _a2 = agent(&broker.url, "a2", &[]);
    let rest = ["--agents", "2", "-c", "4", "--rate", "60", "-d", "300", "--on-lost", "stop"];
    let child = seen_to_run(&broker.url, &addr, &rest);
    relay.hold(&[Way::ToBroker]);
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("agent a1 has said nothing for 10.0 s"), "{text}");
    // What it still says is of nobody's run; it is free for the next.
    relay.let_go();
    let rest = ["--agents", "2", "-c", "2", "-n", "8", "--agents-wait", "40"];
    let output = load("echo", &addr, &broker.url, &rest);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(report(&output).requests, 8);
}

fn a_broker_that_falls_silent_before_the_start_is_named() {
    let broker = Broker::start(&[]).expect("nats-server");
    let _agent = agent(&broker.url, "a1", &[]);
    // The last two are reached only by who found its agent, and asked it in time: a busy machine needs longer for that.
    for (part, wait, timeout, said) in [
        ("tidegate.hail", "1", "1", "it stopped answering"),
        ("\"ask\":\"clock\"", "60", "5", "does not answer"),
        ("\"ask\":\"work\"", "60", "5", "does not answer"),
    ] {
        let lead = Relay::start(&broker.url, [Duration::ZERO; 2]);
        lead.hold_at(part, ms(120_000));
        let waits = ["--agents-wait", wait, "--agent-timeout", timeout];
        let rest = [&["--agents", "1", "-c", "1", "-n", "1"], &waits[..]].concat();
        let child = begin("echo", "127.0.0.1:9", &lead.url, &rest);
        lead.wait_until_held();
        let output = finish(child);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{part}: {text}");
        // On a busy machine the client of the broker may be the first to notice.
        let named = text.contains(said) || text.contains("the connection to the broker is lost");
        assert!(named && output.stdout.is_empty(), "{part}: {text}");
    }
}

fn who_was_dismissed_hears_it_also_if_the_word_was_lost() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let relay = Relay::start(&broker.url, [Duration::ZERO; 2]);
    let (_a1, says) = talking_agent(&relay.url, "a1", &[]);
    let _a2 = agent(&broker.url, "a2", &[]);
    let rest = ["--agents", "2", "-c", "4", "--rate", "60", "-d", "30", "--on-lost", "continue"];
    let child = seen_to_run(&broker.url, &addr, &rest);
    relay.break_at("\"word\":\"dismiss\"");
    relay.hold(&[Way::ToBroker]);
    relay.wait_until_held();
    says.wait_for("is over: the lead dismissed it");
    let output = finish(child);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("agent        a1: no result"), "{}", stderr(&output));
}

fn who_is_to_end_hears_it_also_if_the_word_was_lost() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let (relay, _a1) = slow_agent(&broker, "a1", [Duration::ZERO; 2]);
    let _a2 = agent(&broker.url, "a2", &[]);
    let rest = ["--agents", "2", "-c", "4", "--rate", "60", "-d", "300", "--agent-timeout", "30"];
    let child = seen_to_run(&broker.url, &addr, &[&rest[..], &["--on-lost", "continue"]].concat());
    relay.break_at("\"word\":\"stop\"");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let output = finish(child); // long before its 300 s
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("agent        a1: 2 connections") && text.contains("interrupted"), "{text}");
}
