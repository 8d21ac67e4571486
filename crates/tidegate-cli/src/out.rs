//! The standard streams: the only place of the program that prints.
//!
//! `println!` panics when whoever reads has gone, as `head` does. Here that is no error: the command goes on, writes
//! its files, and ends with the exit code it would have had. Anything else that keeps output from being written (a full
//! disk) is an error.

use std::fmt;
use std::io::{self, Write};

use anyhow::Context;

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::put(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line to standard error; if nobody takes it, there is nobody to tell.
macro_rules! complain {
    ($($text:tt)*) => { $crate::out::put_error(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {complain, say};

/// Prints to standard output at once.
///
/// # Errors
/// It cannot be written, and somebody still reads.
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
