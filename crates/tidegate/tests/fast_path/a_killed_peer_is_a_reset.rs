//! A process that is killed at any moment leaves the other with a reset, without any time limit, whichever of the two
//! it is and whatever it did.
//!
//! The other process is this test binary once more, told by the environment what to be.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use tidegate::policy::Wait;
use tidegate::{CloseReason, Consumed, Endpoint, Model, Outbox, Policy, Session};

use super::player::{Game, MODELS, policy, waits};
use crate::conformance::kit::{self, Deadline, Echo, Witness};

pub(crate) fn trials() -> Vec<Trial> {
    if std::env::var_os(ROLE).is_some() {
        return tests![role];
    }
    tests![the_server_is_killed, the_client_is_killed]
}

const ROLE: &str = "TIDEGATE_FAST_PATH_ROLE";

/// Takes everything and says nothing.
struct Sink;

impl Session for Sink {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }
}

/// The other process, killed when dropped.
struct Other(Child);

impl Other {
    fn start(role: &str, user: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this file"));
        command.args(["a_killed_peer_is_a_reset::role", "--exact", "--nocapture"]).env(ROLE, role);
        if let Some(user) = user {
            command.uid(user);
        }
        Self(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("another process"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("signal");
    }

    /// The rest of the first line of its output that has this in it.
    fn line(&mut self, with: &str) -> String {
        let lines = BufReader::new(self.0.stdout.take().expect("piped")).lines();
        let mut rest =
            lines.map_while(Result::ok).filter_map(|line| line.split_once(with).map(|(_, r)| r.to_owned()));
        rest.next().expect("it says so")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays once with a server, as another user; the bytes come back right either way.
pub fn play_as(user: u32, to: &Endpoint) {
    let mut other = Other::start(&format!("player {to}"), Some(user));
    assert!(other.0.wait().expect("wait").success(), "the player lost");
}

/// What the other process does.
fn role() {
    let role = std::env::var(ROLE).expect("the parent process sets it");
    let words: Vec<_> = role.split(' ').collect();
    let to = || words[1].parse::<Endpoint>().expect("an address");
    match words[0] {
        "player" => {
            let game = Game::new(50_000);
            let policy = policy(Model::Epoll, Wait::Block);
            let fast = policy.fast_path.map(|fast| fast.also_user(Some(0)));
            let client = game.play(&to(), Model::Epoll, policy.fast_path(fast), 1);
            kit::until("it is over", || !game.witness.closings().is_empty());
            assert_eq!((game.witness.closings(), game.right()), (vec![CloseReason::Finished], game.bytes));
            drop(client);
        }
        "server" => {
            let model = words[1].parse().expect("a model");
            let server = kit::serve(model, policy(model, Wait::Block), kit::sessions(Echo::default));
            println!("listening on {}", server.local_addr());
            server.join();
        }
        "endless" => {
            let game = Game { window: usize::MAX, ..Game::new(usize::MAX / 2) };
            let _client = game.play(&to(), Model::Epoll, policy(Model::Epoll, Wait::Block), 1);
            kit::until("it is killed", || false);
        }
        other => panic!("{other} is nothing to be"),
    }
}

/// The server is killed while this side waits for it, sends to it, or is held back by it (it was stopped before).
fn the_server_is_killed() {
    for (model, wait) in pairs() {
        for stopped in [false, true] {
            let _deadline = Deadline::new(format!("{model} {wait:?} {stopped}"));
            let mut server = Other::start(&format!("server {model}"), None);
            let addr = server.line("listening on ").parse::<Endpoint>().expect("an address");
            let game = Game::new(usize::MAX / 2);
            let client = game.play(&addr, model, unlimited(model, wait), 1);
            kit::until("bytes flow", || game.right() > 100_000);
            if stopped {
                server.signal(Signal::STOP);
                let mut before = usize::MAX;
                kit::until("they flow no more", || {
                    std::mem::replace(&mut before, game.right()) == game.right()
                });
            }
            assert_eq!(client.stats().fast_paths, 1);
            killed(server, &game.witness);
            kit::until("it is counted", || client.stats().closed_by(CloseReason::Reset) == 1);
        }
    }
}

/// The client is killed while the server only listens to it, or only speaks.
fn the_client_is_killed() {
    for (model, wait) in pairs() {
        let _deadline = Deadline::new(format!("{model} {wait:?}"));
        let server = kit::serve(model, unlimited(model, wait), kit::sessions(|| Sink));
        let client = Other::start(&format!("endless {}", server.local_addr()), None);
        kit::until("bytes flow", || server.stats().bytes_in > 100_000);
        assert_eq!(server.stats().fast_paths, 1);
        client.signal(Signal::KILL);
        kit::until("the server sees it", || server.stats().closed_by(CloseReason::Reset) == 1);
        kit::finish(server);
    }
}

/// No time limit ends a connection: only the death of the peer does.
fn unlimited(model: Model, wait: Wait) -> Policy {
    policy(model, wait).first_byte_timeout(None).idle_timeout(None).send_timeout(None).min_rate(None)
}

fn pairs() -> impl Iterator<Item = (Model, Wait)> {
    let waits_ = [Wait::Block, Wait::Spin];
    MODELS
        .into_iter()
        .flat_map(move |model| waits_.map(|wait| (model, wait)))
        .filter(|&(model, wait)| waits(model, wait))
}

fn killed(other: Other, witness: &Witness) {
    other.signal(Signal::KILL);
    kit::until("the reset is seen", || !witness.closings().is_empty());
    assert_eq!(witness.closings(), [CloseReason::Reset]);
}
