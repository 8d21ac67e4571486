//! A control group of version 2 (`cgroups(7)`) whose processes use the sockmap.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::SockmapError;

/// Every group of version 2 has this file, and none of version 1.
const MARK: &str = "cgroup.controllers";

/// Number of groups this process has named.
static GROUPS: AtomicU64 = AtomicU64::new(0);

/// A control group. Removed on drop if it was created here and is empty.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    made: bool,
}

impl ControlGroup {
    /// Creates a new group inside the group of this process, with a new name for each call.
    ///
    /// # Errors
    /// No version 2 hierarchy is mounted, or the group cannot be created.
    pub fn own() -> Result<Self, SockmapError> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let inside = home(&mounts, &groups).ok_or(SockmapError::NoGroups)?;
        Self::new_in(&inside)
    }

    /// Creates a group in this one under an unused name: a killed process leaves its group behind.
    fn new_in(inside: &Path) -> Result<Self, SockmapError> {
        loop {
            let (process, number) = (std::process::id(), GROUPS.fetch_add(1, Relaxed));
            match Self::make(inside.join(format!("tidegate-fastpath-{process}-{number}"))) {
                Err(SockmapError::Group { error, .. }) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
    }

    /// Opens the group at `path`, and creates it if it does not exist.
    ///
    /// # Errors
    /// It is not a group of version 2, or cannot be created.
    pub fn at(path: &Path) -> Result<Self, SockmapError> {
        if path.exists() {
            return match path.join(MARK).exists() {
                true => Ok(Self { path: path.into(), made: false }),
                false => Err(SockmapError::NoGroup(path.display().to_string())),
            };
        }
        match path.parent() {
            Some(parent) if parent.join(MARK).exists() => Self::make(path.into()),
            _ => Err(SockmapError::NoGroup(path.display().to_string())),
        }
    }

    fn make(path: PathBuf) -> Result<Self, SockmapError> {
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self { path, made: true }),
            Err(error) => Err(SockmapError::Group { path: path.display().to_string(), error }),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file through which processes join it: a process that writes `0` to it joins.
    ///
    /// # Errors
    /// It is not writable.
    pub fn processes(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_dir(&self.path); // it stays if a process is still in it
        }
    }
}

/// The folder of a process's group, computed from `/proc/PID/mountinfo` and `/proc/PID/cgroup`.
fn home(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mut mounted = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_version_2 = kind.split(' ').next() == Some("cgroup2");
        let mut fields = place.split(' ').skip(3);
        is_version_2.then_some((fields.next()?, fields.next()?))
    });
    let (root, mount) = mounted.next()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // Part of the hierarchy may be mounted, as in a container.
    let inside = group.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    Some(Path::new(mount).join(inside.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let mounts = "25 1 0:22 / /sys rw - sysfs sysfs rw\n\
                      31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let found = |mounts, groups| home(mounts, groups).map(|path| path.display().to_string());
        let here = "1:name=systemd:/x\n0::/user.slice/a\n";
        assert_eq!(found(mounts, here).as_deref(), Some("/sys/fs/cgroup/user.slice/a"));
        assert_eq!(found(mounts, "0::/\n").as_deref(), Some("/sys/fs/cgroup/"));
        let part = "31 25 0:27 /docker/7 /sys/fs/cgroup rw - cgroup2 none rw\n";
        assert_eq!(found(part, "0::/docker/7/inner\n").as_deref(), Some("/sys/fs/cgroup/inner"));
        assert_eq!(found("31 25 0:27 / /sys/fs/cgroup rw - cgroup none rw\n", here), None);
        assert_eq!(found(mounts, "1:name=systemd:/x\n"), None);
    }

    #[test]
    fn each_group_is_another_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let next = GROUPS.load(Relaxed);
        let left_behind = (next..next + 2).map(|n| format!("tidegate-fastpath-{}-{n}", std::process::id()));
        left_behind.for_each(|name| std::fs::create_dir(folder.path().join(name)).expect("a folder"));
        let groups = [(); 3].map(|()| ControlGroup::new_in(folder.path()).expect("a group"));
        assert!(groups[0].path() != groups[1].path() && groups[1].path() != groups[2].path());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 5);
        drop(groups);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2, "each removes its own");
    }

    #[test]
    fn a_folder_that_is_no_group_is_refused() {
        let refused = |path: &str| ControlGroup::at(Path::new(path)).unwrap_err().to_string();
        assert!(refused("/").contains("not inside a cgroup2 mount"), "{}", refused("/"));
        assert!(refused("/there/is/nothing").contains("cgroup2"));
    }
}
