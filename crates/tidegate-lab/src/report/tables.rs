//! Tables as cells, CSV and Markdown.

use super::charts::Chart;
use super::{Measured, Results, answer, verdict};
use crate::bootstrap::Interval;
use crate::experiment::models::Pace;
use crate::experiment::round::Figures;
use crate::experiment::{LeftOut, concurrency, connections, models};
use crate::spread::Spread;

/// A head and rows.
pub type Cells = Vec<Vec<String>>;

/// Table 6-3 as cells, models that are left out included.
#[must_use]
pub fn models_cells(table: &models::Table) -> Cells {
    let head = [
        "model",
        "clients",
        "attempted/connected",
        "user memory KiB",
        "kernel socket memory KiB",
        "CPU %",
        "threads",
        "send/receive B/s",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "CPU s/100k",
        "limit",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    for row in &table.rows {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        cells.push(vec![
            row.model.clone(),
            match row.pace {
                Pace::Unlimited => "unlimited".into(),
                Pace::Limited { bytes_per_s } => format!("{} B/s a block", grouped(bytes_per_s)),
            },
            format!("{}/{}", row.attempted, row.connected),
            grouped(row.usage.user_memory_kib),
            row.usage.kernel_memory_kib.map_or("not measured".into(), grouped),
            format!("{:.0}", row.usage.cpu_percent),
            row.usage.threads.to_string(),
            format!(
                "{}/{}",
                grouped(row.load.received_bytes_per_s as u64),
                grouped(row.load.sent_bytes_per_s as u64)
            ),
            grouped(row.load.requests_per_s as u64),
            ms(row.load.latency_us.p50),
            ms(row.load.latency_us.p99),
            spread(&row.figures.cpu_s_per_100k, 3),
            verdict::limits(&row.figures.verdicts),
        ]);
    }
    cells.extend(left_out(&table.left_out, head.len()));
    cells
}

pub(super) fn left_out(models: &[LeftOut], width: usize) -> impl Iterator<Item = Vec<String>> {
    models.iter().map(move |out| {
        let mut row = vec!["–".to_owned(); width];
        row[0].clone_from(&out.model);
        row
    })
}

/// A line for each model, a column for each `x` that occurs, under its name.
pub(super) fn pivot<R>(
    rows: &[R],
    key: impl Fn(&R) -> (&str, u64),
    name: impl Fn(u64) -> String,
    cell: impl Fn(&R) -> String,
    without: &[LeftOut],
) -> Cells {
    let (mut models, mut xs): (Vec<&str>, Vec<u64>) = rows.iter().map(&key).unzip();
    models.dedup();
    xs.sort_unstable();
    xs.dedup();
    let head = xs.iter().map(|&x| name(x));
    let mut cells: Cells = vec![std::iter::once("model".to_owned()).chain(head).collect()];
    for model in models {
        let at = |&x: &u64| rows.iter().find(|row| key(row) == (model, x)).map_or("–".into(), &cell);
        cells.push(std::iter::once(model.to_owned()).chain(xs.iter().map(at)).collect());
    }
    cells.extend(left_out(without, xs.len() + 1));
    cells
}

/// Responses against concurrency: a line for each model, a column for each concurrency, of one figure.
#[must_use]
pub fn concurrency_cells(table: &concurrency::Table, of: fn(&Figures) -> Spread, digits: usize) -> Cells {
    pivot(
        &table.points,
        |point| (&point.model, point.concurrency as u64),
        grouped,
        |point| spread(&of(&point.figures), digits),
        &table.left_out,
    )
}

/// All figures of all points, one row each, for CSV.
pub(super) fn concurrency_rows(table: &concurrency::Table) -> Cells {
    let mut cells = vec![figures_head(&["model", "concurrency"])];
    for p in &table.points {
        cells.push(figures_row(vec![p.model.clone(), p.concurrency.to_string()], &p.figures));
    }
    cells
}

/// The head of a table for CSV with a column for each figure.
pub(super) fn figures_head(names: &[&str]) -> Vec<String> {
    let mut head: Vec<String> = names.iter().map(ToString::to_string).chain(["rounds".to_owned()]).collect();
    for figure in
        ["requests_per_s", "per_processor_s", "mean_us", "p50_us", "p99_us", "p99_9_us", "cpu_s_per_100k"]
    {
        head.extend(["median", "low", "high", "min", "max"].map(|part| format!("{figure}_{part}")));
    }
    head.extend(["failed".to_owned(), "limits".to_owned()]);
    head
}

/// A row of it.
pub(super) fn figures_row(mut row: Vec<String>, f: &Figures) -> Vec<String> {
    row.push(f.requests_per_s.rounds.len().to_string());
    for s in [
        &f.requests_per_s,
        &f.per_processor_s,
        &f.mean_us,
        &f.p50_us,
        &f.p99_us,
        &f.p99_9_us,
        &f.cpu_s_per_100k,
    ] {
        let end = |of: fn(Interval) -> f64| s.interval.map_or(String::new(), |i| format!("{:.4}", of(i)));
        row.extend([format!("{:.4}", s.median), end(|i| i.low), end(|i| i.high)]);
        row.extend([s.min, s.max].map(|v| format!("{v:.4}")));
    }
    row.push(f.failed.to_string());
    row.push(verdict::limits(&f.verdicts));
    row
}

/// Very many connections as cells, models that are left out included.
#[must_use]
pub fn connections_cells(table: &connections::Table) -> Cells {
    let head = [
        "model",
        "connections asked for",
        "attempted/connected/verified",
        "held",
        "user B/connection",
        "kernel B/connection",
        "connects/s",
        "threads",
        "probe alone µs (mean/p50/p99)",
        "probe among idle µs (mean/p50/p99)",
    ];
    let each = |bytes: Option<f64>| bytes.map_or("not measured".into(), |b| grouped(b.round() as u64));
    let probe = |p: &connections::Probe| format!("{:.0}/{}/{}", p.mean_us, p.p50_us, p.p99_us);
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    for row in &table.rows {
        cells.push(vec![
            row.model.clone(),
            grouped(row.asked),
            [row.attempted, row.connected, row.verified].map(grouped).join("/"),
            row.held.map_or("not measured".into(), grouped),
            each(row.user_bytes_each),
            each(row.kernel_bytes_each),
            grouped(row.connects_per_s as u64),
            row.threads.to_string(),
            probe(&row.probe_alone),
            row.probe_among.as_ref().map_or("–".into(), probe),
        ]);
    }
    cells.extend(left_out(&table.left_out, head.len()));
    cells
}

/// The same for CSV, every figure in a separate column.
pub(super) fn connections_rows(table: &connections::Table) -> Cells {
    let head = "model,asked,attempted,connected,verified,held,held_s,connect_s,connects_per_s,threads,user_bytes_before,user_bytes_with,\
        kernel_bytes_before,kernel_bytes_with,user_bytes_per_connection,kernel_bytes_per_connection,\
        probe_alone_round_trips,probe_alone_mean_us,probe_alone_p50_us,probe_alone_p99_us,probe_among_round_trips,probe_among_mean_us,probe_among_p50_us,probe_among_p99_us";
    let mut cells: Cells = vec![head.split(',').map(Into::into).collect()];
    let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let decimal = |v: Option<f64>| v.map(|v| format!("{v:.4}")).unwrap_or_default();
    for r in &table.rows {
        let mut row = vec![r.model.clone()];
        row.extend([r.asked, r.attempted, r.connected, r.verified].map(|n| n.to_string()));
        row.push(number(r.held));
        row.extend([r.held_s, r.load.connect_s, r.connects_per_s].map(|v| decimal(Some(v))));
        row.extend([r.threads, r.user_bytes[0], r.user_bytes[1]].map(|n| n.to_string()));
        row.extend([r.kernel_bytes.map(|b| b[0]), r.kernel_bytes.map(|b| b[1])].map(number));
        row.extend([r.user_bytes_each, r.kernel_bytes_each].map(decimal));
        for probe in [Some(r.probe_alone), r.probe_among] {
            row.push(number(probe.map(|p| p.round_trips)));
            row.push(decimal(probe.map(|p| p.mean_us)));
            row.extend([probe.map(|p| p.p50_us), probe.map(|p| p.p99_us)].map(number));
        }
        cells.push(row);
    }
    cells
}

/// A median with its confidence interval; of too few rounds for one, with minimum and maximum.
pub(super) fn spread(s: &Spread, digits: usize) -> String {
    let number = |v: f64| if digits == 0 { grouped(v.round() as u64) } else { format!("{v:.digits$}") };
    let bounds = s.bounds();
    match (s.rounds.len(), s.interval) {
        (1, _) => number(s.median),
        (_, Some(_)) => format!("{} [{}–{}]", number(s.median), number(bounds.low), number(bounds.high)),
        (_, None) => format!("{} ({}–{})", number(s.median), number(bounds.low), number(bounds.high)),
    }
}

/// With commas between thousands.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// RFC 4180: cells with commas, quotes or line ends are quoted.
pub(super) fn csv(cells: &Cells) -> String {
    let cell = |c: &String| {
        if c.contains([',', '"', '\n']) { format!("\"{}\"", c.replace('"', "\"\"")) } else { c.clone() }
    };
    cells.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n").collect()
}

fn markdown_table(cells: &Cells) -> String {
    let line = |row: &Vec<String>| {
        format!("| {} |\n", row.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let mut rows = cells.iter();
    let head =
        rows.next().map(|head| line(head) + "|" + &"---|".repeat(head.len()) + "\n").unwrap_or_default();
    head + &rows.map(line).collect::<String>()
}

/// The sections of a report: a title, a table and what is to be said about it.
#[must_use]
pub fn sections(results: &Results) -> Vec<(String, Cells, String)> {
    let mut sections = Vec::new();
    if let Some(table) = &results.models {
        let memory = if results.circumstances.machine.is_windows() {
            "User memory is memory of the server's own; kernel socket memory is its quota of non-paged pool, not measured where the system does not count that (Wine)."
        } else {
            "User memory is resident memory not backed by files; kernel socket memory is what the kernel charges to the server's sockets plus \
            3,392 bytes of structures for each (thread stacks in the kernel are not in it)."
        };
        let about = format!(
            "An echo server on each model. Connected are connections on which every byte came back right. {memory} CPU is of one processor, over the measuring window. \
            Send and receive are the server's. Of several rounds the one with the middle CPU cost is shown; CPU seconds for 100,000 messages are the median of all, with its 95% confidence interval."
        );
        sections.push(("Table 6-3: I/O methods compared".into(), models_cells(table), about));
    }
    if let Some(table) = results.concurrency.as_ref().filter(|table| !table.points.is_empty()) {
        let kept = if table.keep_alive { "connections kept" } else { "a new connection for each request" };
        let shares = table.points.iter().map(|point| point.share * 100.0);
        let (low, high) = shares.fold((100.0, 0.0), |(low, high): (f64, f64), s| (low.min(s), high.max(s)));
        let peaks = if table.program.is_some() {
            " The peak is of resident memory, the program's own pages included, until the end of a round."
        } else {
            ""
        };
        let page =
            table.program.as_deref().map_or("A 4 KiB page".to_owned(), |program| format!("`{program}`"));
        let about = format!(
            "{page}, {kept}, {} a round, {} round(s) a point, models in turn; median [95% confidence interval], of fewer than four rounds (minimum–maximum). \
            So that the load is not the limit, servers were kept to {low:.0}–{high:.0}% of a processor by {}; rates are for a whole one.{peaks}",
            table.length, table.repeats, table.throttle,
        );
        sections.push(("Which model".into(), answer::cells(table), about.clone()));
        let cells = |of, digits| concurrency_cells(table, of, digits);
        sections.push((
            "Responses a second of one processor, against concurrency".into(),
            cells(|f| f.per_processor_s.clone(), 0),
            about.clone(),
        ));
        sections.push((
            "Server processor time for a response in µs, against concurrency".into(),
            cells(|f| f.cpu_s_per_100k.times(10.0), 2),
            about,
        ));
    }
    sections.extend(results.demand.iter().flat_map(super::demand::sections));
    if let Some(table) = &results.connections {
        let about = "An echo server on each model; connections are opened in blocks of 1,000, each sends one message of 64 bytes that has to come back right, \
            and then rests. Held are those still open at the end. Memory is the server's with all of them less that before the first one, divided by those \
            connected: user is resident memory not backed by files, buffers included; kernel is what the kernel charges to the sockets plus 3,392 bytes of structures \
            for each (stacks of threads and tables of rings in the kernel are not in it). Connects are counted until the last attempt has ended. The probe is one more connection from a separate process that sends 64 bytes at a time and waits for \
            them, before the others are opened and while they rest. One run each.";
        sections.push(("Very many connections".into(), connections_cells(table), about.into()));
    }
    sections.extend(results.survival.as_ref().map(super::survival::section));
    sections.extend(results.udp.as_ref().map(super::udp::section));
    sections.extend(results.peers.iter().flat_map(super::peers::sections));
    sections.extend(results.latency.as_ref().map(super::latency::section));
    sections
}

/// Models left out, those with the same reason together.
#[must_use]
pub fn left_out_together(results: &Results) -> Vec<(Vec<&str>, &str)> {
    let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
    for LeftOut { model, why } in results.tables().into_iter().flat_map(Measured::left_out) {
        match reasons.iter_mut().find(|(_, reason)| reason == why) {
            Some((models, _)) if models.contains(&model.as_str()) => {}
            Some((models, _)) => models.push(model),
            None => reasons.push((vec![model], why)),
        }
    }
    reasons
}

pub(super) fn markdown(results: &Results, charts: &[Chart]) -> String {
    let answer = answer::sentence(results).map_or(String::new(), |answer| format!("**{answer}**\n\n"));
    let mut text = format!("# tidegate on this machine\n\n{answer}{}\n", results.method());
    for (title, cells, about) in sections(results) {
        text += &format!("\n## {title}\n\n{}\n{about}\n", markdown_table(&cells));
    }
    for chart in charts {
        text += &format!("\n![{}]({}.svg)\n", chart.title, chart.name);
    }
    let rows = results.rows();
    if let Some(summary) = verdict::summary(&rows) {
        text += &format!("\n## Who was the limit\n\n{summary}\n\n");
        text += &verdict::doubts(&rows).iter().map(|d| format!("- {}\n", d.line())).collect::<String>();
    }
    let remarks = results.remarks();
    if !remarks.is_empty() {
        text += "\n## Remarks\n\n";
        text += &remarks.iter().map(|r| format!("- {r}\n")).collect::<String>();
    }
    let reasons = left_out_together(results);
    if !reasons.is_empty() {
        text += "\n## Left out\n\n";
        let line = |(models, why): &(Vec<&str>, &str)| format!("- `{}`: {why}\n", models.join("`, `"));
        text += &reasons.iter().map(line).collect::<String>();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_cells_quoted() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let cells = vec![vec!["a,b".to_owned(), "c\"d".to_owned()], vec!["1".to_owned(), "x|y".to_owned()]];
        assert_eq!(csv(&cells), "\"a,b\",\"c\"\"d\"\n1,x|y\n");
        assert_eq!(markdown_table(&cells), "| a,b | c\"d |\n|---|---|\n| 1 | x\\|y |\n");
    }

    #[test]
    fn a_spread_shows_how_far_apart_the_rounds_lay() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        assert_eq!(spread(&of(&[1000.0, 1500.4, 2000.0]), 0), "1,500 (1,000–2,000)");
        assert_eq!(spread(&of(&[1.0, 2.0, 3.0, 4.0, 5.0]), 1), "3.0 [1.0–5.0]");
        assert_eq!(spread(&of(&[1500.4]), 1), "1500.4");
    }
}
