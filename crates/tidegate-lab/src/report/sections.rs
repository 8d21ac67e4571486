//! The sections of a report, in their order.

use super::about::{AS_ABOVE, shares};
use super::cells::{Cells, counted};
use super::tables::{concurrency_cells, connections_cells, models_cells};
use super::{Results, TableNotes, answer, verdict};
use crate::experiment::models::ClientPace;
use crate::experiment::peers::PAGE_BYTES;
use crate::experiment::{LeftOut, concurrency};
use crate::kernel_memory::{objects_method, socket_bytes, sockets_method};

/// Titles of sections with charts.
pub(super) const TABLE_6_3: &str = "Table 6-3: I/O methods compared";
pub(super) const RESPONSES: &str = "Responses a second of one processor, against concurrency";
pub(super) const COST: &str = "Server processor time for a response in µs, against concurrency";
pub(super) const CONNECTIONS: &str = "Very many connections";

/// The sections of a report: a title, a table and what is to be said about it.
#[must_use]
pub fn sections(results: &Results) -> Vec<(String, Cells, String)> {
    let mut sections = Vec::new();
    if let Some(table) = &results.models {
        let memory = if results.circumstances.machine.is_windows() {
            "User memory is memory of the server's own; kernel socket memory is its quota of non-paged pool, not \
             measured where the system does not count that (Wine)."
                .to_owned()
        } else {
            format!(
                "User memory is resident memory not backed by files; kernel socket memory is {} (thread stacks in the \
                 kernel are not in it).",
                sockets_method(socket_bytes())
            )
        };
        let unlimited = table.rows.iter().filter(|row| row.pace == ClientPace::Unlimited);
        let kept_to = shares(unlimited.map(|row| row.share), &table.throttle);
        let about = format!(
            "An echo server on each model. {kept_to} That is about unlimited clients; their latencies are as they were with that share. Connected are established connections; verified are those on which a whole \
             message came back right within the window. Clients send their next message when the last one came back \
             (unlimited), without waiting for it until so many are on their way (outstanding), or at the rate of their \
             block. {memory} CPU is of what the server had of one processor, over the measuring window. Send and receive are the server's. Of \
             several rounds the one with the middle CPU cost is shown; CPU seconds for 100,000 messages are the median \
             of all, with its 95% confidence interval."
        );
        sections.push((TABLE_6_3.into(), models_cells(table), about));
    }
    if let Some(table) = results.answered() {
        let about = about_concurrency(table)
            + " c: requests at once; /s: responses a second. Times the cheapest: round by round, the geometric mean of the points.";
        sections.push((answer::WHICH.into(), answer::cells(table), about));
    }
    let of_sizes = results.concurrency.iter().chain(&results.pages);
    for table in of_sizes.filter(|table| !table.points.is_empty()) {
        let cells = |of, digits| concurrency_cells(table, of, digits);
        let title = |title: &str| format!("{title}{}", of_page(table));
        sections.push((title(RESPONSES), cells(|f| f.per_processor_s.clone(), 0), about_concurrency(table)));
        sections.push((title(COST), cells(|f| f.cpu_s_per_100k.times(10.0), 2), AS_ABOVE.into()));
    }
    sections.extend(results.reuse.as_ref().and_then(super::reuse::section));
    sections.extend(results.demand.iter().flat_map(super::demand::sections));
    if let Some(table) = &results.connections {
        let about = format!(
            "An echo server on each model; connections are opened in blocks of 1,000, each sends one message of 64 \
             bytes that has to come back right, and then rests. Held are those still open at the end. Memory is the \
             server's with all of them less that before the first one, divided by those connected: user is resident \
             memory not backed by files, buffers included; kernel is {} \
             (stacks of threads and tables of rings in the kernel are not in it). Kernel \
             objects are measured: the growth of the slab allocator, in which are both ends, if the load is on this \
             machine, and whatever else it did meanwhile ({}). Connects are counted until the last attempt has ended. \
             The probe is one more connection from a separate process that sends 64 bytes at a time and waits for \
             them, before the others are opened and while they rest. One run each.",
            sockets_method(socket_bytes()),
            objects_method()
        );
        sections.push((CONNECTIONS.into(), connections_cells(table), about));
    }
    sections.extend(results.memory.as_ref().map(super::memory::section));
    sections.extend(results.files.as_ref().map(super::files::section));
    sections.extend(results.survival.as_ref().map(super::survival::section));
    sections.extend(results.udp.as_ref().map(super::udp::section));
    sections.extend(results.peers.iter().flat_map(super::peers::sections));
    sections.extend(results.latency.as_ref().map(super::latency::section));
    let with_legend = |(title, cells, about)| {
        let about = verdict::with_legend(&cells, about);
        (title, cells, about)
    };
    sections.into_iter().map(with_legend).collect()
}

