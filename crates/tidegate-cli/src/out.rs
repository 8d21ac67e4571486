//! The standard streams: the only place of the program that prints.
//!
//! `println!` panics when the reader has closed the pipe, as `head` does. Here that is not an error: the command
//! continues, writes its files, and ends with its usual exit code. Any other write error (a full disk) is an error.

pub mod json;

use std::fmt;
use std::io::{self, Write};

use anyhow::Context;
use comfy_table::{Cell, ContentArrangement, LineStyle, Table, TableStyle};
use console::Term;

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::put(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line to standard error; ignores errors.
macro_rules! complain {
    ($($text:tt)*) => { $crate::out::put_error(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {complain, say};

/// Prints to standard output immediately.
///
/// # Errors
/// The write failed, and not because the reader closed the pipe.
pub fn put(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to stdout"),
    }
}

/// Prints to standard error.
pub fn put_error(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

const RULE: LineStyle = LineStyle::none().fill('─').junction('─');
/// Borders around head and table, none between rows.
const RULES: TableStyle = TableStyle::new().top_border(RULE).header_separator(RULE).bottom_border(RULE);

/// A table that fits the terminal, where long cells are wrapped. In a pipe each row is one line.
pub fn table<T: Into<Cell>>(head: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_style(RULES);
    if let Some(columns) = terminal_columns() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table.set_header(head.into_iter().map(Into::into).collect::<Vec<Cell>>());
    table
}

/// The same for prose: at most 100 columns in a pipe.
pub fn table_of_texts<T: Into<Cell>>(head: impl IntoIterator<Item = T>) -> Table {
    let mut table = table(head);
    if table.width().is_none() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(100);
    }
    table
}

/// The columns of the terminal; `None` in a pipe.
fn terminal_columns() -> Option<u16> {
    Term::stdout().size_checked().map(|(_, columns)| columns)
}

/// Columns of help; 0 in a pipe, where lines are not wrapped.
pub fn help_columns() -> usize {
    terminal_columns().map_or(0, usize::from)
}

/// Prose, broken between words where the terminal ends. In a pipe it is one line.
pub fn prose(text: &str) -> String {
    terminal_columns().map_or_else(|| text.to_owned(), |columns| wrapped(text, columns.into()))
}

/// Lines of a name and what is to be said about it, which are broken between words, below the first word after the
/// name.
pub fn indented(lines: &str) -> String {
    const NAME: usize = 13;
    let Some(columns) = terminal_columns().map(usize::from).filter(|&columns| columns > 2 * NAME) else {
        return lines.to_owned();
    };
    let indent = format!("\n{:NAME$}", "");
    let line = |line: &str| match line.split_at_checked(NAME) {
        Some((name, rest)) if name.ends_with("  ") => {
            format!("{name}{}\n", wrapped(rest, columns - NAME).replace('\n', &indent))
        }
        _ => wrapped(line, columns) + "\n",
    };
    lines.lines().map(line).collect()
}

/// Lines of at most this many characters, as far as words are not longer.
pub fn wrapped(text: &str, columns: usize) -> String {
    let (mut out, mut used) = (String::with_capacity(text.len()), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        let begins = out.is_empty();
        if !begins && used + 1 + length > columns {
            out.push('\n');
            used = 0;
        } else if !begins {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

/// A head and rows of figures as a table; on a terminal too narrow for their words, a line for each figure.
pub fn table_of_figures(cells: &[Vec<String>]) -> String {
    let mut rows = cells.iter();
    let mut table = table(rows.next().cloned().unwrap_or_default());
    rows.for_each(|row| _ = table.add_row(row));
    match table.width() {
        Some(width) if narrowest(cells) > usize::from(width) => records(cells),
        _ => table.to_string(),
    }
}

/// Columns of the narrowest table in which no word is broken; each cell has a space on both sides.
fn narrowest(cells: &[Vec<String>]) -> usize {
    let columns = cells.iter().map(Vec::len).max().unwrap_or_default();
    let of_column = |at: usize| {
        let words = cells.iter().filter_map(|row| row.get(at)).flat_map(|cell| cell.split_whitespace());
        words.map(|word| word.chars().count()).max().unwrap_or_default() + 2
    };
    (0..columns).map(of_column).sum()
}

/// Each row as a line for each of its cells, after the name of its column.
fn records(cells: &[Vec<String>]) -> String {
    let Some((head, rows)) = cells.split_first() else { return String::new() };
    let width = head.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let line = |(name, cell): (&String, &String)| format!("{name:<width$}  {cell}\n");
    let record = |row: &Vec<String>| head.iter().zip(row).map(line).collect::<String>();
    rows.iter().map(record).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![
            row(["model", "mean µs", "rate"]),
            row(["epoll", "1.03 (1.01–1.07)", "9,658"]),
            row(["uring", "–", ""]),
        ]
    }

    #[test]
    fn prose_is_broken_between_words() {
        assert_eq!(wrapped("a request costs 8.3 µs", 11), "a request\ncosts 8.3\nµs");
        assert_eq!(wrapped("far-too-long a word", 5), "far-too-long\na\nword");
        assert_eq!((wrapped("", 5).as_str(), wrapped("a b", 3).as_str()), ("", "a b"));
    }

    #[test]
    fn a_table_is_as_narrow_as_its_longest_words() {
        assert_eq!(narrowest(&cells()), 5 + 11 + 5 + 3 * 2);
        assert_eq!(narrowest(&[]), 0);
    }

    #[test]
    fn what_is_too_wide_has_a_line_for_each_figure() {
        assert_eq!(
            records(&cells()),
            "model    epoll\nmean µs  1.03 (1.01–1.07)\nrate     9,658\n\nmodel    uring\nmean µs  –\nrate     \n"
        );
        assert!(table_of_figures(&cells()).contains("9,658"));
    }
}
