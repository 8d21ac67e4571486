//! The summary of a result as text.

use tidegate_load::text::counted;
use tidegate_load::{AgentReport, OpenLoop, Report, UdpReport};

/// A time in microseconds, with a unit that suits it.
pub fn micros(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    }
}

/// A few lines for a person.
pub fn summary(r: &Report) -> String {
    let mut text = match &r.udp {
        Some(udp) => of_datagrams(r, udp),
        None => of_connections(r),
    };
    if r.udp.as_ref().is_none_or(|udp| udp.echo) {
        let l = &r.latency_us;
        text.push_str(&format!(
            "latency      mean {} stdev {} p50 {} p90 {} p99 {} p99.9 {} max {}\n",
            micros(l.mean as u64),
            micros(l.stdev as u64),
            micros(l.p50),
            micros(l.p90),
            micros(l.p99),
            micros(l.p99_9),
            micros(l.max),
        ));
        text.push_str(&distribution(r));
    }
    text.push_str(&statuses(r));
    text.push_str(&format!(
        "generator    {:.2} s user + {:.2} s system = {:.3} CPU s per 100,000 {}\n",
        r.cpu_user_s,
        r.cpu_system_s,
        (r.cpu_user_s + r.cpu_system_s) * 1e5 / (r.requests.max(1) as f64),
        if r.udp.is_some() { "messages" } else { "requests" },
    ));
    if let Some(tls) = &r.tls {
        text.push_str(&format!(
            "tls          {} handshakes, {} of them resumed\n",
            tls.handshakes, tls.resumed
        ));
    }
    if r.late_sends > 0 {
        text.push_str(&format!(
            "pacing       {} sends were late: the answers before them were\n",
            r.late_sends
        ));
    }
    if r.late_wake_ups > 0 {
        text.push_str(&format!(
            "pacing       {} sends were late: the generator woke up late\n",
            r.late_wake_ups
        ));
    }
    if let Some(open) = &r.open_loop {
        let s = &open.service_us;
        text.push_str(&format!(
            "open loop    {} of {} requests begun, {:.1}/s of {}/s asked; {} late by more than 2 ms, {} of them with a \
             connection free; the latest by {}\n{}\
             from start   mean {} p50 {} p90 {} p99 {} p99.9 {} max {} (latency above counts from when a request was due)\n",
            open.started,
            open.scheduled,
            open.started_per_s,
            open.rate_per_s,
            open.late_starts,
            open.late_wake_ups,
            micros(open.worst_late_us),
            begun_late(open),
            micros(s.mean as u64),
            micros(s.p50),
            micros(s.p90),
            micros(s.p99),
            micros(s.p99_9),
            micros(s.max),
        ));
        if open.answered_late > 0 {
            text.push_str(&format!("             {} answers came after the window\n", open.answered_late));
        }
        if open.not_started > 0 {
            text.push_str(&format!(
                "             {} requests were due but found no connection free: raise -c, or lower --rate\n",
                open.not_started
            ));
        }
    }
    if let Some(together) = &r.together {
        together.agents.iter().for_each(|agent| text.push_str(&of_an_agent(agent)));
    }
    if let Some(verdict) = &r.verdict {
        text.push_str(&format!("verdict      {verdict}\n"));
        for warning in &verdict.warnings {
            text.push_str(&format!("warning      {warning}: {}\n", verdict.remedy(warning)));
        }
    }
    text
}

/// Responses by status; empty except for HTTP.
fn statuses(r: &Report) -> String {
    let each: Vec<String> =
        r.answers_by_status.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    if each.is_empty() { String::new() } else { format!("statuses     {}\n", each.join(", ")) }
}

/// Latencies in steps of 1, 2, 5, 10, with their share and a bar; empty if there are none.
fn distribution(r: &Report) -> String {
    const WIDTH: f64 = 40.0;
    let Ok(all) = tidegate_load::histogram::decode(&r.latency_v2) else { return String::new() };
    if all.is_empty() {
        return String::new();
    }
    let steps = (0..10).flat_map(|power| [1, 2, 5].map(|step| step * 10_u64.pow(power)));
    let bounds: Vec<u64> = std::iter::once(0).chain(steps).collect();
    let rows = bounds.windows(2).filter_map(|bound| match *bound {
        [low, high] => Some((low, high, tidegate_load::histogram::count_in(&all, low..high))),
        _ => None,
    });
    let most = all.lowest_equivalent(all.max());
    let rows: Vec<_> = rows.filter(|(low, high, _)| *high > all.min() && *low <= most).collect();
    let most = rows.iter().map(|row| row.2).max().unwrap_or_default().max(1);
    let row = |&(low, high, count): &(u64, u64, u64)| {
        let bar = "█".repeat((count as f64 / most as f64 * WIDTH).round() as usize);
        let share = count as f64 * 100.0 / all.len() as f64;
        let line = format!("{:>13}to {:<8} {share:>7.3}% {bar}", format!("{} ", step(low)), step(high));
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(row).collect()
}

/// A bound of the distribution, which is a round number.
fn step(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{} s", us / 1_000_000),
    }
}