/// The size of the page where it is not the usual one, to be added to a title.
pub(super) fn of_page(table: &concurrency::ResultTable) -> String {
    match table.page_bytes {
        PAGE_BYTES => String::new(),
        bytes => format!(", {}", page(bytes)),
    }
}

/// A page of so many bytes, in words.
fn page(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1024) => format!("a {} KiB page", bytes / 1024),
        bytes => format!("a page of {bytes} bytes"),
    }
}

/// How responses were measured.
fn about_concurrency(table: &concurrency::ResultTable) -> String {
    let kept = if table.keep_alive { "connections kept" } else { "a new connection for each request" };
    let kept_to = shares(table.points.iter().map(|point| point.share), &table.throttle);
    let peaks = if table.program.is_some() {
        " The peak is of resident memory, the program's own pages included, until the end of a round."
    } else {
        ""
    };
    let page =
        table.program.as_deref().map_or_else(|| page(table.page_bytes), |program| format!("`{program}`"));
    let page = page.replacen("a ", "A ", 1);
    format!(
        "{page}, {kept}, {} a round, {} a point, models in turn; median [95% confidence interval], of fewer \
         than four rounds (minimum–maximum). {kept_to}{peaks}",
        table.length,
        counted(table.repeats, "round"),
    )
}

/// Models left out, those with the same reason together.
#[must_use]
pub fn left_out_together(results: &Results) -> Vec<(Vec<&str>, &str)> {
    let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
    for LeftOut { model, why } in results.tables().into_iter().flat_map(TableNotes::left_out) {
        match reasons.iter_mut().find(|(_, reason)| reason == why) {
            Some((models, _)) if models.contains(&model.as_str()) => {}
            Some((models, _)) => models.push(model),
            None => reasons.push((vec![model], why)),
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;
    use crate::experiment::{latency, models, reuse, udp};

    fn out(model: &str, why: &str) -> LeftOut {
        LeftOut { model: model.into(), why: why.into() }
    }

    #[test]
    fn a_model_that_several_tables_leave_out_is_named_once_beside_others_with_its_reason() {
        const WINDOWS: &str = "it is a model of Windows";
        const DATAGRAMS: &str = "no loop for datagrams";
        let mut results = Results::new(&Bench::new("tidegate".into(), &[0, 1]));
        assert!(left_out_together(&results).is_empty());
        let of_windows = || vec![out("iocp", WINDOWS), out("rio", WINDOWS)];
        results.models =
            Some(models::ResultTable { left_out: of_windows(), ..models::ResultTable::default() });
        let page = concurrency::ResultTable {
            left_out: vec![out("overlapped", WINDOWS), out("rio", WINDOWS)],
            ..concurrency::ResultTable::default()
        };
        results.pages.push(page);
        results.reuse = Some(reuse::ResultTable {
            left_out: vec![out("iocp", WINDOWS)],
            ..reuse::ResultTable::default()
        });
        results.udp = Some(udp::ResultTable {
            left_out: vec![out("rio", DATAGRAMS), out("rio", DATAGRAMS)],
            ..udp::ResultTable::default()
        });
        results.latency =
            Some(latency::ResultTable { left_out: of_windows(), ..latency::ResultTable::default() });
        // In the order of the report, in which the tables of other pages are last.
        let expected = [(vec!["iocp", "rio", "overlapped"], WINDOWS), (vec!["rio"], DATAGRAMS)];
        assert_eq!(left_out_together(&results), expected);
    }
}
