//! `tidegate lesson`: every lesson starts, its commands are what the program takes, its fault is there, the right
//! answer is accepted and a wrong one is not. Nothing here depends on how long something takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(120);

/// Of each lesson: the right answer, and one that is not.
const ANSWERS: [(&str, &str); 10] = [
    ("3", "4"),
    ("B", "C"),
    ("3000", "3001"),
    ("200", "1"),
    ("64", "1"),
    ("9", "10"),
    ("40", "100"),
    ("4", "5"),
    ("490 ms", "1"),
    ("20", "1"),
];

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A lesson that waits for answers. It is killed when the deadline has come: then its output ends, and the test fails.
struct Lesson {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it has printed until it waits for an answer.
    task: String,
    _alive: Sender<()>,
}

impl Lesson {
    fn start(number: usize, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["lesson", &number.to_string()]).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (alive, gone) = mpsc::channel::<()>();
        let pid = Pid::from_child(&child);
        std::thread::spawn(move || {
            if gone.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut lesson = Self { child, input, output, task: String::new(), _alive: alive };
        while !lesson.task.contains("Answer here") {
            let line = lesson.line();
            lesson.task += &line;
        }
        lesson
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended: {}", self.task);
        line
    }

    fn say(&mut self, answer: &str) {
        writeln!(self.input.as_mut().unwrap(), "{answer}").unwrap();
    }

    /// The command lines it prints, without remarks.
    fn commands(&self) -> Vec<Vec<String>> {
        let lines = self.task.lines().filter(|line| line.starts_with("  "));
        lines.map(|line| shlex::split(line.split("  #").next().unwrap()).unwrap()).collect()
    }

    /// The rest of what it prints, and how it ended.
    fn end(mut self) -> (String, ExitStatus) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap())
    }
}

