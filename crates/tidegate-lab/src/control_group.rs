//! The control groups of this process that may limit its processor time (`cgroups(7)`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::Bench;

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CgroupVersion {
    /// A hierarchy for each controller.
    One,
    /// One for all (`cgroup2`).
    Two,
}

/// A group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cgroup {
    pub(crate) folder: PathBuf,
    pub(crate) version: CgroupVersion,
}

/// Those of this process, of version 1 first.
pub(crate) fn own() -> Vec<Cgroup> {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    found(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn found(groups: &str, mounts: &str) -> Vec<Cgroup> {
    let own = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    let mut found = Vec::new();
    for (controllers, path) in groups.lines().filter_map(own) {
        let version = match controllers.as_str() {
            "" => CgroupVersion::Two,
            names if names.split(',').any(|name| name == "cpu") => CgroupVersion::One,
            _ => continue,
        };
        let folder = mounts.lines().find_map(|line| below(line, version, &path));
        found.extend(folder.map(|folder| Cgroup { folder, version }));
    }
    found.sort_by_key(|group| group.version);
    found
}

/// Where the group `path` is, if this line of `mountinfo` mounts its hierarchy (`proc_pid_mountinfo(5)`).
fn below(line: &str, version: CgroupVersion, path: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
    let (root, point) = (before.next()?, before.next()?);
    let (kind, options) = (after.next()?, after.nth(1)?);
    let fits = match version {
        CgroupVersion::Two => kind == "cgroup2",
        CgroupVersion::One => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
    };
    let inside = path.strip_prefix(root).unwrap_or(path);
    fits.then(|| Path::new(point).join(inside.trim_start_matches('/')))
}

/// A line about groups around this process that give server and load less time than their processors have.
pub(crate) fn too_small_a_quota(bench: &Bench, groups: &[Cgroup]) -> Option<String> {
    let processors: HashSet<usize> = bench.server_cpus.iter().chain(&bench.load_cpus).copied().collect();
    let quota = groups.iter().filter_map(least_quota).min_by(f64::total_cmp)?;
    (quota < processors.len() as f64).then(|| {
        format!(
            "a control group gives this program the time of {} of the {} processors of server and load, so each waits \
             for what the other has used: compare processor time of a request instead of rates, or raise the limit \
             (`--cpus` of a container, `CPUQuota` of systemd, `cpu.max`)",
            (quota * 100.0).round() / 100.0,
            processors.len()
        )
    })
}

/// The least of a group and those above it, in processors.
fn least_quota(group: &Cgroup) -> Option<f64> {
    let quotas = group.folder.ancestors().filter_map(|folder| quota(folder, group.version));
    quotas.min_by(f64::total_cmp)
}

/// None where there is no limit (`max`, or -1 µs).
fn quota(folder: &Path, version: CgroupVersion) -> Option<f64> {
    let read = |file| std::fs::read_to_string(folder.join(file)).ok();
    let text = match version {
        CgroupVersion::Two => read("cpu.max")?,
        CgroupVersion::One => read("cpu.cfs_quota_us")? + " " + &read("cpu.cfs_period_us")?,
    };
    let mut parts = text.split_whitespace().map_while(|part| part.parse::<f64>().ok());
    let (quota, period) = (parts.next()?, parts.next()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
                      31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                      32 23 0:28 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let groups = "3:cpuset:/\n0::/box/a/b\n1:cpu,cpuacct:/user";
        let group = |path: &str, version| Cgroup { folder: path.into(), version };
        assert_eq!(
            found(groups, mounts),
            [
                group("/sys/fs/cgroup/cpu/user", CgroupVersion::One),
                group("/sys/fs/cgroup/unified/a/b", CgroupVersion::Two)
            ]
        );
        assert_eq!(found("0::/", ""), []);
        assert_eq!(found("nonsense", mounts), []);
    }

    #[test]
    fn a_quota_around_server_and_load_is_named_with_the_remedy() {
        let above = tempfile::tempdir().unwrap();
        let inner = above.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let put = |folder: &Path, file, text| std::fs::write(folder.join(file), text).unwrap();
        let both = Bench::new("tidegate".into(), &[0, 1]);
        let groups = |version| [Cgroup { folder: inner.clone(), version }];
        let note = |version| too_small_a_quota(&both, &groups(version));
        assert_eq!(note(CgroupVersion::Two), None, "no files");
        put(above.path(), "cpu.max", "max 100000\n");
        put(&inner, "cpu.max", "200000 100000\n");
        assert_eq!(note(CgroupVersion::Two), None, "a processor each");
        put(above.path(), "cpu.max", "150000 100000\n");
        let said = note(CgroupVersion::Two).unwrap();
        assert!(said.contains("time of 1.5 of the 2 processors") && said.contains("CPUQuota"), "{said}");
        let one = Bench::new("tidegate".into(), &[0]);
        assert_eq!(too_small_a_quota(&one, &groups(CgroupVersion::Two)), None, "they share one");
        for (quota, is_named) in [("-1\n", false), ("100000\n", true)] {
            put(&inner, "cpu.cfs_quota_us", quota);
            put(&inner, "cpu.cfs_period_us", "100000\n");
            assert_eq!(note(CgroupVersion::One).is_some(), is_named, "{quota}");
        }
    }
}
