//! How a verdict comes about. Pure: computed from figures only.

use crate::report::Report;
use crate::verdict::{Evidence, LimitedBy, Verdict, Warning};

/// A thread above this share of the time is saturated.
const FULL: f64 = 0.9;
/// A server whose busiest thread is below this has capacity left.
const ROOM: f64 = 0.8;
/// A server whose busiest thread is below this is not CPU-bound, but may wait for something else.
const IDLE: f64 = 0.3;
/// Latencies above this, in µs, are not explained by wake-ups.
const SLOW_US: f64 = 2_000.0;
/// A backlog has grown if this part of what was due in half the window was added to it, and more than a few requests.
const BEHIND: f64 = 0.05;
const FEW: f64 = 10.0;
/// Samples of the requests in flight below which their mean, or its growth, says nothing.
pub(crate) const SAMPLES: u64 = 15;

/// Of a generator that nobody could look at.
const UNKNOWN: &str = "this system does not report thread CPU usage; check the processors yourself";

/// Of a generator whose timers were late.
const WOKE_LATE: &str = "it woke up late although connections were free; free its processor of other work";

/// Judges a result.
#[must_use]
pub fn assess(report: &Report, evidence: Evidence) -> Verdict {
    // Where nothing was measured, or nothing that lasted, advice on measuring better would only distract.
    let is_explained = report.requests == 0 || report.server_gone_after_s.is_some();
    let mut warnings = if is_explained { Vec::new() } else { warnings(report, &evidence) };
    let (limited_by, because) = limited_by(report, &evidence, &warnings);
    // Awake with one event at a time, and nothing that would explain it: both sleep in turns.
    let waits_for_answers = report.open_loop.is_none() && !is_paced(report) && !is_one_way(report);
    if limited_by == LimitedBy::Neither && waits_for_answers && !is_explained {
        warnings.push(Warning::WakeUpBound);
    }
    if evidence.server.is_none() && !is_explained {
        warnings.push(Warning::ServerUnseen);
    }
    let because = match report.udp {
        Some(_) => because.replace("--threads", "flows (-c)"), // a thread of `load udp` is a flow
        None => because.into(),
    };
    Verdict { limited_by, because, warnings, evidence }
}

fn warnings(r: &Report, e: &Evidence) -> Vec<Warning> {
    let mut found = Vec::new();
    if let Some(share) = e.generator {
        if share.ran >= FULL {
            found.push(Warning::GeneratorBusy { ran: share.ran });
        }
        if share.waited >= 0.1 {
            found.push(Warning::GeneratorStarved { waited: share.waited });
        }
    }
    let mut lost = r.timed_out;
    let mut mean_us = r.latency_us.mean;
    if let Some(open) = &r.open_loop {
        if is_many(open.late_wake_ups, open.started) {
            found.push(Warning::LateWakeUps { late: open.late_wake_ups, started: open.started });
        }
        if (open.started as f64) < open.scheduled as f64 * 0.999 {
            let asked_per_s = if r.elapsed_s > 0.0 { open.scheduled as f64 / r.elapsed_s } else { 0.0 };
            found.push(Warning::PacingMissed { asked_per_s, started_per_s: open.started_per_s });
        }
        lost += open.not_started;
        mean_us = open.service_us.mean;
    }
    if lost > 0 {
        found.push(Warning::LostSamples { lost, known: r.requests });
    }
    if is_many(r.late_wake_ups, r.requests) {
        found.push(Warning::LateWakeUps { late: r.late_wake_ups, started: r.requests });
    }
    let computed = r.requests_per_s * mean_us / 1e6;
    // What failed was in flight too, but has no latency.
    if e.samples >= SAMPLES
        && r.failed == 0
        && (e.mean_in_flight - computed).abs() > 1.0 + e.mean_in_flight.max(computed) * 0.15
    {
        found.push(Warning::LittlesLaw { seen: e.mean_in_flight, computed });
    }
    if r.elapsed_s < 1.0 {
        found.push(Warning::ShortWindow { elapsed_s: r.elapsed_s });
    }
    found
}

/// Whether nothing comes back, so that nobody waits for anybody.
fn is_one_way(r: &Report) -> bool {
    r.udp.as_ref().is_some_and(|udp| !udp.echo)
}

