//! Description of the machine.

use serde::{Deserialize, Serialize};
use tidegate::system;
use tidegate_load::text::{counted, grouped};

/// The machine and the limits of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors this process may use.
    pub cpus: usize,
    /// Kernel name and release.
    pub system: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Open descriptors this process may have.
    pub descriptors: u64,
}

impl Machine {
    /// Describes this machine, now.
    #[must_use]
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split(':').nth(1)?.trim().to_owned())
        };
        Self {
            cpu: value(&read("/proc/cpuinfo"), "model name")
                .or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok()) // Windows
                .unwrap_or_else(|| "unknown processor".into()),
            cpus: system::allowed_cpus().len(),
            system: tidegate_os::process::system_name(),
            memory_mib: system::memory_bytes().map_or(0, |(all, _)| all >> 20),
            descriptors: system::descriptor_limit().0,
        }
    }

    /// Whether memory was counted as Windows counts it.
    pub(crate) fn is_windows(&self) -> bool {
        self.system.starts_with("Windows")
    }

    /// One line below a table.
    #[must_use]
    pub fn line(&self) -> String {
        let descriptors = match self.descriptors {
            u64::MAX => "no limit of".into(), // Windows
            limit => grouped(limit),
        };
        format!(
            "{}, {}, {}, {} MiB memory, {descriptors} descriptors",
            self.cpu,
            counted(self.cpus, "processor"),
            self.system,
            grouped(self.memory_mib)
        )
    }
}

/// Other activity of the machine: why two rounds may differ although nothing has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineActivity {
    /// Runnable processes, on average over the last minute (`proc_loadavg(5)`).
    pub load_average: Option<f64>,
    /// CPU time that the hypervisor gave to other guests, as a fraction of the total (`proc_stat(5)`, steal).
    pub stolen: Option<f64>,
    /// Mean clock rate of the processors, in MHz.
    pub mhz: Option<f64>,
}

/// Counters at the beginning of an interval.
pub struct ActivityBegin {
    /// Ticks of all processors: stolen, and all.
    ticks: Option<(u64, u64)>,
}

impl MachineActivity {
    /// Begins an interval.
    #[must_use]
    pub fn now() -> ActivityBegin {
        ActivityBegin { ticks: ticks() }
    }

    /// Formats all intervals in one line; empty if nothing is available.
    pub(crate) fn line<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> String {
        let range = |what: &str, of: fn(&Self) -> Option<f64>, digits: usize, unit: &str| {
            let values = all.clone().filter_map(of);
            let (low, high) =
                values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            low.is_finite().then(|| format!("{what} {low:.digits$} to {high:.digits$}{unit}"))
        };
        let parts = [
            range("load average", |a| a.load_average, 1, ""),
            range("processor time stolen by the hypervisor", |a| a.stolen.map(|part| part * 100.0), 1, "%"),
            range("clock", |a| a.mhz, 0, " MHz"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl ActivityBegin {
    /// The activity since the beginning.
    #[must_use]
    pub fn until_now(self) -> MachineActivity {
        let stolen = self.ticks.zip(ticks()).and_then(|((stolen, all), (stolen_now, all_now))| {
            let all = all_now.saturating_sub(all);
            (all > 0).then(|| stolen_now.saturating_sub(stolen) as f64 / all as f64)
        });
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let load_average = read("/proc/loadavg").split(' ').next().and_then(|first| first.parse().ok());
        let rates: Vec<f64> = read("/proc/cpuinfo")
            .lines()
            .filter(|line| line.starts_with("cpu MHz"))
            .filter_map(|line| line.split(':').nth(1)?.trim().parse().ok())
            .collect();
        let mhz = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        MachineActivity { load_average, stolen, mhz }
    }
}

/// Stolen ticks and all ticks of all processors, since the system started.
fn ticks() -> Option<(u64, u64)> {
    // user nice system idle iowait irq softirq steal; guest time is in user's already
    const STEAL: usize = 7;
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|t| t.parse().ok()).collect();
    let counted = ticks.get(..=STEAL)?;
    Some((*counted.last()?, counted.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_on_is_told_as_ranges() {
        let activity = |load, mhz| MachineActivity { load_average: Some(load), stolen: None, mhz };
        let all = [activity(0.5, Some(2_000.0)), activity(2.0, None)];
        assert_eq!(MachineActivity::line(all.iter()), "load average 0.5 to 2.0, clock 2000 to 2000 MHz");
        assert_eq!(MachineActivity::line([].iter()), "");
    }

    #[test]
    fn counters_of_this_machine_can_be_read() {
        let activity = MachineActivity::now().until_now();
        assert_eq!(activity.load_average.is_some(), cfg!(target_os = "linux"));
        assert!(activity.stolen.is_none_or(|part| (0.0..=1.0).contains(&part)));
    }
}
