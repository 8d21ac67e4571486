//! `tidegate doctor` lists every model and every limit, for people and for programs.

use tidegate::{Model, Policy};

use crate::kit::{run, tidegate, with_descriptors};

#[test]
fn every_model_is_listed_with_what_it_is_here() {
    let outcome = run(&mut tidegate(&["doctor"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    for &model in Model::ALL {
        let is_named = |line: &&str| line.split([' ', ',', ':']).any(|word| word == model.name());
        let line = outcome.stdout.lines().find(is_named).expect("a line");
        assert_eq!(line.starts_with("unavailable: "), !model.availability().is_available(), "{line}");
    }
    assert!(outcome.stdout.contains(&format!("auto is {}: ", Model::best().model)));
}

#[test]
fn tables_fit_a_hundred_columns() {
    let stdout = run(&mut tidegate(&["doctor"])).stdout;
    let tables = stdout.lines().filter(|line| line.starts_with([' ', '─', '═']));
    assert!(tables.map(|line| line.chars().count()).max().is_some_and(|widest| widest <= 100), "{stdout}");
}

#[test]
fn a_small_limit_comes_with_its_remedy() {
    let outcome = run(&mut with_descriptors(300, &["doctor"]));
    let row = outcome.stdout.lines().find(|line| line.contains("descriptors (hard)")).unwrap();
    assert!(row.contains(" 300 ") && outcome.stdout.contains("LimitNOFILE=100000"), "{}", outcome.stdout);
}

#[test]
fn idle_connections_that_fit_into_the_kernel_are_counted_by_what_each_takes_there() {
    let outcome = run(&mut tidegate(&["doctor", "--json"]));
    let doctor: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let limits = doctor["limits"].as_array().unwrap();
    let row = |name: &str| limits.iter().find(|limit| limit["name"] == name).expect("a row");
    let quarter = row("memory, bytes")["value"].as_u64().unwrap() / 4;
    let kernel = row("idle connections that fit into a quarter of it in the kernel");
    let fit = kernel["value"].as_u64().unwrap();
    let bound = Model::best().model.memory_bound(&Policy::default());
    let of = |connections| bound.kernel_process + connections * bound.kernel_each_connection;
    assert!(of(fit) <= quarter && quarter < of(fit + 1), "{fit} in {quarter}: {bound:?}");
    // On a machine where they are too few, the option that bounds them is named.
    let few = fit < Policy::default().max_connections as u64;
    assert_eq!(
        kernel["remedy"].as_str().is_some_and(|text| text.contains("--kernel-memory")),
        few,
        "{kernel}"
    );
}

#[test]
fn programs_read_json() {
    let outcome = run(&mut with_descriptors(300, &["doctor", "--json"]));
    assert_eq!(outcome.code, Some(0));
    let doctor: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let models = doctor["models"].as_array().unwrap();
    let names: Vec<_> = models.iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert!(names.into_iter().eq(Model::ALL.iter().map(|model| model.name())));
    assert!(models.iter().all(|m| m["available"].is_boolean() && m["remark"].is_string()));
    assert_eq!(doctor["auto"]["model"], Model::best().model.name());
    let transports = doctor["transports"].as_array().unwrap();
    let names: Vec<_> = transports.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fast path", "sockmap", "busy polling", "datagrams"]);
    assert!(transports.iter().all(|one| one["available"].is_boolean() && one["remark"].is_string()));
    assert_eq!(transports[0]["available"], cfg!(target_os = "linux"));
    let limits = doctor["limits"].as_array().unwrap();
    let hard = limits.iter().find(|limit| limit["key"] == "nofile_hard").unwrap();
    assert_eq!(hard["value"], 300);
    assert!(hard["remedy"].is_string());
}