/// Whether each connection sends at its own pace.
fn is_paced(r: &Report) -> bool {
    r.rate_bytes_per_s_per_block.is_some()
}

/// More than one in a hundred.
fn is_many(part: u64, all: u64) -> bool {
    part > all / 100
}

fn limited_by(r: &Report, e: &Evidence, warnings: &[Warning]) -> (LimitedBy, &'static str) {
    let generator_full = e.generator.is_some_and(|share| share.wanted() >= FULL || share.waited >= 0.2);
    if r.server_gone_after_s.is_some() {
        return (
            LimitedBy::Neither,
            "the server closed or refused every connection, so the figures are not its capacity; look at its log",
        );
    }
    if r.requests == 0 {
        return (
            LimitedBy::Neither,
            "no request was answered right, so nothing was measured; see the first error",
        );
    }
    if let Some(open) = &r.open_loop {
        let late = is_many(open.late_starts, open.started);
        let missed = warnings.iter().any(|w| matches!(w, Warning::PacingMissed { .. }));
        let lost = warnings.iter().any(|w| matches!(w, Warning::LostSamples { .. }));
        let behind = e.samples >= SAMPLES && e.backlog_growth > FEW.max(open.scheduled as f64 / 2.0 * BEHIND);
        return match (late || missed || behind, generator_full) {
            (false, _) if lost => (
                LimitedBy::Neither,
                "the requested rate was sent, but not every request was answered in time; look at the server",
            ),
            (false, _) if r.failed > 0 => {
                (LimitedBy::Neither, "the requested rate was sent, but requests failed; see the first error")
            }
            (false, _) => (LimitedBy::Neither, "the requested rate was kept; raise --rate to find the limit"),
            (true, true) => (
                LimitedBy::Generator,
                "it could not keep the rate with the processor it had; give it more --threads and dedicated processors",
            ),
            // One that wakes up late also sees answers late, and so more requests in flight than there were.
            (true, false)
                if is_many(open.late_wake_ups, open.started) && open.late_wake_ups * 2 > open.late_starts =>
            {
                (LimitedBy::Generator, WOKE_LATE)
            }
            (true, false) if behind && !missed => (
                LimitedBy::Server,
                "the requested rate was sent, but more and more requests waited for their answers; lower --rate, or \
                 measure longer (-d) to be sure",
            ),
            (true, false) => (
                LimitedBy::Server,
                "requests were late because all connections waited for answers; lower --rate, or raise -c to be sure",
            ),
        };
    }
    if generator_full {
        return (
            LimitedBy::Generator,
            "a thread of it was busy all the time or waited for a processor; give it more --threads and dedicated processors",
        );
    }
    if is_paced(r) { paced(r, e) } else { closed(r, e) }
}

/// Of a pace that the generator had the processor time for.
fn paced(r: &Report, e: &Evidence) -> (LimitedBy, &'static str) {
    let late = r.late_sends + r.late_wake_ups;
    if is_many(late, r.requests) {
        if r.late_wake_ups * 2 > late {
            return (LimitedBy::Generator, WOKE_LATE);
        }
        // A generator that nobody looked at may have been the late one.
        if e.generator.is_none() {
            return (LimitedBy::Neither, UNKNOWN);
        }
        return (
            LimitedBy::Server,
            "messages were late because the answers before them were; lower -r, or look at the server",
        );
    }
    if r.timed_out > 0 {
        return (
            LimitedBy::Neither,
            "the pace was kept, but not every message was answered in time; look at the server",
        );
    }
    if r.failed > 0 {
        return (LimitedBy::Neither, "messages failed, or connections are missing; see the first error");
    }
    (LimitedBy::Neither, "the pace of each connection was kept; raise -r to find the limit")
}

