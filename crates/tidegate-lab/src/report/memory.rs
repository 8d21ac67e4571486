//! Buffers, as a table and charts.

use super::about::shares;
use super::cells::{Cells, NOT_MEASURED, counted, figures_head, figures_row, spread};
use super::chart::Chart;
use super::{svg, verdict};
use crate::experiment::memory::{MESSAGE_BYTES, ResultTable, Row};
use crate::kernel_memory::{socket_bytes, sockets_method};
use crate::spread::Spread;

fn measured(figure: &Option<Spread>) -> String {
    figure.as_ref().map_or(NOT_MEASURED.into(), |figure| match figure.median {
        median if median >= 0.0 => spread(figure, 0),
        median => format!("{median:.0}"), // noise: something else on the machine gave more back
    })
}

/// In the place of what a request costs, where there were too few.
const TOO_FEW: &str = "–";

/// Whether there were enough requests to say what one costs. With fewer answers than connections in a round, most of
/// the processor time was for messages that did not come back in it.
fn has_enough(table: &ResultTable, row: &Row) -> bool {
    row.figures.requests_per_s.median * table.window_s >= table.connections as f64
}

/// Title of the section.
const TITLE: &str = "Buffers: what they cost and save";

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let head = [
        "model",
        "buffers",
        "CPU µs/request",
        "requests/s of a processor",
        "user memory KiB",
        "socket memory KiB",
        "kernel objects KiB",
        "limit",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().map(|row| {
        let [cost, rate] = match has_enough(table, row) {
            true => [
                spread(&row.figures.cpu_s_per_100k.times(10.0), 2),
                verdict::marked(spread(&row.figures.per_processor_s, 0), &row.figures.verdicts),
            ],
            false => [TOO_FEW.into(), TOO_FEW.into()],
        };
        vec![
            row.model.clone(),
            row.buffers.to_string(),
            cost,
            rate,
            spread(&row.user_kib, 0),
            measured(&row.socket_kib),
            measured(&row.object_kib),
            verdict::limits(&row.figures.verdicts),
        ]
    }));
    let too_few = match table.rows.iter().all(|row| has_enough(table, row)) {
        true => "",
        false => {
            " –: fewer messages came back in a round than there are connections, too few to say what one costs."
        }
    };
    let about = format!(
        "An echo server; {} kept, each with one message of {} KiB on its way, {} s a round, {} a \
         row, in turns; median [95% confidence interval], of fewer than four rounds (minimum–maximum). {} What is not \
         named is at its default. User memory is the server's most resident memory not backed by files; socket memory \
         is, at most, {}. Kernel objects are \
         measured: the growth of the slab allocator from before the first connection to the middle of the window, which holds both \
         ends and whatever else the machine did meanwhile ({}). 0 is the system's minimum.{too_few}",
        counted(table.connections, "connection"),
        MESSAGE_BYTES / 1024,
        table.window_s,
        counted(table.repeats, "round"),
        shares(table.rows.iter().map(|row| row.share), &table.throttle),
        sockets_method(socket_bytes()),
        table.objects
    );
    (TITLE.into(), cells, about)
}

/// All figures of all rows, for CSV.
pub(super) fn rows(table: &ResultTable) -> Cells {
    let median =
        |figure: Option<&Spread>| figure.map_or(String::new(), |figure| format!("{:.1}", figure.median));
    let names = ["model", "buffers", "user_kib_median", "socket_kib_median", "kernel_object_kib_median"];
    let mut cells = vec![figures_head(&names)];
    cells.extend(table.rows.iter().map(|row| {
        let memory = [Some(&row.user_kib), row.socket_kib.as_ref(), row.object_kib.as_ref()].map(median);
        let names = [row.model.clone(), row.buffers.to_string()];
        figures_row(names.into_iter().chain(memory).collect(), &row.figures)
    }));
    cells
}

/// Bars of processor time and of socket memory for each model.
pub(super) fn charts(table: &ResultTable) -> Vec<Chart> {
    let mut models: Vec<&str> = table.rows.iter().map(|row| row.model.as_str()).collect();
    models.dedup();
    let draw = |model: &str, name: &str, what: &str, of: &dyn Fn(&Row) -> Option<Spread>| {
        let rows = table.rows.iter().filter(|row| row.model == model);
        let figures: Vec<_> = rows.filter_map(|row| Some((row.buffers.to_string(), of(row)?))).collect();
        let title = format!("{what} ({model})");
        // Marked are those that are set to something.
        let svg = svg::bars(&title, &figures, |name| name != "defaults");
        let name = format!("memory-{name}-{model}");
        (!figures.is_empty()).then(|| Chart { name, title, svg, section: TITLE.into() })
    };
    let both = |model: &&str| {
        let cpu = draw(model, "cpu", "Server processor time for a request in µs", &|row| {
            has_enough(table, row).then(|| row.figures.cpu_s_per_100k.times(10.0))
        });
        let kernel = draw(model, "sockets", "Socket memory of the server in MiB", &|row| {
            row.socket_kib.as_ref().map(|kib| kib.times(1.0 / 1024.0))
        });
        [cpu, kernel]
    };
    models.iter().flat_map(both).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::memory::BufferSettings;
    use crate::experiment::round::Figures;

    fn row(send: Option<usize>, requests_per_s: f64, cost: f64) -> Row {
        let of = |value: f64| Spread::of([value]).unwrap();
        let figures = Figures {
            requests_per_s: of(requests_per_s),
            per_processor_s: of(1e5 / cost),
            cpu_s_per_100k: of(cost),
            ..Figures::default()
        };
        Row {
            model: "epoll".into(),
            buffers: BufferSettings { send, ..BufferSettings::default() },
            user_kib: of(1.0),
            socket_kib: None,
            object_kib: None,
            share: 1.0,
            figures,
        }
    }

    #[test]
    fn no_cost_is_given_for_hardly_any_requests() {
        let rows = vec![row(None, 50_000.0, 2.0), row(Some(0), 0.5, 10_075.994)];
        let table = ResultTable { connections: 1_000, window_s: 2.0, rows, ..ResultTable::default() };
        let (_, cells, about) = section(&table);
        assert_eq!(&cells[1][2..4], ["20.00", "50,000"]);
        assert_eq!(&cells[2][2..4], [TOO_FEW, TOO_FEW]);
        assert!(about.contains("too few to say what one costs"), "{about}");
        let svg = charts(&table).into_iter().find(|chart| chart.name == "memory-cpu-epoll").unwrap().svg;
        assert!(svg.contains(">20.00<") && !svg.contains("100,760"), "{svg}");
        let usual = ResultTable { rows: table.rows[..1].to_vec(), ..table };
        assert!(!section(&usual).2.contains("too few"));
    }
}
