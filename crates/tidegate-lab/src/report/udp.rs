//! Datagrams as a table.

use super::cells::{Cells, counted, grouped, spread};
use super::verdict;
use crate::experiment::udp::{PACKETS_PER_REQUEST, ResultTable};

/// A row for each model, size and path.
pub(super) fn cells(table: &ResultTable) -> Cells {
    let estimate = format!("taken/s ÷ {PACKETS_PER_REQUEST:.0} (the book's estimate of TCP requests/s)");
    let head = [
        "model",
        "bytes",
        "path",
        "sent/s",
        "taken/s",
        "times plain",
        "server CPU µs each",
        "limit",
        &estimate,
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().map(|row| {
        vec![
            row.model.clone(),
            grouped(row.bytes as u64),
            row.path.clone(),
            spread(&row.sent_per_s, 0),
            spread(&row.taken_per_s, 0),
            row.times_plain.map_or("–".into(), |times| format!("{times:.1}")),
            spread(&row.cpu_us, 3),
            verdict::limits(&row.verdicts),
            grouped(row.tcp_estimate().round() as u64),
        ]
    }));
    cells
}

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let about = format!(
        "One flow sends as fast as it can for {:.0} s to serve udp sink, with one thread; {} a row, median and spread. Sent is what the producer's kernel took, taken \
         what the server was shown; the rest was dropped because its socket was full. plain: one datagram a system call; batched: recvmmsg and sendmmsg; gso: UDP_SEGMENT and UDP_GRO, \
         which uring has beside plain. The estimate is the book's: a request for 4 KiB on a separate connection takes {PACKETS_PER_REQUEST:.0} packets, so a server that costs \
         nothing but its packets would answer a {PACKETS_PER_REQUEST:.0}th as many. Compare it with responses a second against concurrency.",
        table.window_s,
        counted(table.repeats, "run")
    );
    ("UDP messages a second".into(), cells(table), about)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::udp::Row;
    use crate::spread::Spread;

    #[test]
    fn the_estimate_for_tcp_is_headed_as_what_it_is() {
        let of = |value: f64| Spread::of([value]).unwrap();
        let row = Row {
            model: "epoll".into(),
            path: "plain".into(),
            bytes: 64,
            sent_per_s: of(240_000.0),
            taken_per_s: of(230_000.0),
            cpu_us: of(1.5),
            times_plain: Some(1.0),
            verdicts: Vec::new(),
        };
        let cells = cells(&ResultTable { rows: vec![row], ..ResultTable::default() });
        let column = cells[0].iter().position(|head| head.contains("the book's estimate")).unwrap();
        assert!(cells[0][column].starts_with("taken/s ÷ 15 "), "{cells:?}");
        assert_eq!((cells[1][4].as_str(), cells[1][column].as_str()), ("230,000", "15,333"));
    }
}
