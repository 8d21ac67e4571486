//! What was measured on.

use serde::{Deserialize, Serialize};
use tidegate::system;

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
    /// This one, now.
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
            system: system::system_name(),
            memory_mib: system::memory_bytes().map_or(0, |(all, _)| all >> 20),
            descriptors: system::descriptor_limit().0,
        }
    }

    /// Whether memory was counted as Windows counts it.
    pub(crate) fn is_windows(&self) -> bool {
        self.system.starts_with("Windows")
    }

    /// One line for under a table.
    #[must_use]
    pub fn line(&self) -> String {
        let descriptors = match self.descriptors {
            u64::MAX => "no limit of".into(), // Windows
            limit => limit.to_string(),
        };
        format!(
            "{}, {} processor(s), {}, {} MiB memory, {descriptors} descriptors",
            self.cpu, self.cpus, self.system, self.memory_mib
        )
    }
}
