//! The attack against real servers: it does what it says, and counts what the server does about it.

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::policy::MinRate;
use tidegate::{CloseReason, Model, Policy, Running, Server};
use tidegate_load::attack::{AttackKind, AttackSpeech, KindReport};
use tidegate_load::{Attack, AttackReport, Security, Target, attack};
use tidegate_services::{Echo, Http};

/// Longer than any of this takes on a busy machine; each attack ends as soon as it has shown what it is to show.
const DEADLINE: Duration = Duration::from_secs(60);

fn attack_on(server: &Running, speech: AttackSpeech) -> Attack {
    let endpoint = server.local_addr().clone();
    let host = endpoint.to_string();
    Attack {
        target: Target { endpoint, security: Security::Plain, host, path: "/".into() },
        speech,
        duration: DEADLINE,
        silent: 0,
        trickle: 0,
        flood: 0,
        half_open: 0,
        resets_per_s: 0,
        model: None,
    }
}

fn hasty() -> Policy {
    let soon = Duration::from_millis(100);
    Policy::default()
        .first_byte_timeout(Some(soon))
        .send_timeout(Some(soon))
        .min_rate(NonZeroU32::new(500).map(|bytes_per_s| MinRate::new(bytes_per_s).grace(soon)))
        .drain_timeout(Duration::ZERO)
}

fn http(policy: Policy) -> Running {
    let server = Server::new(Http::default()).policy(policy).model(Model::Poll);
    server.bind("127.0.0.1:0").unwrap().start().unwrap()
}

/// Attacks until `enough` holds of one kind.
fn until(attack_plan: &Attack, kind: AttackKind, enough: impl Fn(&KindReport) -> bool) -> AttackReport {
    let shown = |report: &AttackReport| report.kind(kind).is_some_and(&enough);
    let report = attack(attack_plan, |report| match shown(report) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    let report = report.expect("the attack can be made");
    assert!(shown(&report), "{report:?}");
    report
}

#[test]
fn who_never_speaks_is_ended_by_the_server_and_comes_again() {
    let server = http(hasty());
    let plan = Attack { silent: 3, ..attack_on(&server, AttackSpeech::Http) };
    until(&plan, AttackKind::Silent, |seen| seen.opened > 6 && seen.ended_by_server() > 3);
    assert!(server.stats().closed_by(CloseReason::FirstByteTimeout) > 3);
    assert_eq!(server.stats().bytes_in, 0);
}

#[test]
fn who_trickles_is_ended_by_the_server_although_bytes_come() {
    let server = http(hasty());
    let plan = Attack { trickle: 3, ..attack_on(&server, AttackSpeech::Http) };
    until(&plan, AttackKind::Trickle, |seen| seen.reset_by_server > 3);
    assert!(server.stats().closed_by(CloseReason::MinRate) > 0);
    assert!(server.stats().bytes_in > 0);
}

#[test]
fn who_floods_and_never_reads_is_ended_by_the_server() {
    let server = http(hasty());
    let plan = Attack { flood: 3, ..attack_on(&server, AttackSpeech::Http) };
    until(&plan, AttackKind::Flood, |seen| seen.reset_by_server > 3);
    let stats = server.stats();
    assert!(stats.closed_by(CloseReason::MinRate) + stats.closed_by(CloseReason::SendTimeout) > 0);
}

#[test]
fn who_finishes_in_mid_request_is_closed_and_resets_are_counted() {
    let server = http(hasty());
    let plan = Attack { half_open: 3, resets_per_s: 100, ..attack_on(&server, AttackSpeech::Http) };
    until(&plan, AttackKind::HalfOpen, |seen| seen.closed_by_server > 3);
    until(&plan, AttackKind::Reset, |seen| seen.ended_by_attacker > 10);
    assert!(server.stats().closed_by(CloseReason::Reset) > 0);
}

#[test]
fn a_patient_server_keeps_everybody() {
    let patient = Policy::default().first_byte_timeout(None).drain_timeout(Duration::ZERO);
    let server = Server::new(Echo).policy(patient).model(Model::Poll);
    let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let plan = Attack { silent: 5, trickle: 5, ..attack_on(&server, AttackSpeech::Bytes) };
    let report = attack(&plan, |report| match report.has_begun() && server.stats().bytes_in >= 5 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
    .unwrap();
    for kind in [AttackKind::Silent, AttackKind::Trickle] {
        let seen = report.kind(kind).unwrap();
        assert_eq!((seen.opened, seen.standing, seen.ended_by_server()), (5, 5, 0), "{report:?}");
    }
}
