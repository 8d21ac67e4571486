//! A peer that does not take part sees plain TCP, with the right bytes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use libtest_mimic::Trial;
use tidegate::policy::{FastPath, Wait};
use tidegate::{CloseReason, Model, Policy, Server, Stats};

use super::player::{Game, MODELS, impostor, policy};
use crate::conformance::kit::{self, Deadline, Echo};
use crate::harness;

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = tests![
        one_end_without_the_option,
        rings_that_are_larger_than_the_listener_takes,
        a_meeting_that_is_not_the_listeners,
        a_successor
    ];
    let root = rustix::process::geteuid().is_root();
    all.extend(harness::needs(root, "root, to start a process of another user", tests![another_user]));
    all
}

/// Plays once; returns the counters of client and server.
fn play(model: Model, server: Policy, client: Policy) -> (Stats, Stats) {
    let server = kit::serve(model, server, kit::sessions(Echo::default));
    let game = Game::new(50_000);
    let client = game.play(server.local_addr(), model, client, 1);
    kit::until("it is over", || !game.witness.closings().is_empty());
    assert_eq!(game.witness.closings(), [CloseReason::Finished]);
    assert_eq!(game.right(), game.bytes);
    client.stop();
    (client.join(), kit::finish(server))
}

fn plain(model: Model) -> Policy {
    policy(model, Wait::Block).fast_path(None)
}

fn with(model: Model, change: impl Fn(FastPath) -> FastPath) -> Policy {
    let policy = policy(model, Wait::Block);
    policy.clone().fast_path(policy.fast_path.map(change))
}

fn one_end_without_the_option() {
    let _deadline = Deadline::new("one end without the option".into());
    for model in MODELS {
        for (server, client) in [(true, false), (false, true), (false, false)] {
            let of = |has| if has { policy(model, Wait::Block) } else { plain(model) };
            let (there, here) = play(model, of(server), of(client));
            assert_eq!((there.fast_paths, here.fast_paths), (0, 0), "{model}: {server} {client}");
        }
    }
}

fn rings_that_are_larger_than_the_listener_takes() {
    let _deadline = Deadline::new("rings that are too large".into());
    for model in MODELS {
        let large = with(model, |fast| fast.ring_bytes(1 << 20));
        let (there, here) = play(model, policy(model, Wait::Block), large);
        assert_eq!((there.fast_paths, here.fast_paths), (0, 0), "{model}");
    }
}

/// Somebody else of the same user has the name, and says nothing, or hangs up.
fn a_meeting_that_is_not_the_listeners() {
    for hangs_up in [false, true] {
        for model in MODELS {
            let _deadline = Deadline::new(format!("a stranger on {model}"));
            let (socket, stranger) = impostor();
            let server =
                Server::new(kit::sessions(Echo::default)).model(model).policy(policy(model, Wait::Block));
            let server = server.listen_on(OwnedFd::from(socket)).expect("listen").start().expect("start");
            let game = Game::new(50_000);
            let hasty = with(model, |fast| fast.handshake_timeout(Duration::from_millis(50)));
            let client = game.play(server.local_addr(), model, hasty, 1);
            let mut callers = Vec::new();
            kit::until("it is over", || {
                callers.extend(stranger.accept().ok().filter(|_| !hangs_up));
                !game.witness.closings().is_empty()
            });
            assert_eq!(game.witness.closings(), [CloseReason::Finished]);
            assert_eq!(game.right(), game.bytes);
            client.stop();
            assert_eq!((client.join().fast_paths, kit::finish(server).fast_paths), (0, 0));
        }
    }
}

/// Who succeeds a server has its socket at once, and the name once that has gone. Until then connections are TCP.
fn a_successor() {
    for model in MODELS {
        let _deadline = Deadline::new(format!("a successor on {model}"));
        let make =
            || Server::new(kit::sessions(Echo::default)).model(model).policy(policy(model, Wait::Block));
        let first = make().bind(kit::somewhere()).expect("bind");
        let socket = first.share_listener().expect("a second descriptor");
        let first = first.start().expect("start");
        let second = make().listen_on(socket).expect("listen").start().expect("start");
        kit::finish(first);
        let game = Game::new(1000);
        let mut rounds = 0;
        kit::until("the successor has the name", || {
            let client = game.play(second.local_addr(), model, policy(model, Wait::Block), 1);
            rounds += 1;
            kit::until("it is over", || game.witness.closings().len() == rounds);
            client.stop();
            client.join().fast_paths == 1
        });
        assert_eq!(game.right(), rounds * game.bytes, "whichever way they went");
        kit::finish(second);
    }
}

/// A process of another user is not let in.
fn another_user() {
    let _deadline = Deadline::new("another user".into());
    for (also_user, fast_paths) in [(None, 0), (Some(65_534), 1)] {
        let server = with(Model::Epoll, |fast| fast.also_user(also_user));
        let server = kit::serve(Model::Epoll, server, kit::sessions(Echo::default));
        super::a_killed_peer_is_a_reset::play_as(65_534, server.local_addr());
        assert_eq!(kit::finish(server).fast_paths, fast_paths, "{also_user:?}");
    }
}
