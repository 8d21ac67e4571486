//! What is printed on a terminal fits it, whatever its width.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A terminal of so many columns: the end that a program writes to, and all that it has written when nobody has that
/// end open any more.
fn terminal(columns: u16) -> (OwnedFd, JoinHandle<String>) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let reader = thread::spawn(move || {
        let (mut terminal, mut shown, mut buffer) = (File::from(terminal), Vec::new(), [0; 4096]);
        // Linux ends it with an error when nobody has the other end open any more (EIO).
        while let Ok(n @ 1..) = terminal.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8(shown).unwrap()
    });
    (end, reader)
}

/// What a command prints on a terminal of so many columns, on standard output and as its progress. It succeeds.
fn on_terminal(columns: u16, args: &[&str]) -> (String, String) {
    let (stdout, shown) = terminal(columns);
    let (stderr, progress) = terminal(columns);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let status = command.status().unwrap();
    drop(command); // and with it our copies of the ends
    let (shown, progress) = (shown.join().unwrap(), progress.join().unwrap());
    assert_eq!(status.code(), Some(0), "{args:?}: {shown}{progress}");
    (shown, progress)
}

/// Lines as they are seen: without sequences that colour them or move the cursor.
fn lines(shown: &str) -> Vec<String> {
    let plain = |line: &str| console::strip_ansi_codes(line).trim_end().to_owned();
    shown.split(['\n', '\r']).map(plain).collect()
}

/// What a bench says to a terminal of so many columns, in lines that fit it, and its progress.
fn bench_fits(columns: u16, experiment: &[&str]) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let args =
        [&["bench", "--quick", "--models", "epoll,blocking", "--repeats", "1", "--out", out], experiment]
            .concat();
    let (shown, progress) = on_terminal(columns, &args);
    let lines = lines(&shown);
    // The names of files are one word, which is not broken.
    let widest =
        lines.iter().filter(|line| !line.contains(out)).max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= columns.into(), "{columns}: {widest}\n{shown}");
    // A narrow one has a line for each figure, or a wrapped table; either way all models are there.
    for text in ["epoll", "blocking"] {
        assert!(lines.iter().any(|line| line.contains(text)), "{columns}: {text}\n{shown}");
    }
    (lines, progress)
}

#[test]
fn the_answer_of_bench_fits_terminals_of_80_and_120_columns() {
    for columns in [80, 120] {
        let (lines, progress) = bench_fits(columns, &["--connections", "8,16", "--requests", "400"]);
        assert!(lines.iter().any(|line| line.starts_with("Here take `")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("µs")), "{lines:?}");
        assert!(progress.contains("about ") && progress.contains(" left: "), "{progress}");
    }
}

#[test]
fn tables_of_experiments_fit_terminals_of_80_and_120_columns() {
    for columns in [80, 120] {
        bench_fits(columns, &["models", "--connections", "8", "--seconds", "0.5"]);
        bench_fits(columns, &["demand", "--connections", "4", "--rates", "100,300", "--seconds", "0.5"]);
    }
}
