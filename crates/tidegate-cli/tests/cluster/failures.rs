//! What goes wrong between agents is said, and the exit code is 1.

use crate::harness;
use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::kit::{Broker, agent, begin, finish, load, report, seen_to_run, server, stderr, three};

pub(crate) fn trials() -> Vec<Trial> {
    harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            an_agent_that_is_killed_ends_the_load_and_is_named,
            a_broker_that_stands_still_is_named_and_the_agents_end_their_load,
            a_broker_that_dies_is_named,
            a_clock_that_is_two_seconds_off_is_refused_or_reported,
            a_clock_that_is_set_during_the_run_is_reported_and_moves_nothing_else,
            a_target_that_is_not_on_the_list_is_refused,
            too_few_agents_are_counted_and_waited_for_no_longer_than_asked,
            a_signal_ends_the_load_on_every_agent
        ],
    )
}

/// A load over three agents that is longer than anybody waits for its end; its first second is over.
fn under_way(url: &str, addr: &str, rest: &[&str]) -> std::process::Child {
    let fixed = ["--agents", "3", "-c", "6", "--rate", "60", "-d", "300"];
    seen_to_run(url, addr, &[&fixed[..], rest].concat())
}

fn an_agent_that_is_killed_ends_the_load_and_is_named() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let mut agents = three(&broker.url);
    let child = under_way(&broker.url, &addr, &[]);
    agents[1].0.kill().unwrap();
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("agent a2 has said nothing for 10.0 s"), "{text}");
    assert!(
        text.contains("its part is not in the result") && text.contains("agent        a2: no result"),
        "{text}"
    );
}

fn a_broker_that_stands_still_is_named_and_the_agents_end_their_load() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = three(&broker.url);
    let child = under_way(&broker.url, &addr, &[]);
    broker.process.signal(Signal::STOP);
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("there is no result") && text.contains("broker"), "{text}");
    // It goes on, and the agents are free for the next load: nobody works for a lead that is gone.
    broker.process.signal(Signal::CONT);
    let rest = ["--agents", "3", "-c", "3", "-n", "9", "--agents-wait", "40"];
    let output = load("echo", &addr, &broker.url, &rest);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(report(&output).requests, 9);
}

fn a_broker_that_dies_is_named() {
    let mut broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _agents = three(&broker.url);
    let child = under_way(&broker.url, &addr, &[]);
    broker.process.0.kill().unwrap();
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the connection to the broker is lost"), "{text}");
}

fn a_clock_that_is_two_seconds_off_is_refused_or_reported() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _good = agent(&broker.url, "good", &[]);
    let _fast = agent(&broker.url, "fast", &["--clock-offset", "2"]);
    let rest = ["--agents", "2", "-c", "2", "-n", "10"];
    let output = load("echo", &addr, &broker.url, &rest);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("the clock of agent fast is ") && text.contains("the load was not started"),
        "{text}"
    );
    assert!(output.stdout.is_empty());

    let output = load("echo", &addr, &broker.url, &[&rest[..], &["--on-lost", "continue"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let r = report(&output);
    // The start is by a clock that nobody sets, so the load itself is whole.
    assert_eq!(r.requests, 10);
    let together = r.together.unwrap();
    assert!(together.troubles.iter().any(|trouble| trouble.contains("ahead of this one")), "{together:?}");
    assert!((together.agents[0].clock_ahead_us / 1e6 - 2.0).abs() < 0.5, "{together:?}");
}

fn a_clock_that_is_set_during_the_run_is_reported_and_moves_nothing_else() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _good = agent(&broker.url, "good", &[]);
    let _set = agent(&broker.url, "set", &["--clock-jump", "-3"]);
    let rest = ["--agents", "2", "-c", "2", "--rate", "20", "-n", "60", "--on-lost", "continue"];
    let output = load("echo", &addr, &broker.url, &[&rest[..], &["--clock-bound", "1.5"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let r = report(&output);
    let together = r.together.as_ref().unwrap();
    let says = "the clock of agent set was set during the run, by ";
    assert!(together.troubles.iter().any(|trouble| trouble.contains(says)), "{together:?}");
    // Everything is measured with a clock that nobody sets.
    assert_eq!((r.requests, r.open_loop.as_ref().unwrap().scheduled), (60, 60));
    assert!(r.elapsed_s >= 2.9, "60 at 20 a second: {}", r.elapsed_s); // by the clock that was set, next to nothing
    assert!(together.agents.iter().all(|a| a.counted && a.loss.is_none()));
}

fn a_target_that_is_not_on_the_list_is_refused() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _careful = agent(&broker.url, "careful", &["--allow", "192.0.2.0/24"]);
    let output = load("echo", &addr, &broker.url, &["--agents", "1", "-c", "1", "-n", "1"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("agent careful refuses") && text.contains("allow-list"), "{text}");
    // Without a list nothing is allowed, this machine no more than another, and that is said before anybody waits for
    // it.
    let output = std::process::Command::new(crate::kit::TIDEGATE)
        .args(["agent", "--nats", &broker.url])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--allow 127.0.0.0/8"), "{}", stderr(&output));
}

fn too_few_agents_are_counted_and_waited_for_no_longer_than_asked() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let _one = agent(&broker.url, "one", &[]);
    let rest = ["--agents", "2", "-c", "2", "-n", "2", "--agents-wait", "5"];
    let output = load("echo", &addr, &broker.url, &rest);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1 of 2 agents came within 5 s") && text.contains("tidegate agent"), "{text}");
    // One that comes late is still waited for.
    let rest = ["--agents", "2", "-c", "2", "-n", "2", "--agents-wait", "50", "--clock-bound", "30"];
    let child = begin("echo", &addr, &broker.url, &rest);
    let _late = agent(&broker.url, "two", &[]);
    let output = finish(child);
    assert!(output.status.success(), "{}", stderr(&output));
}

fn a_signal_ends_the_load_on_every_agent() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (_server, addr) = server("echo");
    let mut agents = three(&broker.url);
    let child = under_way(&broker.url, &addr, &[]);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("interrupted") && text.contains("agent        a3: 2 connections"), "{text}");
    // An agent without work ends at once, and well.
    agents[0].signal(Signal::INT);
    assert!(agents[0].wait().success());
}
