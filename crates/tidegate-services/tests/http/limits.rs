//! Limits that contradict the policy are distinguished before anything runs.

use std::time::Duration;

use tidegate::Policy;
use tidegate_services::{HttpLimits, HttpLimitsError};

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
    assert_eq!(error, HttpLimitsError::HeadAboveInput { head_bytes: 16_384, input_bytes: 8192 });
    assert!(error.to_string().contains("raise input_bytes"));

    let small = HttpLimits { head_bytes: 10, ..HttpLimits::default() };
    assert_eq!(small.check(&policy), Err(HttpLimitsError::HeadTooSmall(10)));
    let hasty =
        HttpLimits { head_bytes: 4096, request_timeout: Some(Duration::ZERO), ..HttpLimits::default() };
    assert_eq!(hasty.check(&policy), Err(HttpLimitsError::NoTime));
}
