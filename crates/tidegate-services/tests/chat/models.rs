//! On every model: members of both kinds in one room, several I/O threads, and one that does not read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use tidegate::{CloseReason, Endpoint, Model, Policy, Server};
use tidegate_services::{Chat, ChatLimits};

use crate::frames::{CLOSE, FIN, TEXT, UPGRADE, server_frame, text};

/// Nothing here takes a second; a machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);
const MEMBERS: usize = 12;
const SAID: usize = 40;

/// A member with a socket.
struct Member {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    speaks_frames: bool,
}

impl Member {
    fn join(to: &Endpoint, nick: &str, speaks_frames: bool) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let input = BufReader::new(stream.try_clone().unwrap());
        let mut member = Self { stream, input, speaks_frames };
        if speaks_frames {
            member.stream.write_all(UPGRADE.as_bytes()).unwrap();
            while member.line() != "\r\n" {}
        }
        member.say(&format!("/join tide {nick}"));
        assert!(member.hear().starts_with("= joined tide as "));
        member
    }

    fn say(&mut self, line: &str) {
        let said = if self.speaks_frames { text(line) } else { format!("{line}\n").into_bytes() };
        self.stream.write_all(&said).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.input.read_line(&mut line).unwrap();
        line
    }

    fn hear(&mut self) -> String {
        if !self.speaks_frames {
            return self.line().trim_end().to_owned();
        }
        let mut bytes = Vec::new();
        loop {
            if let Some((first, payload, _)) = server_frame(&bytes) {
                assert_eq!(first, FIN | TEXT);
                return String::from_utf8(payload.to_vec()).unwrap();
            }
            let mut byte = [0];
            self.input.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
    }

    /// What is said, without who comes and goes.
    fn hear_said(&mut self) -> String {
        loop {
            let heard = self.hear();
            if heard.contains(": ") {
                return heard;
            }
        }
    }
}

/// Ends the process if it is still there at the deadline: a test that hangs says so.
fn watchdog(model: Model) -> Sender<()> {
    let (alive, gone) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if gone.recv_timeout(2 * DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the messenger hangs on {model}");
            std::process::abort();
        }
    });
    alive
}

#[test]
fn everybody_hears_everything_in_one_order_and_who_does_not_read_is_cut_off() {
    for model in Model::available() {
        let _alive = watchdog(model);
        let limits = ChatLimits::default()
            .lines_per_s(None)
            .behind_bytes(32 * 1024)
            .history_bytes(4096)
            .announced(2 * MEMBERS);
        let of_connections = matches!(model, Model::Blocking | Model::Pool);
        let policy = Policy::default()
            .threads(if of_connections { None } else { NonZeroUsize::new(2) })
            .socket_send_buffer(Some(8 * 1024));
        limits.check(&policy).unwrap();
        let server = Server::new(Chat::new(limits)).model(model).policy(policy);
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let mut members: Vec<_> =
            (0..MEMBERS).map(|n| Member::join(server.local_addr(), &format!("m{n}"), n % 2 == 1)).collect();

        let speakers: Vec<_> = members
            .iter_mut()
            .take(4)
            .map(|member| {
                let frames = member.speaks_frames;
                (member.stream.try_clone().unwrap(), frames)
            })
            .collect();
        let speakers: Vec<_> = speakers
            .into_iter()
            .map(|(mut stream, frames)| {
                std::thread::spawn(move || {
                    for n in 0..SAID {
                        let line = format!("message {n}");
                        let said = if frames { text(&line) } else { format!("{line}\n").into_bytes() };
                        stream.write_all(&said).unwrap();
                    }
                })
            })
            .collect();
        let mut first: Vec<String> = Vec::new();
        for (n, member) in members.iter_mut().enumerate() {
            let heard: Vec<_> = (0..4 * SAID).map(|_| member.hear_said()).collect();
            if n == 0 {
                first = heard;
            } else {
                assert_eq!(heard, first, "{model}: one order for all");
            }
        }
        speakers.into_iter().for_each(|speaker| speaker.join().unwrap());
        for speaker in 0..4 {
            let own = format!(" m{speaker}: ");
            let said: Vec<_> = first.iter().filter_map(|line| Some(line.split_once(&own)?.1)).collect();
            assert_eq!(said, (0..SAID).map(|n| format!("message {n}")).collect::<Vec<_>>(), "{model}");
        }

        let silent = Member::join(server.local_addr(), "silent", true); // and never reads again
        let long = "z".repeat(1000);
        let mut cut_off = false;
        // The kernel's buffers are bounded too: at some point the silent one is behind.
        for n in 0..100_000 {
            members[0].say(&long);
            for member in &mut members {
                loop {
                    let heard = member.hear();
                    cut_off |= heard.ends_with(" - silent");
                    if heard.ends_with(&long) {
                        break;
                    }
                }
            }
            if cut_off {
                break;
            }
            assert!(n < 99_999, "{model}: the silent one is still there");
        }
        drop((silent, members));
        server.stop();
        let stats = server.join();
        assert_eq!(stats.closed_by(CloseReason::Aborted), 1, "{model}: the silent one");
        assert_eq!(stats.closed_by(CloseReason::Panicked), 0, "{model}");
    }
}

