//! The standard streams: the only place of the program that prints.
//!
//! `println!` panics when the reader has closed the pipe, as `head` does. Here that is not an error: the command
//! continues, writes its files, and ends with its usual exit code. Any other write error (a full disk) is an error.

pub mod json;

use std::fmt;
use std::io::{self, Write};

use anyhow::Context;
use comfy_table::{Cell, ContentArrangement, LineStyle, Table, TableStyle};

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
    if table.is_tty() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(head.into_iter().map(Into::into).collect::<Vec<Cell>>());
    table
}

/// The same for prose: at most 100 columns in a pipe.
pub fn table_of_texts<T: Into<Cell>>(head: impl IntoIterator<Item = T>) -> Table {
    let mut table = table(head);
    if !table.is_tty() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(100);
    }
    table
}