/// A line for what one agent did.
fn of_an_agent(a: &AgentReport) -> String {
    if !a.counted {
        let reported = a.loss.as_ref().map_or(0, |loss| loss.reported_requests);
        let reported = if reported > 0 {
            format!("; {reported} reported requests are not counted")
        } else {
            String::new()
        };
        return format!("agent        {}: no result{reported}\n", a.name);
    }
    let part = a.taken_over_from.as_ref().map_or(String::new(), |from| format!(", for {from}"));
    let l = &a.latency_us;
    let verdict = a.verdict.as_ref().map_or(String::new(), |c| format!("; {}", c.limited_by));
    format!(
        "agent        {}{part}: {} connections, {} requests, p50 {} p99 {}, began {:.1} ms late, clock {:+.1} ms{verdict}\n",
        a.name,
        a.connected,
        a.requests,
        micros(l.p50),
        micros(l.p99),
        a.began_late_us / 1e3,
        a.clock_ahead_us / 1e3,
    )
}

fn of_connections(r: &Report) -> String {
    let reset = if r.reset_on_close { ", each reset after its response" } else { "" };
    format!(
        "{} {} over {} connections, model {}, {}\n\
         connections  {} attempted, {} established, {} verified, {:.3} s to open{reset}\n\
         requests     {} in {:.3} s: {:.0} requests/s; {} failed, {} timed out\n\
         bytes        {:.0} sent/s, {:.0} received/s\n",
        r.protocol,
        r.target,
        r.connections,
        r.model,
        counted(r.threads, "thread"),
        r.attempted,
        r.connected,
        r.verified_connections,
        r.connect_s,
        r.requests,
        r.elapsed_s,
        r.requests_per_s,
        r.failed,
        r.timed_out,
        r.sent_bytes_per_s,
        r.received_bytes_per_s,
    )
}

/// Datagrams, which have no connections and may be lost.
fn of_datagrams(r: &Report, udp: &UdpReport) -> String {
    let came_back = if udp.echo {
        format!(
            "came back    {} = {:.0} messages/s; {} lost, {} twice, {} after a later one, {} not as they were sent\n",
            udp.received, r.requests_per_s, udp.lost, udp.duplicated, udp.reordered, udp.corrupt
        )
    } else {
        "came back    not measured: see the server's counters (serve udp --stats)\n".into()
    };
    format!(
        "{} {}, {}, {} bytes a message, path {}\n\
         sent         {} in {:.3} s = {:.0} messages/s, {:.1} a call; {} sends refused\n{came_back}",
        r.protocol,
        r.target,
        counted(r.threads, "flow"),
        r.message_bytes,
        udp.path,
        udp.sent,
        r.elapsed_s,
        udp.sent_per_s,
        udp.sent as f64 / udp.sends.max(1) as f64,
        udp.send_errors,
    )
}

/// How late requests began, where that was measured.
fn begun_late(open: &OpenLoop) -> String {
    if open.delay_v2.is_empty() {
        return String::new();
    }
    let [p50, p99, p99_9] = [open.delay_us.p50, open.delay_us.p99, open.delay_us.p99_9].map(micros);
    format!("begun late   p50 {p50} p99 {p99} p99.9 {p99_9}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_shown_in_round_steps_from_the_least_to_the_most() {
        let mut all = tidegate_load::histogram::empty();
        [150, 160, 170, 700].into_iter().for_each(|us| all.saturating_record(us));
        let r = Report { latency_v2: tidegate_load::histogram::encode(&all), ..Report::default() };
        let shown = distribution(&r);
        let rows: Vec<&str> = shown.lines().collect();
        assert_eq!(rows.len(), 3, "{shown}");
        assert!(rows[0].contains("100 µs to 200 µs") && rows[0].contains("75.000%"), "{shown}");
        assert!(rows[1].ends_with("0.000%") && rows[2].contains("500 µs to 1 ms"), "{shown}");
        assert_eq!(distribution(&Report::default()), "");
    }

    #[test]
    fn a_latency_at_a_bound_is_in_one_step() {
        let mut all = tidegate_load::histogram::empty();
        [499_000, 499_999, 500_000, 500_100].into_iter().for_each(|us| all.saturating_record(us));
        let r = Report { latency_v2: tidegate_load::histogram::encode(&all), ..Report::default() };
        let shown = distribution(&r);
        let shares =
            shown.lines().flat_map(|line| line.split_whitespace()).filter_map(|word| word.strip_suffix('%'));
        let all: f64 = shares.map(|share| share.parse::<f64>().unwrap()).sum();
        assert!((all - 100.0).abs() < 0.01, "{all}: {shown}");
    }
}
