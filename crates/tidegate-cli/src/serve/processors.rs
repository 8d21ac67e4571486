//! Processors: each server is kept to its own, and the rest of the process to those of all servers together.

use anyhow::{Context, anyhow};
use tidegate::system;

use super::usage;
use crate::Failure;
use crate::system::PINS_THREADS;

/// The processors of the process.
pub struct Processors {
    /// Those of all servers together.
    all: Vec<usize>,
}

impl Processors {
    /// Keeps the process to the processors that servers asked for; to all of them if one server may run anywhere.
    pub fn of_all<'a>(servers: impl Iterator<Item = &'a [usize]> + Clone) -> Result<Self, Failure> {
        let mut all: Vec<usize> = servers.clone().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Ok(Self { all });
        }
        let allowed = system::allowed_cpus();
        if let Some(cpu) = all.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(usage(anyhow!("no processor {cpu} here; this process may use {allowed:?}")));
        }
        let one = servers.clone().all(|cpus| all.iter().all(|cpu| cpus.contains(cpu)));
        if !PINS_THREADS && !one {
            return Err(usage(anyhow!(
                "this system keeps whole processes to processors: give all servers the same --cpus, or each a process of its own"
            )));
        }
        if servers.clone().any(<[usize]>::is_empty) {
            return Ok(Self { all: allowed });
        }
        pin(&all)?;
        Ok(Self { all })
    }

    /// Runs a stage of a server on its processors. Threads started there stay there.
    pub fn within<T>(
        &self,
        cpus: &[usize],
        stage: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if cpus.is_empty() || self.all.iter().all(|cpu| cpus.contains(cpu)) {
            return stage();
        }
        pin(cpus)?;
        let outcome = stage();
        pin(&self.all)?;
        outcome
    }
}

fn pin(cpus: &[usize]) -> Result<(), Failure> {
    system::pin_to_cpus(cpus).context("cannot keep to the processors asked for").map_err(usage)
}
