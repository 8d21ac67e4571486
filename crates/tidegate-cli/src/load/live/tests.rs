use tidegate_load::report::Latency;

use super::*;

/// In the middle of a run: 70 seconds are over.
fn view(colours: bool) -> LiveView {
    let mut view =
        LiveView::new("http 127.0.0.1:8080".into(), 1_200, Amount::Time(Duration::from_secs(140)), colours);
    view.hear(&RunEvent::Connected { attempted: 1_200, connected: 1_200 });
    view.hear(&RunEvent::Measuring);
    let latency_us = Latency { p50: 950, p99: 2_300, p99_9: 45_600, ..Latency::default() };
    for at in 0..70 {
        let second = Second {
            length_s: 1.0,
            requests: 1_000 * (at % 8),
            failed: at / 69,
            latency_us: latency_us.clone(),
            ..Second::default()
        };
        let status = RunStatus {
            open: 1_199,
            connect_failed: 1,
            generator: Some(Share { ran: 0.45, waited: 0.0 }),
            server: Some(Share { ran: 0.981, waited: 0.0 }),
            limited_by: Some(LimitedBy::Server),
        };
        let latencies = tidegate_load::histogram::empty();
        view.hear(&RunEvent::Second { second: &second, latency_us: &latencies, status });
    }
    view.hear(&RunEvent::Progress { requests: 245_000, part: 0.5 });
    view
}

#[test]
fn a_run_looks_like_this_at_80_columns() {
    let expected = "\
http 127.0.0.1:8080
progress     ━━━━━━━━━━━━━━━───────────────   50%  70 s of 140 s
requests/s   5,000       █▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄▅▆
latency      p50 950 µs  p99 2300 µs  p99.9 45.6 ms
connections  1,199 of 1,200  errors 2
processor    generator 45%  server 98% (busiest thread)
so far       the server was the limit";
    let lines = view(false).lines(80).join("\n");
    assert_eq!(lines, expected, "\n{lines}");
}

#[test]
fn it_fits_a_narrow_terminal() {
    let expected = "\
http 127.0.0.1:8080
progress     ━━━───   50%  70 s of 140 s
requests/s   5,000       █▁▂▃▄▅▆▇█▁▂▃▄▅▆
latency      p50 950 µs  p99 2300 µs  p…
connections  1,199 of 1,200  errors 2
processor    generator 45%  server 98% …
so far       the server was the limit";
    let lines = view(false).lines(40).join("\n");
    assert_eq!(lines, expected, "\n{lines}");
}

#[test]
fn a_wide_terminal_shows_a_minute_and_no_more() {
    let lines = view(false).lines(200);
    assert!(lines.iter().all(|line| measure_text_width(line) <= WIDEST), "{lines:#?}");
    assert_eq!(lines[2].chars().filter(|c| ('▁'..='█').contains(c)).count(), SPARKS);
}

#[test]
fn no_line_is_longer_than_the_terminal_is_wide_with_colours_or_without() {
    for columns in 0..210 {
        for line in view(true).lines(columns) {
            assert!(measure_text_width(&line) <= columns, "{columns}: {line:?}");
        }
    }
}

#[test]
fn colours_are_only_there_if_they_are_wanted() {
    assert!(!view(false).lines(80).concat().contains('\x1b'));
    assert!(view(true).lines(80).concat().contains("\x1b[31m"), "errors are red");
}

#[test]
fn before_the_first_second_it_says_what_is_going_on() {
    let mut view = LiveView::new("echo 127.0.0.1:8080".into(), 1_200, Amount::Requests(2_000_000), false);
    view.hear(&RunEvent::Opening { connected: 700 });
    let opening =
        ["echo 127.0.0.1:8080", "progress     opening connections", "connections  700 of 1,200  errors 0"];
    assert_eq!(view.lines(80), opening);
    view.hear(&RunEvent::Connected { attempted: 1_200, connected: 1_200 });
    assert_eq!(view.lines(80)[1], "progress     warming up");
    view.hear(&RunEvent::Progress { requests: 1_000_000, part: 0.5 });
    assert!(view.lines(80)[1].ends_with(" 50%  1,000,000 of 2,000,000"), "{:?}", view.lines(80));
}