#[test]
fn a_stop_is_said_to_members_of_both_kinds_on_every_model() {
    for model in Model::available() {
        let _alive = watchdog(model);
        let server = Server::new(Chat::default()).model(model);
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let mut lines = Member::join(server.local_addr(), "ann", false);
        let mut frames = Member::join(server.local_addr(), "bob", true);
        assert_eq!(lines.hear(), "#2 + bob");
        server.stop();
        let rest = |member: &mut Member| {
            let mut rest = Vec::new();
            member.input.read_to_end(&mut rest).unwrap();
            rest
        };
        // Whichever leaves first, the other is notified of it or not.
        let (line, frame) = (String::from_utf8(rest(&mut lines)).unwrap(), rest(&mut frames));
        assert!(line.ends_with("= the server is stopping; reconnect later\n"), "{model}: {line:?}");
        let mut last = server_frame(&frame).unwrap();
        while let Some(next) = server_frame(last.2) {
            last = next;
        }
        assert_eq!((last.0, &last.1[..2]), (FIN | CLOSE, &1001_u16.to_be_bytes()[..]), "{model}");
        assert_eq!(server.join().closed_by(CloseReason::Finished), 2, "{model}");
    }
}

/// A limit on what a test does: so many bytes of lines, of which each comes back longer.
const TALK_BYTES: usize = 2 << 20;

/// Says lines as fast as they are taken, reads all the time, and hears each of them in order.
fn talks_fast(model: Model, line: &str, speaks_frames: bool) {
    let _alive = watchdog(model);
    let limits = ChatLimits::default().lines_per_s(None).announced(0);
    // Little room in the kernel: what is not held back shows.
    let policy = Policy::default()
        .threads(NonZeroUsize::new(2))
        .socket_send_buffer(Some(16 * 1024))
        .socket_receive_buffer(Some(16 * 1024));
    limits.check(&policy).unwrap();
    let server = Server::new(Chat::new(limits)).model(model).policy(policy);
    let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let mut talker = Member::join(server.local_addr(), "talker", speaks_frames);
    let one = if speaks_frames { text(line) } else { format!("{line}\n").into_bytes() };
    let mut stream = talker.stream.try_clone().unwrap();
    let block = one.repeat(16 * 1024 / one.len());
    let blocks = (TALK_BYTES / (line.len() + 32)).div_ceil(block.len() / one.len());
    let said = blocks * (block.len() / one.len());
    let talk = std::thread::spawn(move || (0..blocks).try_for_each(|_| stream.write_all(&block)));
    for number in 1..=said {
        assert_eq!(talker.hear_said(), format!("#{number} talker: {line}"), "{model}");
    }
    talk.join().unwrap().unwrap();
    assert_eq!(server.stats().closed_by(CloseReason::Aborted), 0, "{model}");
    server.stop();
    server.join();
}

#[test]
fn who_talks_fast_and_reads_all_the_time_is_held_back_and_not_cut_off() {
    for model in Model::available() {
        talks_fast(model, "x", false);
        talks_fast(model, &"y".repeat(600), false);
        talks_fast(model, &"z".repeat(100), true);
    }
}
