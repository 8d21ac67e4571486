//! The charts of a report.

use super::chart::{Chart, chart, judged_series, series};
use super::sections::{CONNECTIONS, COST, RESPONSES, TABLE_6_3, of_page};
use super::svg::{self, ChartPoint, MAXIMUM, Scale, Sheet};
use super::{Results, answer, verdict};
use crate::experiment::models::{ClientPace, size_in_words};
use crate::experiment::peers::{Case, PAGE_BYTES};
use crate::experiment::round::Figures;
use crate::experiment::{concurrency, connections, latency, models, peers};
use crate::spread::Spread;

/// All charts for which there are figures.
pub(super) fn of(results: &Results) -> Vec<Chart> {
    let mut charts: Vec<Chart> = results.answered().and_then(answer::chart).into_iter().collect();
    let tables = results.concurrency.iter().chain(&results.pages);
    charts.extend(tables.filter(|table| has_lines(table)).flat_map(against_concurrency));
    charts.extend(results.demand.as_ref().and_then(super::demand::chart));
    charts.extend(results.models.iter().flat_map(|table| [percentiles(table), time_series(table)]));
    charts.extend(results.connections.as_ref().map(memory));
    charts.extend(results.memory.iter().flat_map(super::memory::charts));
    charts.extend(results.files.iter().flat_map(super::files::charts));
    charts.extend(results.peers.as_ref().map(beside_others).unwrap_or_default());
    charts.extend(results.latency.iter().filter(|table| !table.sizes.is_empty()).flat_map(round_trips));
    charts
}

/// Whether there is more than one point of a model.
fn has_lines(table: &concurrency::ResultTable) -> bool {
    table.points.iter().any(|point| point.concurrency != table.points[0].concurrency)
}

fn against_concurrency(table: &concurrency::ResultTable) -> Vec<Chart> {
    let kept = if table.keep_alive { "connections kept" } else { "a connection for each request" };
    let draw = |name: &str, section: &str, title: &str, y_title, y, of: fn(&Figures) -> Spread| {
        let points = table.points.iter().map(|p| {
            let is_doubtful = verdict::is_doubtful(&p.figures.verdicts);
            (p.model.clone(), ChartPoint { x: p.concurrency as f64, figure: of(&p.figures), is_doubtful })
        });
        let page = of_page(table);
        let title = format!("{title} ({kept}{page})");
        let name = match table.page_bytes {
            PAGE_BYTES => String::from(name),
            bytes => format!("{name}-{bytes}"),
        };
        let section = format!("{section}{page}");
        let sheet = Sheet { title: &title, x_title: "concurrent requests", y_title, x: Scale::Log, y };
        chart(&name, &section, &sheet, &judged_series(points))
    };
    vec![
        draw(
            "responses",
            RESPONSES,
            "Responses a second of one processor",
            "responses/s",
            Scale::Linear,
            |f| f.per_processor_s.clone(),
        ),
        draw("cpu", COST, "Server processor time for a response", "µs", Scale::Log, |f| {
            f.cpu_s_per_100k.times(10.0)
        }),
    ]
}

/// The rows of Table 6-3 with unlimited clients.
fn unlimited(table: &models::ResultTable) -> impl Iterator<Item = &models::Row> {
    table.rows.iter().filter(|row| row.pace == ClientPace::Unlimited)
}

/// A model, with its connections if they differ between its rows, and the size of unusual messages.
fn label(table: &models::ResultTable, row: &models::Row) -> String {
    let size = size_in_words(row.pace, row.message_bytes);
    let of_model = || unlimited(table).filter(|other| other.model == row.model);
    match of_model().all(|other| other.attempted == row.attempted) {
        true => format!("{}{size}", row.model),
        false => format!("{}, {}{size}", row.model, row.attempted),
    }
}

fn percentiles(table: &models::ResultTable) -> Chart {
    let points = unlimited(table).flat_map(|row| {
        let is_doubtful = verdict::is_doubtful(&row.figures.verdicts);
        let l = &row.load.latency_us;
        let at =
            [(2.0, l.p50), (4.0, l.p75), (10.0, l.p90), (100.0, l.p99), (1_000.0, l.p99_9), (MAXIMUM, l.max)];
        at.into_iter().filter_map(move |(x, us)| {
            let figure = Spread::of([us as f64 / 1e3]).filter(|s| s.median > 0.0)?;
            Some((label(table, row), ChartPoint { x, figure, is_doubtful }))
        })
    });
    let sheet = Sheet {
        title: "Latency of echo messages, clients without limit",
        x_title: "percentile",
        y_title: "ms",
        x: Scale::Percentile,
        y: Scale::Log,
    };
    chart("latency", TABLE_6_3, &sheet, &judged_series(points))
}

