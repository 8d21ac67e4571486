//! Limits of offloaded jobs.

use super::Policy;
use super::table::limits;

limits! {
/// The threads that run jobs sessions [offload](crate::Outbox::offload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offload, as "offload." of Policy, at |policy| Some(&mut policy.offload);
    parts {}

    threads: usize = 4 => {
        what: "Threads for offloaded jobs, started when needed",
        cost: "one thread each",
        option: "offload-threads",
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    queue: usize = 1024 => {
        what: "Queued jobs; further ones are refused",
        cost: "memory for queued jobs; when full, `OffloadError::Full`",
        option: "offload-queue",
        unit: Count,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
}