impl Drop for Lesson {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command of a lesson as it is printed.
fn run(command: &[String]) -> Output {
    assert_eq!(command[0], "tidegate", "{command:?}");
    tidegate(&command[1..].iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn each_lesson_takes_its_right_answer_and_helps_with_a_wrong_one() {
    for (number, (right, wrong)) in (1..).zip(ANSWERS) {
        let mut lesson = Lesson::start(number, &[]);
        lesson.say("");
        lesson.say(wrong);
        let hint = lesson.line();
        assert!(hint.starts_with("not right: ") && hint.len() > 40, "lesson {number}: {hint}");
        lesson.say("what?");
        let unclear = lesson.line();
        assert!(unclear.starts_with("not understood: "), "lesson {number}: {unclear}");
        lesson.say(right);
        let (rest, status) = lesson.end();
        assert!(rest.starts_with("right: ") && rest.contains("Read on: docs/"), "lesson {number}: {rest}");
        assert_eq!(status.code(), Some(0), "lesson {number}");
    }
}

#[test]
fn an_answer_on_the_command_line_is_the_exit_code() {
    for (number, (right, wrong)) in (1..).zip(ANSWERS) {
        let check = |answer| tidegate(&["lesson", &number.to_string(), "--answer", answer]);
        let (right, wrong, unclear) = (check(right), check(wrong), check("what?"));
        assert_eq!(right.status.code(), Some(0), "lesson {number}: {right:?}");
        assert!(text(&right.stdout).starts_with("right: "), "{right:?}");
        assert_eq!(wrong.status.code(), Some(1), "lesson {number}: {wrong:?}");
        assert!(text(&wrong.stdout).starts_with("not right: "), "{wrong:?}");
        assert_eq!(unclear.status.code(), Some(2), "lesson {number}: {unclear:?}");
        assert!(text(&unclear.stderr).contains("the answer is "), "{unclear:?}");
    }
}

#[test]
fn every_command_of_every_lesson_is_understood() {
    for number in 1..=ANSWERS.len() {
        let lesson = Lesson::start(number, &[]);
        let commands = lesson.commands();
        let ours = commands.iter().filter(|command| command[0] == "tidegate");
        assert!(ours.clone().count() > 0, "{}", lesson.task);
        for command in ours {
            let parsed = run(&[command.as_slice(), &["--help".to_owned()]].concat());
            assert_eq!(parsed.status.code(), Some(0), "{command:?}: {parsed:?}");
        }
    }
}

/// Runs the commands of a lesson, and returns their exit codes and reports.
fn reports(number: usize) -> Vec<(Option<i32>, String)> {
    let lesson = Lesson::start(number, &[]);
    let commands = lesson.commands();
    let ours = commands.iter().filter(|command| command[0] == "tidegate");
    ours.map(|command| {
        let output = run(command);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    })
    .collect()
}

#[test]
fn the_commands_show_the_faults_of_lessons_that_lose_answers() {
    // Lesson, exit code of each command, and what the report of the command that shows the fault says.
    let faults: [(usize, &[i32], usize, &str); 4] = [
        (1, &[0, 1], 1, "8 established, 3 verified"),
        (3, &[0, 1], 1, "1 timed out"),
        (6, &[1, 1], 1, "requests     45 in"),
        (7, &[0, 1, 1], 1, "30 established, 10 verified"),
    ];
    for (number, codes, shown_by, fault) in faults {
        let reports = reports(number);
        let seen: Vec<i32> = reports.iter().filter_map(|(code, _)| *code).collect();
        assert_eq!(seen, codes, "lesson {number}: {reports:?}");
        assert!(reports[shown_by].1.contains(fault), "lesson {number}: {}", reports[shown_by].1);
    }
}

#[test]
fn answers_come_back_after_half_close_where_the_server_is_right() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "echo", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let target = line.trim().rsplit(' ').next().unwrap().to_owned();
    let loaded =
        tidegate(&["load", "echo", &target, "-c", "5", "--messages", "10", "--window", "10", "--half-close"]);
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(loaded.status.code(), Some(0), "{loaded:?}");
    assert!(text(&loaded.stdout).contains("requests     50 in"), "{loaded:?}");
    let alone = tidegate(&["load", "echo", &target, "--half-close"]);
    assert_eq!(alone.status.code(), Some(2), "{alone:?}");
}

#[test]
fn a_lesson_ends_with_its_input_a_signal_and_its_time() {
    let (rest, status) = Lesson::start(6, &[]).end();
    assert!(status.code() == Some(1) && rest.contains("the input has ended"), "{rest}");

    for signal in [Signal::TERM, Signal::INT] {
        let mut lesson = Lesson::start(1, &[]);
        kill_process(Pid::from_child(&lesson.child), signal).unwrap();
        let said = lesson.line();
        assert!(said.contains("stopped: the lesson ends"), "{said}");
        assert_eq!(lesson.child.wait().unwrap().code(), Some(1));
    }

    let mut lesson = Lesson::start(10, &["--for", "1ms"]);
    let said = lesson.line();
    assert!(said.contains("the time of --for is over"), "{said}");
    assert_eq!(lesson.child.wait().unwrap().code(), Some(1));
}

#[test]
fn the_list_has_every_lesson_and_bad_command_lines_are_refused() {
    let list = tidegate(&["lesson"]);
    assert_eq!(list.status.code(), Some(0));
    let numbered =
        text(&list.stdout).lines().filter(|line| line.trim_start().starts_with(char::is_numeric)).count();
    assert_eq!(numbered, ANSWERS.len());
    for args in [
        &["lesson", "0"][..],
        &["lesson", "11"],
        &["lesson", "--answer", "1"],
        &["lesson", "1", "--listen", "0.0.0.0:0"],
        &["lesson", "1", "--for", "0s"],
    ] {
        let refused = tidegate(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {refused:?}");
    }
    let at = tidegate(&["lesson", "1", "--listen", "203.0.113.1:0"]);
    assert!(text(&at.stderr).contains("use 127.0.0.1"), "{at:?}");
}