fn time_series(table: &models::ResultTable) -> Chart {
    let points = unlimited(table).flat_map(|row| {
        let is_doubtful = verdict::is_doubtful(&row.figures.verdicts);
        // What is not a second long is the time after the window, in which the last answers are waited for.
        let seconds = row.load.seconds.iter().filter(|second| (second.length_s - 1.0).abs() < 0.1);
        seconds.filter_map(move |second| {
            let figure = Spread::of([second.requests as f64 / second.length_s / row.share])?;
            Some((label(table, row), ChartPoint { x: second.at_s, figure, is_doubtful }))
        })
    });
    let sheet = Sheet {
        title: "Echo messages in each second of one processor, clients without limit",
        x_title: "seconds",
        y_title: "messages/s",
        x: Scale::Linear,
        y: Scale::Linear,
    };
    chart("seconds", TABLE_6_3, &sheet, &judged_series(points))
}

/// Round trips by message size.
fn round_trips(table: &latency::ResultTable) -> [Chart; 2] {
    let draw = |name, title, y_title, of: fn(&latency::Row) -> &Spread| {
        let points = table
            .sizes
            .iter()
            .map(|row| (row.setup.transport.name().to_owned(), row.message_bytes as f64, of(row).clone()));
        let sheet = Sheet { title, x_title: "bytes of a message", y_title, x: Scale::Log, y: Scale::Log };
        chart(name, super::latency::TITLE, &sheet, &series(points))
    };
    [
        draw("round-trip", "Mean round trip, both sides spinning", "µs", |row| &row.mean_us),
        draw("throughput", "Bytes each way, both sides spinning", "bytes/s", |row| &row.bytes_per_s),
    ]
}

/// User and kernel memory of each model by connections.
fn memory(table: &connections::ResultTable) -> Chart {
    let kind = |name: &'static str, of: fn(&connections::Row) -> Option<f64>| {
        table.rows.iter().filter_map(move |row| {
            // A logarithmic axis has no place for nothing.
            let bytes = Spread::of([of(row).filter(|&bytes| bytes > 0.0)?])?;
            Some((format!("{} {name}", row.model), row.connected as f64, bytes))
        })
    };
    let points = kind("kernel", |row| row.kernel_bytes_each).chain(kind("user", |row| row.user_bytes_each));
    let sheet = Sheet {
        title: "Server memory for each idle connection",
        x_title: "connections",
        y_title: "bytes for each",
        x: Scale::Log,
        y: Scale::Log,
    };
    chart("connections", CONNECTIONS, &sheet, &series(points))
}

/// Bars for each case: multiples of the baseline, or CPU seconds without a baseline.
fn beside_others(table: &peers::ResultTable) -> Vec<Chart> {
    let mut cases: Vec<Case> = table.rows.iter().map(|row| row.case).collect();
    cases.dedup();
    let draw = |(i, case): (usize, Case)| {
        let rows = || table.rows.iter().filter(move |row| row.case == case);
        let has_baseline = rows().all(|row| row.times_baseline.is_some());
        let of = |row: &peers::Row| match (&row.times_baseline, has_baseline) {
            (Some(times), true) => times.clone(),
            _ => row.figures.cpu_s_per_100k.clone(),
        };
        let what = if has_baseline {
            "CPU per request, times the baseline"
        } else {
            "CPU seconds for 100,000 requests"
        };
        let title = format!("{what} ({})", case.words());
        let figures: Vec<_> = rows().map(|row| (row.name.clone(), of(row))).collect();
        let svg = svg::bars(&title, &figures, |name| name.starts_with("tidegate "));
        Chart { name: format!("peers-{}", i + 1), title, svg, section: super::peers::title(case) }
    };
    cases.into_iter().enumerate().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::Report;
    use tidegate_load::report::{Latency, Second};
    use tidegate_load::verdict::{Evidence, LimitedBy, Verdict};

    fn row(model: &str, limited_by: LimitedBy) -> models::Row {
        let verdict = Verdict {
            limited_by,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        let second = Second { at_s: 1.0, length_s: 1.0, requests: 100, ..Second::default() };
        let latency_us =
            Latency { p50: 10, p75: 20, p90: 30, p99: 40, p99_9: 50, max: 60, ..Latency::default() };
        models::Row {
            model: model.into(),
            pace: ClientPace::Unlimited,
            message_bytes: models::MESSAGE_BYTES,
            asked: 10,
            attempted: 10,
            connected: 10,
            verified: 10,
            bound: None,
            share: 1.0,
            usage: crate::sample::Usage::default(),
            load: Report { latency_us, seconds: vec![second], ..Report::default() },
            figures: Figures { verdicts: vec![verdict], ..Figures::default() },
        }
    }

    #[test]
    fn points_of_models_are_hollow_where_the_load_was_the_limit() {
        let rows = vec![row("epoll", LimitedBy::Server), row("poll", LimitedBy::Generator)];
        let table = models::ResultTable { rows, ..models::ResultTable::default() };
        let hollow = |chart: Chart| chart.svg.matches("class=\"h\"").count();
        assert_eq!(hollow(percentiles(&table)), 6 + 1, "six percentiles of poll, and one in the legend");
        assert_eq!(hollow(time_series(&table)), 1 + 1, "one second of poll, and one in the legend");
    }
}
