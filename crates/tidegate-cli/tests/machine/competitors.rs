//! A measurement where no control group can be made: threads of the lab take the rest of the server's processor.

use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;
use tidegate_lab::report::Results;

use crate::harness;

/// Runs the words behind it where no control groups are mounted.
const WITHOUT_GROUPS: &str = "umount -l -R /sys/fs/cgroup && exec \"$0\" \"$@\"";

pub fn trials() -> Vec<Trial> {
    let is_possible = tidegate::system::allowed_cpus().len() > 1
        && without_groups("true", &[]).is_ok_and(|output| output.status.success());
    let what = "two processors, and the right to unmount control groups (unshare)";
    harness::needs(is_possible, what, tests![without_control_groups_busy_threads_leave_the_server_its_share])
}

fn without_groups(program: &str, args: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", WITHOUT_GROUPS, program]).args(args);
    command.stdin(Stdio::null()).output()
}

fn without_control_groups_busy_threads_leave_the_server_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = vec!["bench", "concurrency", "--models", "epoll,poll", "--connections", "20"];
    args.extend(["--requests", "2000", "--repeats", "2", "--out", folder.path().to_str().unwrap()]);
    let output = without_groups(env!("CARGO_BIN_EXE_tidegate"), &args).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let table = serde_json::from_str::<Results>(&text).unwrap().concurrency.unwrap();
    assert_eq!(table.throttle, "busy threads of the lab on the same processor");
    assert_eq!((table.points.len(), table.failed.len()), (2, 0), "{table:?}");
    for point in &table.points {
        // One of the threads that share a processor evenly is the server's.
        let threads = 1.0 / point.share;
        assert!(threads >= 1.0 && (threads - threads.round()).abs() < 1e-9, "{point:?}");
        let figures = &point.figures;
        assert_eq!((figures.failed, figures.verdicts.len()), (0, 2), "{point:?}");
        // A server on one processor has at most all of it.
        for (rate, whole) in figures.requests_per_s.rounds.iter().zip(&figures.per_processor_s.rounds) {
            assert!(*rate > 0.0 && *rate <= whole * 1.1, "{point:?}");
        }
    }
}
