//! A limit on processes, which counts threads: the superuser is not bound by it, so another user has to take his place.

use libtest_mimic::Trial;
use rustix::process::Signal;
use tidegate::Model;

use crate::harness;
use crate::kit::{self, Outcome, Server, run, with_processes};

pub fn trials() -> Vec<Trial> {
    let can = run(&mut with_processes(64, &["--version"])).code == Some(0);
    let what = "folders that let another user run this program, and `ulimit -u`";
    harness::needs(can, what, tests![threads_that_cannot_be_had_are_an_error_at_the_start])
}

fn threads_that_cannot_be_had_are_an_error_at_the_start() {
    for model in Model::available() {
        for limit in [1, 2, 3, 5, 8, 11, 64] {
            let mut options = kit::http_args(model);
            if model != Model::Pool {
                options.extend(["--threads", "8"]);
            }
            match Server::attempt(&mut with_processes(limit, &options)) {
                Ok(server) => {
                    server.signal(Signal::TERM);
                    let (status, _, stderr) = server.ended();
                    assert_eq!(status.code(), Some(0), "{model}, {limit} processes: {stderr:?}");
                }
                Err(Outcome { code, stdout, stderr }) => {
                    let says = stderr.lines().last().unwrap_or_default();
                    let is_clear = says.starts_with("error: ") && !stderr.contains("panicked");
                    assert!(is_clear, "{model}, {limit} processes: {stderr}");
                    // A model that cannot be looked at without a thread counts as unavailable, which is bad usage.
                    let expected = if says.contains("is unavailable") { 2 } else { 1 };
                    assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{model}, {limit}: {stderr}");
                    assert_ne!(limit, 64, "{model}: {stderr}");
                }
            }
        }
    }
}
