//! Limits that contradict the policy are distinguished before anything runs.

use std::time::Duration;

use tidegate::Policy;
use tidegate_services::HttpLimits;

#[test]
fn the_defaults_and_the_presets_hold() {
    for policy in [Policy::default(), Policy::throughput(), Policy::connections()] {
        assert_eq!(HttpLimits::default().check(&policy), Ok(()));
    }
}

#[test]
fn contradictions_are_named_with_a_remedy() {
    let policy = Policy::default().input_bytes(8192);
    let error = HttpLimits::default().check(&policy).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`head_bytes` (16KiB) contradicts `input_bytes` (8KiB): an unfinished head is unconsumed input; \
         lower `head_bytes` or raise `input_bytes`"
    );

    let small = HttpLimits::default().head_bytes(10);
    let error = small.check(&policy).unwrap_err();
    assert_eq!(error.to_string(), "`head_bytes` is 10; it must be between 256 and 1GiB");
    let hasty = HttpLimits::default().head_bytes(4096).request_timeout(Some(Duration::ZERO));
    let error = hasty.check(&policy).unwrap_err().to_string();
    assert_eq!(error, "`request_timeout` is 0s; it must be longer than zero and at most a century");
}
