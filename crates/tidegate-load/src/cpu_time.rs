//! Processor time of a process and of all that it has started, as the system counts it: `/proc` (`proc(5)`), or the
//! accounting of Windows.

/// Processor time so far, in seconds, of a process, of those it has started and of the other members of its group; 0 if
/// all are gone.
///
/// Those alive are counted to the nanosecond (`clock_getcpuclockid(3)`); those that ended and were waited for, to the
/// tick.
#[must_use]
pub fn cpu_s(pid: u32) -> f64 {
    all_spent_s(&members(pid))
}

/// Processor time from one moment to another, of the same processes.
#[derive(Debug)]
pub struct CpuTime {
    pid: u32,
    members: Vec<u32>,
    before_s: f64,
}

impl CpuTime {
    /// From now on, of process `pid`.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let mut time = Self { pid, members: members(pid), before_s: 0.0 };
        time.restart();
        time
    }

    /// From now on, of the same processes, which need not be looked for again.
    pub(crate) fn restart(&mut self) {
        self.before_s = all_spent_s(&self.members);
    }

    /// Until now, in seconds.
    #[must_use]
    pub fn used_s(&self) -> f64 {
        let known_s = self.known_s(); // first: to look for others takes a while, in which these go on
        known_s + self.new_s()
    }

    /// The same of the processes that were there at the beginning.
    pub(crate) fn known_s(&self) -> f64 {
        (all_spent_s(&self.members) - self.before_s).max(0.0)
    }

    /// The same of those that have been started since.
    pub(crate) fn new_s(&self) -> f64 {
        let new = members(self.pid).into_iter().filter(|member| !self.members.contains(member));
        new.map(spent_s).sum()
    }
}

fn members(pid: u32) -> Vec<u32> {
    let known = family_ids(pid);
    if known.is_empty() { tidegate_os::process::family(pid) } else { known } // a system without `/proc`
}

fn all_spent_s(members: &[u32]) -> f64 {
    members.iter().copied().map(spent_s).sum()
}

/// Of a process, and of its children that ended and were waited for.
fn spent_s(pid: u32) -> f64 {
    let alive = tidegate_os::process::cpu_time(pid).map_or(0.0, |time| time.as_secs_f64());
    let ended = in_proc(pid, "stat").and_then(|stat| kin(pid, &stat)).map_or(0, |kin| kin.ended_ticks);
    alive + ended as f64 / tidegate_os::process::clock_ticks_per_s() as f64
}

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kin {
    pid: u32,
    parent: u32,
    group: u32,
    /// Processor time of its children that ended and were waited for.
    ended_ticks: u64,
}

/// A process, what it has started, and its group if it leads one; none where systems do not tell.
#[must_use]
pub fn family_ids(pid: u32) -> Vec<u32> {
    family(pid).iter().map(|member| member.pid).collect()
}

fn family(pid: u32) -> Vec<Kin> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<Kin> = pids.filter_map(|pid| kin(pid, &in_proc(pid, "stat")?)).collect();
    family_of(pid, &all)
}

fn family_of(pid: u32, all: &[Kin]) -> Vec<Kin> {
    let mut found: Vec<Kin> = all.iter().copied().filter(|k| k.pid == pid || k.group == pid).collect();
    let mut looked_at = 0;
    while let Some(&Kin { pid: parent, .. }) = found.get(looked_at) {
        looked_at += 1;
        for &child in all.iter().filter(|k| k.parent == parent) {
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

/// The second field of a `stat` line is a name in parentheses that may hold anything.
fn kin(pid: u32, stat: &str) -> Option<Kin> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let ended_ticks = fields.skip(10).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Some(Kin { pid, parent, group, ended_ticks })
}

/// A file of a process below `/proc`.
#[must_use]
pub fn in_proc(pid: u32, file: &str) -> Option<String> {
    std::fs::read_to_string(tidegate_os::process::proc_folder(pid)?.join(file)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_by_place() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 100 0 0 0 250 50 3 4 20 0 5 0 100 1000 200";
        assert_eq!(kin(77, stat), Some(Kin { pid: 77, parent: 1, group: 77, ended_ticks: 7 }));
        assert_eq!(kin(77, ""), None);
    }

    #[test]
    fn a_family_is_the_process_its_descendants_and_its_group() {
        let all = [(10, 1, 10), (11, 10, 10), (12, 11, 12), (13, 1, 10), (14, 1, 14)]
            .map(|(pid, parent, group)| Kin { pid, parent, group, ended_ticks: 0 });
        let mut pids: Vec<u32> = family_of(10, &all).iter().map(|k| k.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [10, 11, 12, 13]);
        assert!(cpu_s(std::process::id()) > 0.0);
    }
}