fn closed(r: &Report, e: &Evidence) -> (LimitedBy, &'static str) {
    if is_one_way(r) {
        return match e.server {
            Some(share) if share.wanted() >= ROOM => (
                LimitedBy::Server,
                "its busiest thread had no processor time left, so what is more than it took was lost; see its counters",
            ),
            _ => (
                LimitedBy::Neither,
                "there are no answers to judge by; compare what was sent with the server's counters",
            ),
        };
    }
    let slow = r.latency_us.mean >= SLOW_US;
    match e.server {
        Some(share) if share.wanted() >= ROOM => (
            LimitedBy::Server,
            "its busiest thread had no processor time left and the generator had; that is its capacity",
        ),
        // A generator that nobody looked at may have been the one that waited.
        _ if e.generator.is_none() => (LimitedBy::Neither, UNKNOWN),
        Some(share) if share.wanted() < IDLE && slow => (
            LimitedBy::Server,
            "neither processor was busy, so it waited for something else (a lock, a disk, another server); look there",
        ),
        Some(_) => (
            LimitedBy::Neither,
            "both had processor time left, so waking each other up took the time; raise -c, or compare processor time per request",
        ),
        None if e.events_per_wake_up < 2.0 && !slow => (
            LimitedBy::Neither,
            match e.is_remote {
                true => "judged from the generator's side, which slept between single answers; raise -c",
                false => {
                    "judged from the generator's side, which slept between single answers; raise -c, or give \
                     --server-pid"
                }
            },
        ),
        None => (
            LimitedBy::Server,
            match e.is_remote {
                true => {
                    "judged from the generator's side, which had processor time left while all connections waited; \
                     to be sure, look at the server's machine and the network"
                }
                false => {
                    "judged from the generator's side, which had processor time left while all connections waited; \
                     --server-pid makes sure"
                }
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Latency, OpenLoop};
    use crate::verdict::Share;

    /// 1,000 requests/s of `ms` each, closed loop, for 5 s.
    fn closed_loop(ms: f64) -> Report {
        let latency_us = Latency { mean: ms * 1e3, ..Latency::default() };
        Report { requests: 5_000, requests_per_s: 1_000.0, elapsed_s: 5.0, latency_us, ..Report::default() }
    }

    fn seen(generator: (f64, f64), server: Option<f64>) -> Evidence {
        Evidence {
            generator: Some(Share { ran: generator.0, waited: generator.1 }),
            server: server.map(|ran| Share { ran, waited: 0.0 }),
            mean_in_flight: 10.0,
            samples: 100,
            backlog_growth: 0.0,
            events_per_wake_up: 5.0,
            is_remote: false,
        }
    }

    fn open_loop(late: u64, late_wake_ups: u64, not_started: u64) -> Report {
        let service_us = Latency { mean: 10_000.0, ..Latency::default() };
        let started = 5_000 - not_started;
        let open = OpenLoop {
            scheduled: 5_000,
            started,
            not_started,
            late_starts: late,
            late_wake_ups,
            service_us,
            ..OpenLoop::default()
        };
        Report { open_loop: Some(open), ..closed_loop(10.0) }
    }

    #[test]
    fn a_closed_loop_is_limited_by_the_busy_side() {
        for (generator, server, ms, expected) in [
            ((0.95, 0.0), Some(0.5), 10.0, LimitedBy::Generator),
            ((0.4, 0.5), Some(0.5), 10.0, LimitedBy::Generator),
            ((0.95, 0.0), Some(0.95), 10.0, LimitedBy::Generator),
            ((0.5, 0.0), Some(0.97), 10.0, LimitedBy::Server),
            ((0.05, 0.0), Some(0.05), 10.0, LimitedBy::Server),
            ((0.4, 0.0), Some(0.5), 10.0, LimitedBy::Neither),
            ((0.5, 0.0), None, 10.0, LimitedBy::Server),
        ] {
            let verdict = assess(&closed_loop(ms), seen(generator, server));
            assert_eq!(verdict.limited_by, expected, "{generator:?} {server:?}: {verdict}");
        }
        for server in [None, Some(0.05), Some(0.5)] {
            let unseen = Evidence { generator: None, ..seen((0.0, 0.0), server) };
            assert_eq!(assess(&closed_loop(10.0), unseen).limited_by, LimitedBy::Neither, "{server:?}");
        }
        let single = Evidence { events_per_wake_up: 1.0, ..seen((0.4, 0.0), None) };
        let verdict = assess(&closed_loop(0.1), single);
        assert_eq!(verdict.limited_by, LimitedBy::Neither);
        assert!(
            verdict.warnings.contains(&Warning::WakeUpBound)
                && verdict.warnings.contains(&Warning::ServerUnseen)
        );
    }

    #[test]
    fn an_open_loop_is_limited_by_the_late_side() {
        for (report, generator, expected) in [
            (open_loop(10, 10, 0), (0.5, 0.0), LimitedBy::Neither),
            (open_loop(500, 10, 0), (0.5, 0.0), LimitedBy::Server),
            (open_loop(500, 400, 0), (0.5, 0.0), LimitedBy::Generator),
            (open_loop(500, 10, 0), (0.95, 0.0), LimitedBy::Generator),
            (open_loop(0, 0, 3_000), (0.1, 0.0), LimitedBy::Server),
        ] {
            assert_eq!(assess(&report, seen(generator, None)).limited_by, expected, "{report:?}");
        }
    }

    #[test]
    fn a_rate_that_was_sent_while_the_backlog_grew_is_the_servers_limit() {
        let with_late = |late, backlog_growth, generator| {
            let evidence = Evidence { backlog_growth, ..seen(generator, None) };
            assess(&open_loop(late, late, 0), evidence)
        };
        let with = |backlog_growth, generator| with_late(10, backlog_growth, generator);
        let steady = with(100.0, (0.5, 0.0));
        assert!(steady.limited_by == LimitedBy::Neither && steady.because.contains("raise --rate"));
        let grown = with(200.0, (0.5, 0.0));
        assert!(grown.limited_by == LimitedBy::Server && !grown.because.contains("raise"), "{grown}");
        assert_eq!(with(200.0, (0.95, 0.0)).limited_by, LimitedBy::Generator);
        assert_eq!(with_late(500, 100.0, (0.5, 0.0)).limited_by, LimitedBy::Generator);
        assert_eq!(with_late(500, 200.0, (0.5, 0.0)).limited_by, LimitedBy::Generator, "its own lateness");
        let few = Evidence { backlog_growth: 200.0, samples: SAMPLES - 1, ..seen((0.5, 0.0), None) };
        assert_eq!(assess(&open_loop(10, 10, 0), few).limited_by, LimitedBy::Neither, "too few samples");
    }

    #[test]
    fn a_rate_that_was_sent_but_not_answered_is_not_to_be_raised() {
        let because = |timed_out| {
            let report = Report { timed_out, ..open_loop(10, 10, 0) };
            assess(&report, seen((0.5, 0.0), Some(0.2))).because
        };
        assert!(because(0).contains("raise --rate"), "{}", because(0));
        assert!(!because(3).contains("raise") && because(3).contains("not every request"), "{}", because(3));
    }

    #[test]
    fn a_rate_at_which_requests_failed_is_not_to_be_raised() {
        let paced = Report { rate_bytes_per_s_per_block: Some(64_000), ..closed_loop(0.1) };
        for report in [open_loop(10, 10, 0), paced] {
            let because =
                |failed| assess(&Report { failed, ..report.clone() }, seen((0.5, 0.0), None)).because;
            assert!(because(0).contains("raise"), "{}", because(0));
            assert!(!because(9).contains("raise") && because(9).contains("first error"), "{}", because(9));
        }
    }

    #[test]
    fn doubts_are_named_with_their_remedies() {
        let missing = Report { timed_out: 3, elapsed_s: 0.5, ..closed_loop(30.0) };
        let found = assess(&missing, seen((0.95, 0.3), Some(0.9))).warnings;
        for warning in [
            Warning::GeneratorBusy { ran: 0.95 },
            Warning::GeneratorStarved { waited: 0.3 },
            Warning::LostSamples { lost: 3, known: 5_000 },
            Warning::LittlesLaw { seen: 10.0, computed: 30.0 },
            Warning::ShortWindow { elapsed_s: 0.5 },
        ] {
            assert!(found.contains(&warning), "{warning} in {found:?}");
            assert!(!warning.remedy().is_empty());
        }
        assert_eq!(assess(&closed_loop(10.0), seen((0.5, 0.0), Some(0.9))).warnings, []);
    }

    #[test]
    fn advice_on_a_server_of_another_machine_can_be_followed_there() {
        for events_per_wake_up in [1.0, 5.0] {
            let here = Evidence { events_per_wake_up, ..seen((0.4, 0.0), None) };
            let there = Evidence { is_remote: true, ..here.clone() };
            let advice = |evidence| {
                let verdict = assess(&closed_loop(0.1), evidence);
                let remedies = verdict.warnings.iter().map(|warning| verdict.remedy(warning));
                let all: Vec<_> = remedies.chain([verdict.because.as_str()]).collect();
                (verdict.limited_by, all.join("\n"))
            };
            let ((by, here), (by_there, there)) = (advice(here), advice(there));
            assert_eq!(by, by_there);
            assert!(here.matches("--server-pid").count() == 2, "{here}");
            assert!(!there.contains("--server-pid") && there.contains("top -H"), "{there}");
        }
    }

    #[test]
    fn a_load_with_a_pace_waits_for_it_and_not_for_answers() {
        let paced = Report { rate_bytes_per_s_per_block: Some(64_000), ..closed_loop(0.1) };
        let late = Report { late_sends: 500, ..paced.clone() };
        let lost = Report { timed_out: 3, ..paced.clone() };
        let slept = Report { late_wake_ups: 500, late_sends: 10, ..paced.clone() };
        assert!(
            warnings(&slept, &seen((0.2, 0.0), None))
                .iter()
                .any(|w| matches!(w, Warning::LateWakeUps { .. }))
        );
        let verdict = assess(&slept, seen((0.2, 0.0), None));
        assert!(
            verdict.limited_by == LimitedBy::Generator && verdict.because.contains("woke up late"),
            "{verdict}"
        );
        for (report, generator, expected, part) in [
            (&paced, (0.2, 0.0), LimitedBy::Neither, "raise -r"),
            (&late, (0.2, 0.0), LimitedBy::Server, "lower -r"),
            (&lost, (0.2, 0.0), LimitedBy::Neither, "not every message"),
            (&late, (0.95, 0.0), LimitedBy::Generator, "--threads"),
        ] {
            for server in [None, Some(0.05)] {
                let unseen = Evidence { generator: None, ..seen(generator, server) };
                assert_eq!(assess(report, unseen).limited_by, LimitedBy::Neither, "{report:?}");
                let verdict = assess(report, seen(generator, server));
                assert_eq!(verdict.limited_by, expected, "{verdict}");
                assert!(verdict.because.contains(part) && !verdict.because.contains("-c"), "{verdict}");
                assert!(!verdict.warnings.contains(&Warning::WakeUpBound), "{verdict}");
            }
        }
    }

    /// `load udp` has a thread for each flow, and no `--threads`.
    #[test]
    fn a_load_of_datagrams_that_was_the_limit_is_to_have_more_flows() {
        let udp = crate::UdpReport { echo: true, ..Default::default() };
        for report in [closed_loop(10.0), open_loop(500, 500, 0)] {
            let because = |report: &Report| {
                let verdict = assess(report, seen((0.95, 0.0), Some(0.5)));
                assert_eq!(verdict.limited_by, LimitedBy::Generator, "{verdict}");
                let remedy = Warning::GeneratorBusy { ran: 0.95 }.remedy();
                assert!(
                    verdict.warnings.iter().any(|warning| warning.remedy() == remedy)
                        && remedy.contains("-c")
                );
                verdict.because
            };
            let connections = because(&report);
            assert!(connections.contains("--threads"), "{connections}");
            let datagrams = because(&Report { udp: Some(udp.clone()), ..report });
            assert!(datagrams.contains("more flows (-c)") && !datagrams.contains("--threads"), "{datagrams}");
        }
    }

    #[test]
    fn who_only_sends_is_not_said_to_wait() {
        let udp = crate::UdpReport { echo: false, ..Default::default() };
        let one_way = Report { udp: Some(udp), ..closed_loop(0.0) };
        let idle = assess(&one_way, seen((0.5, 0.0), Some(0.5)));
        assert_eq!(idle.limited_by, LimitedBy::Neither);
        assert!(!idle.warnings.contains(&Warning::WakeUpBound), "{idle}");
        assert_eq!(assess(&one_way, seen((0.5, 0.0), Some(0.9))).limited_by, LimitedBy::Server);
        assert_eq!(assess(&one_way, seen((0.95, 0.0), Some(0.9))).limited_by, LimitedBy::Generator);
    }
}
