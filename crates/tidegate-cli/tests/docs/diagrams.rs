//! The diagrams of the models: one table says how a request goes on each, and one generator draws it.
//!
//! `TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-cli --test docs diagrams` writes them.

use std::fmt::Write;

use super::pages::root;

/// One picture: who takes part, and what they say to each other, from top to bottom.
struct Diagram {
    model: &'static str,
    title: &'static str,
    /// Two or three columns, from left to right.
    actors: &'static [&'static str],
    steps: &'static [Step],
    /// What to remember, in one line.
    note: &'static str,
}

/// What happens: from one actor to another, or at one alone.
struct Step(usize, usize, &'static str);

const POLLED: &[&str] = &["I/O thread (N connections)", "kernel"];

const DIAGRAMS: &[Diagram] = &[
    Diagram {
        model: "blocking",
        title: "blocking: two threads for each connection",
        actors: &["receiving thread", "kernel", "sending thread"],
        steps: &[
            Step(0, 1, "recv(3): sleeps"),
            Step(1, 0, "bytes"),
            Step(0, 0, "session"),
            Step(0, 2, "condition variable: there is an answer"),
            Step(2, 1, "send(3): sleeps while nobody reads"),
        ],
        note: "An idle connection costs two sleeping threads.",
    },
    Diagram {
        model: "pool",
        title: "pool: a fixed number of threads and a queue",
        actors: &["worker", "queue", "kernel"],
        steps: &[
            Step(1, 0, "connection 3"),
            Step(0, 2, "recv(3)"),
            Step(2, 0, "bytes"),
            Step(0, 0, "session: may block or compute"),
            Step(0, 2, "send(3)"),
            Step(0, 1, "back, when its turn is over"),
        ],
        note: "While all workers are busy, connections wait in the queue. Quiet ones are parked.",
    },
    Diagram {
        model: "select",
        title: "select: sets of bits, copied for each call",
        actors: POLLED,
        steps: &[
            Step(0, 1, "select(sets of all connections)"),
            Step(1, 1, "looks at each member"),
            Step(1, 0, "sets: 3 and 7 are ready"),
            Step(0, 0, "scans the sets"),
            Step(0, 1, "recv(3)  send(3)  recv(7)  send(7)"),
        ],
        note: "Each wait costs time in proportion to all connections, idle ones included.",
    },
    Diagram {
        model: "poll",
        title: "poll: an array of all descriptors",
        actors: POLLED,
        steps: &[
            Step(0, 1, "poll(array of all connections)"),
            Step(1, 1, "looks at each entry"),
            Step(1, 0, "array: 3 and 7 are ready"),
            Step(0, 0, "scans the array"),
            Step(0, 1, "recv(3)  send(3)  recv(7)  send(7)"),
        ],
        note: "Like select without its sets: still in proportion to all connections.",
    },
    Diagram {
        model: "epoll",
        title: "epoll: the kernel keeps the set",
        actors: POLLED,
        steps: &[
            Step(0, 1, "epoll_ctl(add 3, edge-triggered): once"),
            Step(0, 1, "epoll_wait()"),
            Step(1, 0, "3 and 7 have news"),
            Step(0, 1, "recv(3) until nothing is left, send(3)"),
            Step(0, 1, "recv(7) until nothing is left, send(7)"),
        ],
        note: "A wait costs what is ready; idle connections cost nothing.",
    },
    Diagram {
        model: "uring",
        title: "uring: operations, and their completions",
        actors: &["I/O thread (N connections)", "ring", "kernel"],
        steps: &[
            Step(0, 1, "receive on slot 3, multishot: once"),
            Step(0, 2, "io_uring_enter: submits all, waits"),
            Step(2, 1, "completion: buffer 12, bytes of slot 3"),
            Step(1, 0, "a batch of completions"),
            Step(0, 0, "session"),
            Step(0, 1, "send on slot 3 (the ring owns the bytes)"),
            Step(2, 1, "completion: sent, the bytes are free"),
        ],
        note: "One system call for a whole batch. The kernel owns a buffer until its completion.",
    },
    Diagram {
        model: "tokio",
        title: "tokio: a task for each connection",
        actors: &["task of connection 3", "runtime", "kernel"],
        steps: &[
            Step(0, 1, "would block: sleeps"),
            Step(1, 2, "epoll_wait()"),
            Step(2, 1, "3 has news"),
            Step(1, 0, "wakes the task"),
            Step(0, 2, "recv(3)  send(3)"),
        ],
        note: "Readiness, as with epoll, and a scheduler of tasks above it.",
    },
    Diagram {
        model: "async-select",
        title: "async-select: messages to a window",
        actors: &["I/O thread with a window", "Winsock"],
        steps: &[
            Step(0, 1, "WSAAsyncSelect(3): once"),
            Step(0, 1, "MsgWaitForMultipleObjectsEx()"),
            Step(1, 0, "message: FD_READ on 3"),
            Step(0, 1, "recv(3)  send(3)"),
        ],
        note: "Each event is a message in the queue of a thread.",
    },
    Diagram {
        model: "event-select",
        title: "event-select: an event for each socket",
        actors: &["I/O thread (64 events at most)", "Winsock"],
        steps: &[
            Step(0, 1, "WSAEventSelect(3, event): once"),
            Step(0, 1, "WaitForMultipleObjects(events)"),
            Step(1, 0, "event of 3"),
            Step(0, 1, "WSAEnumNetworkEvents(3)"),
            Step(1, 0, "FD_READ"),
            Step(0, 1, "recv(3)  send(3)"),
        ],
        note: "A thread waits for 64 events at most; more connections need more threads.",
    },
    Diagram {
        model: "overlapped",
        title: "overlapped: operations, and an event for each",
        actors: &["I/O thread (62 connections at most)", "Winsock"],
        steps: &[
            Step(0, 1, "WSARecv(3, buffer, event): posted"),
            Step(0, 1, "WaitForMultipleObjects(events)"),
            Step(1, 0, "event: the receive of 3 has ended"),
            Step(0, 1, "WSAGetOverlappedResult(3)"),
            Step(0, 0, "session"),
            Step(0, 1, "WSASend(3)  WSARecv(3)"),
        ],
        note: "Completions as with iocp, and the bound of 64 events for each thread.",
    },
    Diagram {
        model: "iocp",
        title: "iocp: operations, and a completion port",
        actors: &["I/O thread (N connections)", "completion port", "Winsock"],
        steps: &[
            Step(0, 2, "WSARecv(3, buffer): posted"),
            Step(0, 1, "GetQueuedCompletionStatusEx()"),
            Step(2, 1, "the receive of 3 has ended"),
            Step(1, 0, "a batch of completions"),
            Step(0, 0, "session"),
            Step(0, 2, "WSASend(3)  WSARecv(3)"),
        ],
        note: "Winsock owns a buffer until its completion. Any number of connections.",
    },
    Diagram {
        model: "rio",
        title: "rio: registered buffers and two queues",
        actors: &["I/O thread (N connections)", "queues in memory", "Winsock"],
        steps: &[
            Step(0, 2, "RIORegisterBuffer: once"),
            Step(0, 1, "RIOReceive(3): into the request queue"),
            Step(2, 1, "completion: bytes of 3"),
            Step(0, 1, "RIODequeueCompletion: no system call"),
            Step(1, 0, "a batch of completions"),
            Step(0, 1, "RIOSend(3)"),
        ],
        note: "Buffers are locked in memory once, not for each operation. Not run on real Windows yet.",
    },
];

const WIDTH: usize = 900;
const TOP: usize = 56;
const BOX: usize = 34;
const ROW: usize = 40;
/// Blue and orange of Okabe and Ito (2008), as in the report's charts.
const THERE: &str = "#0072b2";
const BACK: &str = "#d55e00";

impl Diagram {
    fn column(&self, actor: usize) -> usize {
        let (left, right) = (140, WIDTH - 140);
        left + (right - left) * actor / (self.actors.len() - 1)
    }

    /// The picture, legible on light and dark ground.
    fn svg(&self) -> String {
        let bottom = TOP + BOX + ROW * self.steps.len() + 16;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\" \
             font-family=\"system-ui, sans-serif\">\n<style>text{{fill:#333;font-size:14px}}.t{{font-size:16px;font-weight:600}}\
             .b{{fill:#8882;stroke:#888}}.l{{stroke:#888;stroke-dasharray:4 4}}\
             @media (prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n\
             <text class=\"t\" x=\"16\" y=\"28\">{}</text>\n",
            bottom + 36,
            escaped(self.title),
            escaped(self.title)
        );
        for (at, actor) in self.actors.iter().enumerate() {
            let x = self.column(at);
            let (left, from, middle) = (x - 134, TOP + BOX, TOP + BOX / 2 + 5);
            let _ = writeln!(
                out,
                "<line class=\"l\" x1=\"{x}\" x2=\"{x}\" y1=\"{from}\" y2=\"{bottom}\"/>\n\
                 <rect class=\"b\" x=\"{left}\" y=\"{TOP}\" width=\"268\" height=\"{BOX}\" rx=\"4\"/>\n\
                 <text x=\"{x}\" y=\"{middle}\" text-anchor=\"middle\">{}</text>",
                escaped(actor)
            );
        }
        for (row, step) in self.steps.iter().enumerate() {
            out += &self.step(step, TOP + BOX + ROW * (row + 1) - 8);
        }
        let _ = writeln!(out, "<text x=\"16\" y=\"{}\">{}</text>\n</svg>", bottom + 22, escaped(self.note));
        out
    }

    fn step(&self, &Step(from, to, what): &Step, y: usize) -> String {
        let (x1, x2, what) = (self.column(from), self.column(to), escaped(what));
        if from == to {
            let is_last = from + 1 == self.actors.len();
            let (x, anchor) = if is_last { (x1 - 12, "end") } else { (x1 + 12, "start") };
            let circle = format!("<circle cx=\"{x1}\" cy=\"{}\" r=\"5\" fill=\"#808080\"/>\n", y - 4);
            return circle + &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{what}</text>\n");
        }
        let (colour, tip) = if x2 > x1 { (THERE, x2 - 9) } else { (BACK, x2 + 9) };
        let (high, low, middle, above) = (y - 5, y + 5, x1.midpoint(x2), y - 7);
        format!(
            "<line x1=\"{x1}\" x2=\"{tip}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <polygon points=\"{x2},{y} {tip},{high} {tip},{low}\" fill=\"{colour}\"/>\n\
             <text x=\"{middle}\" y=\"{above}\" text-anchor=\"middle\">{what}</text>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[test]
fn the_diagrams_are_what_their_source_makes() {
    let folder = root().join("docs/models/diagrams");
    let path = |model: &str| folder.join(format!("{model}.svg"));
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        DIAGRAMS.iter().for_each(|diagram| std::fs::write(path(diagram.model), diagram.svg()).unwrap());
    }
    for diagram in DIAGRAMS {
        let there = std::fs::read_to_string(path(diagram.model)).unwrap_or_default();
        assert!(
            there.replace("\r\n", "\n") == diagram.svg(),
            "{} is not what the table says; write it with\n  \
             TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-cli --test docs diagrams",
            path(diagram.model).display()
        );
    }
    assert_eq!(
        std::fs::read_dir(&folder).unwrap().count(),
        DIAGRAMS.len(),
        "another file in {}",
        folder.display()
    );
}

#[test]
fn every_model_has_a_diagram_on_its_page() {
    let models: Vec<&str> = tidegate::Model::ALL.iter().map(|model| model.name()).collect();
    let mut drawn: Vec<&str> = DIAGRAMS.iter().map(|diagram| diagram.model).collect();
    assert_eq!(drawn.len(), models.len());
    for model in models {
        let page = std::fs::read_to_string(root().join(format!("docs/models/{model}.md"))).unwrap();
        assert!(page.contains(&format!("(diagrams/{model}.svg)")), "docs/models/{model}.md shows no diagram");
        drawn.retain(|drawn| *drawn != model);
    }
    assert!(drawn.is_empty(), "of no model: {drawn:?}");
}

#[test]
fn every_text_of_a_diagram_fits() {
    for diagram in DIAGRAMS {
        assert!(
            diagram.actors.iter().all(|actor| actor.chars().count() * 15 / 2 <= 268),
            "{}",
            diagram.model
        );
        let gap = diagram.column(1) - diagram.column(0);
        for Step(from, to, what) in diagram.steps {
            let room = if from == to { WIDTH / 2 } else { gap * from.abs_diff(*to) };
            let needed = what.chars().count() * 15 / 2; // 7.5 for a letter of 14 pixels
            assert!(needed <= room, "{}: {what:?} needs {needed} of {room}", diagram.model);
        }
    }
}
