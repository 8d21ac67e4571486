//! `tidegate lesson`: a course of ten small servers, each with a fault to be found with the tools of this project.
//!
//! One lesson is one file: its texts, its server and how its answer is measured are one [`Lesson`]. The server of a
//! lesson has the fault for real, and does not depend on how fast the machine is. Checking an answer starts the server
//! once more and measures, so that what else is tried meanwhile does not disturb it.

mod back_pressure;
mod blocking;
mod edge;
mod exhaustion;
mod fairness;
mod half_close;
mod honesty;
mod host;
mod ownership;
mod question;
mod select_cost;
mod waking;

use std::any::Any;
use std::io::{BufRead, IsTerminal};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use question::{Judgement, Measured, Question};

use crate::out::{put, say};
use crate::system::signals;
use crate::{CommandResult, Failure};

/// Options of `lesson`.
#[derive(clap::Args)]
pub struct Args {
    /// Number of the lesson, from 1 to 10; without it, all are listed.
    #[arg(value_name = "LESSON", value_parser = clap::value_parser!(u8).range(1..=10))]
    number: Option<u8>,
    /// Check this answer, and end; without it, answers are read from standard input, one a line.
    #[arg(long, value_name = "TEXT", requires = "number", conflicts_with_all = ["listen", "until"])]
    answer: Option<String>,
    /// Where the server of the lesson listens; 127.0.0.0/8 or ::1 only, because it has a fault.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// End after this time at the latest.
    #[arg(long = "for", value_name = "TIME", default_value = "30m", value_parser = crate::limits::time)]
    until: Duration,
}

/// One lesson of the course. `{addr}`, `{port}` and `{pid}` in its texts are those of its server; `{a}`, `{b}` and
/// `{c}` are the addresses of several.
struct Lesson {
    title: &'static str,
    /// One line for the list.
    about: &'static str,
    /// What the server does, as its author would say it.
    server: &'static str,
    /// What to find out, and how the answer is written.
    task: &'static str,
    /// Command lines that help; what is behind two spaces and `#` is a remark.
    commands: &'static [&'static str],
    question: Question,
    explanation: &'static str,
    /// The page to read on, below `docs/`.
    page: &'static str,
    start: fn(SocketAddr) -> anyhow::Result<Scene>,
    measure: fn() -> anyhow::Result<Measured>,
}

/// The running servers of a lesson. They end when it is dropped.
struct Scene {
    addrs: Vec<SocketAddr>,
    _servers: Box<dyn Any>,
}

/// The course, in the order of the chapter.
const LESSONS: [&Lesson; 10] = [
    &blocking::LESSON,
    &select_cost::LESSON,
    &edge::LESSON,
    &fairness::LESSON,
    &back_pressure::LESSON,
    &half_close::LESSON,
    &exhaustion::LESSON,
    &ownership::LESSON,
    &honesty::LESSON,
    &waking::LESSON,
];

/// Runs the command.
pub fn run(args: &Args) -> CommandResult {
    let numbered = args.number.and_then(|number| {
        let lesson = LESSONS.get(usize::from(number).checked_sub(1)?)?;
        Some((number, *lesson))
    });
    match (numbered, &args.answer) {
        (None, _) => list(),
        (Some((number, lesson)), Some(answer)) => check(number, lesson, answer),
        (Some((number, lesson)), None) => teach(number, lesson, args),
    }
}

fn list() -> CommandResult {
    for (number, lesson) in (1..).zip(LESSONS) {
        say!("{number:>2}  {:<26}{}", lesson.title, lesson.about)?;
    }
    say!("\nStart with: tidegate lesson 1")?;
    Ok(ExitCode::SUCCESS)
}

/// Checks one answer.
fn check(number: u8, lesson: &Lesson, answer: &str) -> CommandResult {
    match judged(lesson, answer)? {
        Judgement::Right(evidence) => {
            explain(number, lesson, &evidence)?;
            Ok(ExitCode::SUCCESS)
        }
        Judgement::Wrong(hint) => {
            say!("not right: {hint}")?;
            Ok(ExitCode::from(1))
        }
        Judgement::Unclear(why) => Err(Failure::Usage(anyhow!("--answer {answer:?}: {why}"))),
    }
}

/// Measures only when the answer can be understood.
fn judged(lesson: &Lesson, answer: &str) -> anyhow::Result<Judgement> {
    let given = match lesson.question.parse(answer) {
        Ok(given) => given,
        Err(why) => return Ok(Judgement::Unclear(why)),
    };
    let measured = (lesson.measure)().context("the lesson could not check the answer")?;
    Ok(lesson.question.judge(given, measured))
}

fn explain(number: u8, lesson: &Lesson, evidence: &str) -> anyhow::Result<()> {
    say!("right: {evidence}\n\n{}\n\nRead on: docs/{}", lesson.explanation, lesson.page)?;
    match usize::from(number) < LESSONS.len() {
        true => say!("Next: tidegate lesson {}", number + 1),
        false => say!("That was the last lesson."),
    }
}

/// What ends a lesson, or goes on with it.
enum LessonEvent {
    Line(String),
    EndOfInput,
    Signal,
}

