//! What agents carry, and what they do not: encrypted targets, experiments of the lab, other loads.

use std::process::{Command, Stdio};

use crate::kit::{Broker, TIDEGATE, agent, finish, load, report, server_with, stderr, three};

#[test]
fn encrypted_targets_are_reached_from_agents() {
    let Some(broker) = Broker::start(&[]) else { return };
    let papers = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = papers.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pair = |name: &str| rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let (right, other) = (pair("127.0.0.1"), pair("127.0.0.1"));
    let (ca, key) = (write("cert", right.cert.pem()), write("key", right.signing_key.serialize_pem()));
    let stranger = write("other", other.cert.pem());
    let (_server, addr) = server_with("http", &["--tls-cert", &ca, "--tls-key", &key]);
    let _agents = three(&broker.url);
    let target = format!("https://{addr}/");
    let common = ["--agents", "3", "-c", "7", "-n", "100"];
    let output = load("http", &target, &broker.url, &[&common[..], &["--tls-ca", &ca]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let r = report(&output);
    assert_eq!((r.requests, r.failed, r.connected), (100, 0, 7));
    assert_eq!(r.tls.map(|tls| tls.handshakes), Some(7), "of all agents together");
    // The text of the file goes to the agents, and they do look at it.
    let rest = [&common[..], &["--tls-ca", &stranger, "--timeout", "5"]].concat();
    let output = load("http", &target, &broker.url, &rest);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report(&output).requests, 0);
    assert!(stderr(&output).contains("certificate"), "{}", stderr(&output));
}

#[test]
fn an_experiment_of_the_lab_is_carried_by_agents() {
    let Some(broker) = Broker::start(&["--auth", "word"]) else { return };
    let papers = tempfile::tempdir().unwrap();
    let token = papers.path().join("token");
    std::fs::write(&token, "word").unwrap();
    let token = token.to_str().unwrap();
    let _agents = ["a1", "a2"].map(|name| agent(&broker.url, name, &["--nats-token-file", token]));
    let out = papers.path().join("report");
    let bench = |experiment: &str| {
        let child = Command::new(TIDEGATE)
            .args(["bench", experiment, "--models", "poll", "--connections", "4", "--requests", "1000"])
            .args(["--repeats", "1", "--nats", &broker.url, "--agents", "2", "--nats-token-file", token])
            .arg("--out")
            .arg(&out)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        finish(child)
    };
    let output = bench("concurrency");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", stderr(&output));
    let run = text.lines().find_map(|line| line.strip_prefix("run: ")?.split(' ').next()).unwrap();
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(run).unwrap()).unwrap();
    assert_eq!(run["settings"]["concurrency: agents"], "2");
    assert_eq!(run["rows"][0]["certificates"].as_array().unwrap().len(), 1, "{run}");

    let output = bench("latency");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("agents carry the loads of `bench concurrency`"), "{}", stderr(&output));
}

#[test]
fn loads_that_agents_do_not_carry_say_so() {
    for kind in ["udp", "ping", "chat", "attack"] {
        for option in [["--nats", "nats://127.0.0.1:4222"], ["--agents", "2"]] {
            let output =
                Command::new(TIDEGATE).args(["load", kind, "127.0.0.1:9"]).args(option).output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{kind}: {text}");
            assert!(text.contains("agents carry `load http` and `load echo` only"), "{kind}: {text}");
        }
    }
}
