//! Survival under attack, as a table.

use super::cells::{Cells, NOT_MEASURED, grouped};
use crate::experiment::survival::{Attackers, LEAST_RATIO, ResultTable, Row, ServiceQuality};
use crate::kernel_memory::{socket_bytes, sockets_method};

/// A row for each model.
pub(super) fn cells(table: &ResultTable) -> Cells {
    let head = [
        "model",
        "before requests/s (p99 ms)",
        "under attack",
        "after",
        "under/before",
        "errors",
        "user memory KiB (before/under)",
        "bound KiB",
        "kernel socket memory KiB (before/under)",
        "silent ended (mean s)",
        "trickle ended (mean s)",
        "flood ended (mean s)",
        "survived",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().map(row));
    cells
}

fn row(row: &Row) -> Vec<String> {
    let service =
        |s: &ServiceQuality| format!("{} ({:.1})", grouped(s.requests_per_s as u64), s.p99_us as f64 / 1e3);
    let kib = |bytes: u64| grouped(bytes / 1024);
    let kernel = |s: &ServiceQuality| s.kernel_bytes.map_or(NOT_MEASURED.into(), kib);
    let ended = |kind: &str| {
        let found = row.attack.kinds.iter().find(|entry| entry.kind == kind);
        found.map_or("–".into(), |entry| {
            let mean = entry.lasted_s.map_or(String::new(), |[_, mean, _]| format!(" ({mean:.1})"));
            format!("{}{mean}", grouped(entry.ended_by_server()))
        })
    };
    let errors = [&row.before, &row.under, &row.after].map(|s| s.errors).iter().sum::<u64>();
    vec![
        row.model.clone(),
        service(&row.before),
        service(&row.under),
        service(&row.after),
        format!("{:.2}", row.ratio()),
        grouped(errors),
        format!("{}/{}", kib(row.before.user_bytes), kib(row.under.user_bytes)),
        kib(row.bound_bytes),
        format!("{}/{}", kernel(&row.before), kernel(&row.under)),
        ended("silent"),
        ended("trickle"),
        ended("flood"),
        if row.faults().is_empty() { "yes" } else { "no" }.into(),
    ]
}

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let Attackers { silent, trickle, flood, half_open, resets_per_s } = table.attackers;
    let about = format!(
        "{} clients that wait for each answer (keep-alive, 4 KiB page) before, under and after a mixed attack of {:.0} s on serve http: {silent} connections that \
        never speak, {trickle} that send one byte a second, {flood} that flood and never read, {half_open} that finish sending in mid-request, {resets_per_s} resets a second; \
        whatever the server ends comes again. Ended: attackers that the server ended, and after how long on average. The server: first byte and send timeout 5 s, at least 500 B/s after a grace of 2 s, 2,000 connections. Clients and attackers share \
        their processor. Survived: at least {LEAST_RATIO} of the undisturbed rate, no error, user memory (not backed by files) within the bound that follows from the policy. Kernel socket memory is {}.",
        table.clients,
        table.attack_s,
        sockets_method(socket_bytes())
    );
    ("Survival under attack".into(), cells(table), about)
}