/// Starts the server, says what to find out, and reads answers until one is right.
fn teach(number: u8, lesson: &Lesson, args: &Args) -> CommandResult {
    if !args.listen.ip().is_loopback() {
        let e =
            anyhow!("--listen {}: the server of a lesson has a fault; use 127.0.0.1 or [::1]", args.listen);
        return Err(Failure::Usage(e));
    }
    let time = Some(args.until).filter(|time| !time.is_zero());
    let time = time.context("--for must be longer than 0").map_err(Failure::Usage)?;
    let end = Instant::now().checked_add(time).context("--for is too long").map_err(Failure::Usage)?;
    let scene = (lesson.start)(args.listen).context("the server of the lesson cannot start")?;
    let happenings = happenings()?;
    present(number, lesson, &scene)?;
    converse(number, lesson, &happenings, end)
}

fn present(number: u8, lesson: &Lesson, scene: &Scene) -> anyhow::Result<()> {
    let of = LESSONS.len();
    say!("Lesson {number} of {of}: {}\n", lesson.title)?;
    for addr in &scene.addrs {
        say!("listening on tcp://{addr}")?;
    }
    say!("\n{}\n\n{}\n\nIn another terminal:\n", scene.filled(lesson.server), scene.filled(lesson.task))?;
    for command in lesson.commands {
        say!("  {}", scene.filled(command))?;
    }
    if let Some(tolerance) = lesson.question.tolerance() {
        say!("\n{tolerance}")?;
    }
    let answer = lesson.question.placeholder();
    say!("\nAnswer here, or with: tidegate lesson {number} --answer {answer}")
}

impl Scene {
    fn of(addr: SocketAddr, server: impl Any) -> Self {
        Self { addrs: vec![addr], _servers: Box::new(server) }
    }

    /// A text with the addresses of this scene.
    fn filled(&self, text: &str) -> String {
        let mut text = text.replace("{pid}", &std::process::id().to_string());
        for (name, addr) in ["{a}", "{b}", "{c}"].iter().zip(&self.addrs) {
            text = text.replace(name, &addr.to_string());
        }
        match self.addrs.first() {
            Some(addr) => {
                text.replace("{addr}", &addr.to_string()).replace("{port}", &addr.port().to_string())
            }
            None => text,
        }
    }
}

/// Reads lines and waits for signals, each on its own thread.
fn happenings() -> anyhow::Result<Receiver<LessonEvent>> {
    let (sender, receiver) = mpsc::channel();
    let on_signal = sender.clone();
    signals::once(move || drop(on_signal.send(LessonEvent::Signal))).context("signals cannot be watched")?;
    let reader = std::thread::Builder::new().name("tidegate-answers".into());
    reader.spawn(move || read_lines(&sender)).context("no thread can be started to read answers")?;
    Ok(receiver)
}

fn read_lines(sender: &Sender<LessonEvent>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if sender.send(LessonEvent::Line(line)).is_err() {
            return;
        }
    }
    let _ = sender.send(LessonEvent::EndOfInput); // nobody waits any more: the lesson has ended
}

fn converse(number: u8, lesson: &Lesson, happenings: &Receiver<LessonEvent>, end: Instant) -> CommandResult {
    loop {
        if std::io::stdin().is_terminal() {
            put(format_args!("answer> "))?;
        }
        let line = match happenings.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(LessonEvent::Line(line)) => line,
            Ok(LessonEvent::Signal) => return unanswered("stopped"),
            Ok(LessonEvent::EndOfInput) | Err(RecvTimeoutError::Disconnected) => {
                return unanswered("the input has ended");
            }
            Err(RecvTimeoutError::Timeout) => return unanswered("the time of --for is over"),
        };
        if line.trim().is_empty() {
            continue;
        }
        match judged(lesson, &line)? {
            Judgement::Right(evidence) => {
                explain(number, lesson, &evidence)?;
                return Ok(ExitCode::SUCCESS);
            }
            Judgement::Wrong(hint) => say!("not right: {hint}")?,
            Judgement::Unclear(why) => say!("not understood: {why}")?,
        }
    }
}

/// The lesson ended before a right answer came: a check that did not hold.
fn unanswered(why: &str) -> CommandResult {
    say!("{why}: the lesson ends without a right answer")?;
    Ok(ExitCode::from(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_exists_and_every_placeholder_is_filled() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        for lesson in LESSONS {
            let page = lesson.page.split('#').next().unwrap();
            assert!(docs.join(page).is_file(), "{}: docs/{page} is missing", lesson.title);
            let scene = (lesson.start)("127.0.0.1:0".parse().unwrap()).unwrap();
            for text in lesson.commands.iter().chain([&lesson.server, &lesson.task]) {
                let filled = scene.filled(text);
                assert!(!filled.contains(['{', '}']), "{}: {filled}", lesson.title);
            }
        }
    }

    #[test]
    fn what_is_measured_answers_the_question() {
        for lesson in LESSONS {
            let measured = (lesson.measure)().unwrap();
            let answer = measured.value.to_string();
            let Ok(given) = lesson.question.parse(&answer) else { panic!("{}: {answer}", lesson.title) };
            let judgement = lesson.question.judge(given, measured);
            assert!(matches!(judgement, Judgement::Right(_)), "{}: {judgement:?}", lesson.title);
        }
    }
}
