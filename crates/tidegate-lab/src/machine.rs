//! Description of the machine.

use serde::{Deserialize, Serialize};
use tidegate::system;
use tidegate_load::text::{counted, grouped};
use tidegate_os::process::memory_bytes;

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
            memory_mib: memory_bytes().map_or(0, |(all, _)| all >> 20),
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
    /// Runnable processes, on average over the minute before the interval (`proc_loadavg(5)`); `None` in runs that older
    /// versions saved.
    #[serde(default)]
    pub load_average_before: Option<f64>,
    /// The same at its end, this program's servers and loads among them.
    pub load_average: Option<f64>,
    /// CPU time that the hypervisor gave to other guests, as a fraction of the total (`proc_stat(5)`, steal).
    pub stolen: Option<f64>,
    /// Mean clock rate of the processors at the beginning, in MHz; `None` in runs that older versions saved.
    #[serde(default)]
    pub mhz_before: Option<f64>,
    /// The same at the end.
    pub mhz: Option<f64>,
}

/// What is known at the beginning of an interval.
pub struct ActivityBegin {
    /// Ticks of all processors: stolen, and all.
    ticks: Option<(u64, u64)>,
    load_average: Option<f64>,
    mhz: Option<f64>,
}

impl MachineActivity {
    /// Begins an interval.
    #[must_use]
    pub fn now() -> ActivityBegin {
        ActivityBegin { ticks: ticks(), load_average: load_average(), mhz: mhz() }
    }

    /// Formats all intervals in one line; empty if nothing is available.
    pub(crate) fn line<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> String {
        let range = |of: fn(&Self) -> Option<f64>, digits: usize| {
            let values = all.clone().filter_map(of);
            let (low, high) =
                values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            let (least, most) = (format!("{low:.digits$}"), format!("{high:.digits$}"));
            let both = if least == most { least } else { format!("{least} to {most}") };
            low.is_finite().then_some(both)
        };
        let around = |before: Option<String>, after: Option<String>, unit: &str| {
            let said = [(before, "before"), (after, "after")];
            let said = said.into_iter().filter_map(|(value, when)| Some(format!("{}{unit} {when}", value?)));
            Some(said.collect::<Vec<_>>().join(", ")).filter(|said| !said.is_empty())
        };
        let load = around(range(|a| a.load_average_before, 1), range(|a| a.load_average, 1), "");
        let clock = around(range(|a| a.mhz_before, 0), range(|a| a.mhz, 0), " MHz");
        let stolen = range(|a| a.stolen.map(|part| part * 100.0), 1);
        let parts = [
            load.map(|load| format!("load average {load} (servers of this run among them)")),
            stolen.map(|part| format!("processor time stolen by the hypervisor {part}%")),
            clock.map(|clock| format!("clock {clock}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
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
        MachineActivity {
            load_average_before: self.load_average,
            load_average: load_average(),
            stolen,
            mhz_before: self.mhz,
            mhz: mhz(),
        }
    }
}

/// Runnable processes, on average over the last minute.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Mean clock rate of the processors, now.
fn mhz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let lines = text.lines().filter(|line| line.starts_with("cpu MHz"));
    let rates: Vec<f64> = lines.filter_map(|line| line.split(':').nth(1)?.trim().parse().ok()).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
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
    fn disturbances_are_reported_before_and_after() {
        let one = MachineActivity {
            load_average_before: Some(0.1),
            load_average: Some(26.8),
            mhz_before: Some(2_000.0),
            mhz: Some(2_400.0),
            ..MachineActivity::default()
        };
        let clock = "clock 2000 MHz before, 2400 MHz after";
        assert_eq!(
            MachineActivity::line([one].iter()),
            format!("load average 0.1 before, 26.8 after (servers of this run among them); {clock}")
        );
        let other = MachineActivity {
            load_average_before: Some(26.8),
            load_average: Some(3.0),
            stolen: Some(0.02),
            ..MachineActivity::default()
        };
        assert_eq!(
            MachineActivity::line([one, other].iter()),
            format!(
                "load average 0.1 to 26.8 before, 3.0 to 26.8 after (servers of this run among them); \
                 processor time stolen by the hypervisor 2.0%; {clock}"
            )
        );
        assert_eq!(MachineActivity::line([].iter()), "");
    }

    #[test]
    fn activity_that_older_versions_saved_is_that_of_the_end() {
        let saved = r#"{"load_average":0.5,"stolen":null,"mhz":2000.0}"#;
        let old: MachineActivity = serde_json::from_str(saved).unwrap();
        assert_eq!((old.load_average_before, old.mhz_before), (None, None));
        assert_eq!(
            MachineActivity::line([old].iter()),
            "load average 0.5 after (servers of this run among them); clock 2000 MHz after"
        );
    }

    #[test]
    fn counters_of_this_machine_can_be_read() {
        let begin = MachineActivity::now();
        let (load_average, mhz) = (begin.load_average, begin.mhz);
        let activity = begin.until_now();
        assert_eq!((activity.load_average_before, activity.mhz_before), (load_average, mhz));
        assert_eq!(activity.load_average_before.is_some(), cfg!(target_os = "linux"));
        assert_eq!(activity.load_average.is_some(), cfg!(target_os = "linux"));
        assert_eq!(activity.mhz_before.is_some(), activity.mhz.is_some());
        assert!(activity.stolen.is_none_or(|part| (0.0..=1.0).contains(&part)));
    }
}
