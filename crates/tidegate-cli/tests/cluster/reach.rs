//! What agents carry, and what they do not: encrypted targets, experiments of the lab, other loads.

use crate::harness;
use libtest_mimic::Trial;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::established::established;
use crate::kit::{
    Broker, LONGEST, TIDEGATE, agent, begun_in_time, finish, load, report, server, server_with, stderr, three,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = tests![
        the_password_in_the_url_is_in_no_error_of_an_experiment,
        who_one_is_to_no_broker_is_bad_usage,
        loads_that_agents_do_not_carry_say_so
    ];
    all.extend(harness::needs(
        crate::kit::nats_server().is_some(),
        crate::kit::NATS_SERVER,
        tests![
            encrypted_targets_are_reached_from_agents,
            experiments_of_the_lab_are_carried_by_agents,
            connections_are_held_until_a_line_comes_and_not_longer
        ],
    ));
    all
}

fn encrypted_targets_are_reached_from_agents() {
    let broker = Broker::start(&[]).expect("nats-server");
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

fn experiments_of_the_lab_are_carried_by_agents() {
    let broker = Broker::start(&["--auth", "word"]).expect("nats-server");
    let papers = tempfile::tempdir().unwrap();
    let token = papers.path().join("token");
    std::fs::write(&token, "word").unwrap();
    let token = token.to_str().unwrap();
    let _agents = ["a1", "a2"].map(|name| agent(&broker.url, name, &["--nats-token-file", token]));
    let out = papers.path().join("report");
    let bench = |experiment: &str, sizes: &[&str]| {
        begun_in_time(|| {
            let child = Command::new(TIDEGATE)
                .args(["bench", experiment, "--models", "poll"])
                .args(sizes)
                .args(["--nats", &broker.url, "--agents", "2", "--nats-token-file", token])
                .arg("--out")
                .arg(&out)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            finish(child)
        })
    };
    let sizes = ["--connections", "4", "--requests", "1000", "--repeats", "1"];
    let output = bench("concurrency", &sizes);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", stderr(&output));
    let run = text.lines().find_map(|line| line.strip_prefix("run: ")?.split(' ').next()).unwrap();
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(run).unwrap()).unwrap();
    assert_eq!(run["settings"]["concurrency, a connection for each request: agents"], "2");
    assert_eq!(run["rows"][0]["verdicts"].as_array().unwrap().len(), 1, "{run}");

    // Table 6-3: several client machines, as the book has it.
    let output = bench("models", &["--connections", "6", "--seconds", "1", "--repeats", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("2 agents carried"), "{text} {}", stderr(&output));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    let rows = report["models"]["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((&row["connected"], &row["verified"]), (&6.into(), &6.into()), "{row}");
        assert_eq!(row["load"]["together"]["agents"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["usage"]["cpu_s"].as_f64() > Some(0.0), "{row}");
    }

    // Two sizes, so that agents have to be free again for the second.
    let output = bench("connections", &["--connections", "5,40", "--seconds", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", stderr(&output));
    assert!(
        text.contains("2 agents carried the connections; the probe beside them ran on the server's host")
    );
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    let rows = report["connections"]["rows"].as_array().unwrap();
    for (row, wanted, parts) in [(&rows[0], 5, [3, 2]), (&rows[1], 40, [20, 20])] {
        for count in ["asked", "attempted", "connected", "verified", "held"] {
            assert_eq!(row[count], wanted, "{count}: {row}");
        }
        assert!(row["probe_alone"]["round_trips"].as_u64() > Some(0), "{row}");
        assert!(row["probe_among"]["round_trips"].as_u64() > Some(0), "{row}");
        let agents = row["load"]["together"]["agents"].as_array().unwrap();
        assert_eq!(
            agents.iter().map(|a| a["connected"].as_u64().unwrap()).collect::<Vec<_>>(),
            parts,
            "{row}"
        );
    }

    for experiment in ["memory", "survival", "udp", "peers", "latency"] {
        let output = bench(experiment, &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{experiment}: {text}");
        assert!(text.contains(&format!("`bench {experiment}` cannot be run by agents: ")), "{text}");
    }
}

fn the_password_in_the_url_is_in_no_error_of_an_experiment() {
    let out = tempfile::tempdir().unwrap();
    let url = "nats://user:s3cret@127.0.0.1:1"; // no broker is there
    for (experiment, rounds, says) in [
        ("concurrency", &["--repeats", "1"][..], "poll at 4 failed: tidegate load http "),
        ("connections", &[], "poll with 4 failed: tidegate load echo "),
    ] {
        let child = Command::new(TIDEGATE)
            .args(["bench", experiment, "--models", "poll", "--connections", "4", "--nats", url])
            .args(rounds)
            .args(["--agents", "2", "--seconds", "1", "--out"])
            .arg(out.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = finish(child);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(says) && text.contains("check that nats-server runs there"), "{text}");
        let files = ["report.json", "report.html"].map(|file| std::fs::read_to_string(out.path().join(file)));
        for text in files.into_iter().map(Result::unwrap).chain([text]) {
            assert!(!text.contains("s3cret"), "{experiment}: {text}");
        }
    }
}

fn who_one_is_to_no_broker_is_bad_usage() {
    for command in [
        &["bench", "concurrency"][..],
        &["bench", "connections"],
        &["bench", "models"],
        &["load", "http", "127.0.0.1:1"],
        &["serve", "chat"],
    ] {
        let output = Command::new(TIDEGATE)
            .args(command)
            .args(["--nats-token-file", "token"])
            .current_dir(tempfile::tempdir().unwrap().path())
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
        assert!(text.contains("options that begin with --nats- need --nats URL"), "{command:?}: {text}");
    }
}

/// A load of four connections over two agents, which holds them; it has reported that.
fn holding(url: &str, addr: &str) -> Child {
    let mut child = Command::new(TIDEGATE)
        .args(["load", "echo", addr, "--nats", url, "--agents", "2", "-c", "4", "--messages", "1"])
        .args(["--phases", "--clock-bound", "30", "--agent-timeout", "10"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let phases: Vec<_> = lines.by_ref().filter(|line| line.starts_with("phase ")).take(3).collect();
    assert_eq!(phases, ["phase measuring", "phase connected 4 4", "phase done"]);
    std::thread::spawn(move || lines.for_each(drop)); // it never waits for us to read the rest
    child
}

fn connections_are_held_until_a_line_comes_and_not_longer() {
    let broker = Broker::start(&[]).expect("nats-server");
    let (server, addr) = server("echo");
    let mut agents = ["a1", "a2"].map(|name| agent(&broker.url, name, &[]));
    let open = || established(server.0.id(), addr.parse().unwrap());
    let mut child = holding(&broker.url, &addr);
    // Longer than agents wait for a lead that says nothing.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(11) {
        // The kernel may also overlook one while others come and go.
        assert!((0..20).any(|_| open() == 4), "{} are established", open());
        std::thread::sleep(Duration::from_millis(50));
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = finish(child);
    assert!(output.status.success(), "{}", stderr(&output));
    let begun = Instant::now();
    while open() > 0 {
        assert!(begun.elapsed() < LONGEST, "they stay open");
        std::thread::yield_now();
    }
    // One that is gone meanwhile is named.
    let mut child = holding(&broker.url, &addr);
    agents[1].0.kill().unwrap();
    agents[1].0.wait().unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = finish(child);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("agent a2 did not keep its connections open until the end"), "{text}");
}

fn loads_that_agents_do_not_carry_say_so() {
    for kind in ["udp", "ping", "chat", "attack"] {
        for option in [["--nats", "nats://127.0.0.1:4222"], ["--agents", "2"]] {
            let output =
                Command::new(TIDEGATE).args(["load", kind, "127.0.0.1:9"]).args(option).output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{kind}: {text}");
            assert!(text.contains("agents support `load http` and `load echo` only"), "{kind}: {text}");
        }
    }
}
