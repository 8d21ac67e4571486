//! What is printed on a terminal fits it, whatever its width.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What a command prints on a terminal of so many columns, and its exit code.
fn on_terminal(columns: u16, args: &[&str]) -> (String, Option<i32>) {
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null()).stdout(end);
    let status = command.status().unwrap();
    drop(command); // and with it our copy of the end
    (reader.join().unwrap(), status.code())
}

/// Lines as they are seen: without sequences that colour them or move the cursor.
fn lines(shown: &str) -> Vec<String> {
    let plain = |line: &str| console::strip_ansi_codes(line).trim_end().to_owned();
    shown.split(['\n', '\r']).map(plain).collect()
}

#[test]
fn the_answer_of_bench_fits_terminals_of_80_and_120_columns() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for columns in [80, 120] {
        let (shown, code) = on_terminal(
            columns,
            &[
                "bench",
                "--quick",
                "--models",
                "epoll,blocking",
                "--connections",
                "8,16",
                "--requests",
                "400",
                "--repeats",
                "1",
                "--out",
                out,
            ],
        );
        assert_eq!(code, Some(0), "{shown}");
        let lines = lines(&shown);
        assert!(lines.iter().any(|line| line.starts_with("Here take `")), "{shown}");
        // The names of files are one word, which is not broken.
        let is_path = |line: &String| line.contains(out);
        let widest =
            lines.iter().filter(|line| !is_path(line)).max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= columns.into(), "{columns}: {widest}\n{shown}");
        // A narrow one has a line for each figure, or a wrapped table; either way all models are there.
        for text in ["epoll", "blocking", "µs"] {
            assert!(lines.iter().any(|line| line.contains(text)), "{columns}: {text}\n{shown}");
        }
    }
}
