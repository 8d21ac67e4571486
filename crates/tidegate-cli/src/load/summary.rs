//! The result in words.

use tidegate_load::Report;

/// A few lines for a person.
pub fn summary(r: &Report) -> String {
    let us = |us: u64| match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    };
    let l = &r.latency_us;
    let mut text = format!(
        "{} {} over {} connections, model {}, {} thread(s)\n\
         connections  {} attempted, {} stood, {} verified, {:.3} s to open\n\
         requests     {} in {:.3} s: {:.0} requests/s; {} failed, {} timed out\n\
         bytes        {:.0} sent/s, {:.0} received/s\n\
         latency      mean {} stdev {} p50 {} p90 {} p99 {} p99.9 {} max {}\n\
         generator    {:.2} s user + {:.2} s system = {:.3} CPU s per 100,000 requests\n",
        r.protocol,
        r.target,
        r.connections,
        r.model,
        r.threads,
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
        us(l.mean as u64),
        us(l.stdev as u64),
        us(l.p50),
        us(l.p90),
        us(l.p99),
        us(l.p99_9),
        us(l.max),
        r.cpu_user_s,
        r.cpu_system_s,
        (r.cpu_user_s + r.cpu_system_s) * 1e5 / (r.requests.max(1) as f64),
    );
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
    if let Some(open) = &r.open_loop {
        let s = &open.service_us;
        text.push_str(&format!(
            "open loop    {} of {} requests begun, {:.1}/s of {}/s asked; {} late by more than 2 ms, {} of them with a \
             connection free; the latest by {}\n\
             from start   mean {} p50 {} p90 {} p99 {} p99.9 {} max {} (latency above counts from when a request was due)\n",
            open.started,
            open.scheduled,
            open.started_per_s,
            open.rate_per_s,
            open.late_starts,
            open.late_wake_ups,
            us(open.worst_late_us),
            us(s.mean as u64),
            us(s.p50),
            us(s.p90),
            us(s.p99),
            us(s.p99_9),
            us(s.max),
        ));
        if open.not_started > 0 {
            text.push_str(&format!(
                "             {} requests were due but found no connection free: raise -c, or lower --rate\n",
                open.not_started
            ));
        }
    }
    if let Some(certificate) = &r.certificate {
        text.push_str(&format!("verdict      {certificate}\n"));
        for warning in &certificate.warnings {
            text.push_str(&format!("warning      {warning}: {}\n", warning.remedy()));
        }
    }
    text
}
