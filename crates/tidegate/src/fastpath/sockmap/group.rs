//! A control group of version 2 (`cgroups(7)`), whose programs take part.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::SockmapError;

/// Every group of version 2 has this file, and none of version 1.
const MARK: &str = "cgroup.controllers";

/// A control group. Removed when dropped if it was made here and nobody is in it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    made: bool,
}

impl Group {
    /// A new group inside of the one that this process is in.
    ///
    /// # Errors
    /// No groups of version 2 are mounted, or it cannot be made.
    pub fn own() -> Result<Self, SockmapError> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let inside = home(&mounts, &groups).ok_or(SockmapError::NoGroups)?;
        Self::make(inside.join(format!("tidegate-fastpath-{}", std::process::id())))
    }

    /// The group at `path`, made if it is not there.
    ///
    /// # Errors
    /// It is no group of version 2, or cannot be made.
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file through which processes join it: whoever writes `0` to it does.
    ///
    /// # Errors
    /// It may not be written.
    pub fn processes(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_dir(&self.path); // somebody may be in it still: then it stays
        }
    }
}

/// The folder of the group that a process is in, from what `/proc/PID/mountinfo` and `/proc/PID/cgroup` say.
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
    fn a_folder_that_is_no_group_is_refused() {
        let refused = |path: &str| Group::at(Path::new(path)).unwrap_err().to_string();
        assert!(refused("/").contains("no control group"), "{}", refused("/"));
        assert!(refused("/there/is/nothing").contains("cgroup2"));
    }
}
