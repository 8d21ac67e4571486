//! What holds for every row of the table. What models make of the rows: `engine/support.rs`.

use std::collections::HashSet;

use super::*;
use crate::policy::{DatagramPolicy, Policy};

/// Texts of which every limit takes one that is not its default.
const TEXTS: [&str; 14] = [
    "gso",
    "1",
    "2",
    "5000",
    "8KiB",
    "64KiB",
    "2MiB",
    "2s",
    "1ms",
    "true",
    "2:4",
    "spin",
    "refuse",
    "zero-byte",
];

/// The default policy with another value of one limit.
pub(crate) fn with_another_value<P: Limited>(limit: &Limit<P>) -> P {
    let set = |text: &&str| {
        let mut policy = limit.default_policy();
        let good = limit.check_text(text).is_ok() && limit.set(&mut policy, text).is_ok();
        (good && limit.differs(&policy)).then_some(policy)
    };
    let found = TEXTS.iter().find_map(set);
    found.unwrap_or_else(|| panic!("no text is another value of {}", limit.name))
}

#[test]
fn every_limit_is_called_something_else_everywhere() {
    names_differ::<Policy>();
    names_differ::<DatagramPolicy>();
}

fn names_differ<P: Limited>() {
    let mut names = HashSet::new();
    for limit in P::limits() {
        assert!(names.insert(limit.name), "{}", limit.name);
        assert!(
            !limit.option.is_empty() && (limit.option == limit.name || names.insert(limit.option)),
            "{}",
            limit.name
        );
        for text in [limit.what, limit.cost] {
            assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text:?}", limit.name);
        }
        for other in [limit.relation.map(|relation| relation.other), limit.needs.map(|needs| needs.0)] {
            assert!(other.is_none_or(|other| P::limit(other).is_some()), "{}: {other:?}", limit.name);
        }
    }
}

#[test]
fn every_limit_is_read_as_it_is_written() {
    texts_are_read_back::<Policy>();
    texts_are_read_back::<DatagramPolicy>();
}

fn texts_are_read_back<P: Limited + PartialEq + std::fmt::Debug>() {
    for limit in P::limits() {
        let policy = with_another_value(limit);
        let text = limit.text(&policy).unwrap();
        let mut copy = limit.default_policy();
        assert_eq!(limit.text(&copy), Some(limit.default_text()));
        limit.set(&mut copy, &text).unwrap();
        assert_eq!(copy, policy, "{}: {text:?}", limit.name);
    }
}

#[test]
fn every_limit_changes_while_a_server_runs_or_is_fixed_as_its_row_says() {
    for limit in Policy::limits() {
        let (mut running, changed) = (Policy::default(), with_another_value(limit));
        if let Some((needed, value)) = limit.needs {
            Policy::limit(needed).unwrap().set(&mut running, value).unwrap();
        }
        let expected = match limit.change {
            Change::Live => Ok(()),
            Change::Fixed | Change::WhileSet => Err(PolicyError::Fixed(limit.name)),
        };
        assert_eq!(running.check_change(&changed), expected, "{}", limit.name);
        let possible = changed.clone().as_far_as_possible(&running);
        assert_eq!(running.check_change(&possible), Ok(()), "{}", limit.name);
        let kept = if limit.change == Change::Live { &changed } else { &running };
        assert_eq!(limit.text(&possible), limit.text(kept), "{}", limit.name);
    }
}

#[test]
fn watermarks_of_posted_accepts_change_while_there_are_any() {
    let posted = Policy::limit("posted-accepts").unwrap();
    let with = |marks| {
        let mut policy = Policy::default();
        posted.set(&mut policy, marks).unwrap();
        policy
    };
    assert_eq!(with("1:2").check_change(&with("3:4")), Ok(()));
    assert_eq!(with("3:4").as_far_as_possible(&with("1:2")), with("3:4"));
    assert_eq!(with("1:2").check_change(&with("none")), Err(PolicyError::Fixed("accept.posted")));
}

#[test]
fn a_buffer_is_whole_pages_of_the_system_that_runs() {
    let range = Policy::limit("buffer_bytes").unwrap().range;
    let fault = |bytes, page| range.fault_with(bytes, Unit::Bytes, page);
    assert_eq!(fault(16_384, 4096), None);
    assert_eq!(fault(16_384, 16_384), None);
    assert!(fault(16_384, 65_536).unwrap().contains("a multiple of 65536"));
    assert!(fault(6144, 4096).unwrap().contains("a multiple of 4096"));
    for policy in [Policy::default(), Policy::throughput(), Policy::connections()] {
        assert!(policy.buffer_bytes.is_multiple_of(tidegate_os::process::page_bytes()));
    }
}

#[test]
fn every_value_out_of_range_is_refused_by_name() {
    for limit in Policy::limits() {
        let (low, high) = match limit.range {
            Range::Any => continue,
            Range::Within(low, high) | Range::PowerOfTwo(low, high, _) => (low, high),
            Range::Pages(high) => (1, high),
        };
        for wrong in [low.checked_sub(1), high.checked_add(1)].into_iter().flatten() {
            let text = match limit.unit {
                Unit::Other(_) => format!("spin:{}", limit.unit.show(wrong)),
                unit => unit.show(wrong),
            };
            let mut policy = limit.default_policy();
            // What cannot be written, such as 0 where a type has none, needs no check.
            if limit.set(&mut policy, &text).is_ok() {
                let Err(PolicyError::Range { name, must, .. }) = policy.check() else {
                    panic!("{}: {text}", limit.name)
                };
                assert_eq!(name, limit.name);
                assert!(limit.check_text(&text).unwrap_err().to_string().contains(&must), "{must}");
            }
        }
    }
}
