//! A server and a client of the library, on any of the models and however they wait: every byte comes back, and both
//! count the connections as what they are.

use std::net::SocketAddr;
use std::time::Duration;

use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use tidegate::policy::Wait;
use tidegate::{CloseReason, Endpoint, Model, Server};

use super::player::{Game, MODELS, is_alone, policy, waits};
use crate::conformance::kit::{self, Deadline, Echo};

pub(crate) fn trials() -> Vec<Trial> {
    tests![on_every_pair_of_models, however_they_wait, a_server_that_starts_again_on_its_port_has_it_at_once]
}

const WAITS: [Wait; 3] = [Wait::Block, Wait::Spin, Wait::SpinThenBlock(Duration::from_millis(1))];
const TIMES: usize = 3;

fn play(server_model: Model, client_model: Model, wait: Wait) {
    let _deadline = Deadline::new(format!("{server_model}, {client_model}, {wait:?}"));
    let server = kit::serve(server_model, policy(server_model, wait), kit::sessions(Echo::default));
    let game = Game::new(150_000);
    let client = game.play(server.local_addr(), client_model, policy(client_model, wait), TIMES);
    kit::until("all is over", || game.witness.closings().len() == TIMES);
    assert_eq!(game.witness.closings(), [CloseReason::Finished; TIMES]);
    assert_eq!(game.right(), TIMES * game.bytes);
    client.stop();
    let (there, here) = (client.join(), kit::finish(server));
    // Both ends agree.
    assert_eq!(there.fast_paths, here.fast_paths);
    assert!((1..=TIMES as u64).contains(&here.fast_paths), "{}", here.fast_paths);
    assert_eq!((there.bytes_in, here.bytes_in), (game.right() as u64, game.right() as u64));
}

fn on_every_pair_of_models() {
    for server in MODELS {
        for client in MODELS {
            play(server, client, Wait::Block);
        }
    }
}

fn however_they_wait() {
    for model in MODELS {
        for wait in WAITS.into_iter().filter(|&wait| waits(model, wait)) {
            play(model, model, wait);
        }
    }
}

/// The name under which diallers find the fast path is free when a server has ended, as its port is; and a dialler
/// finds the owner of the port although an earlier connection between the same two ports is in TIME_WAIT.
fn a_server_that_starts_again_on_its_port_has_it_at_once() {
    if !is_alone("both_ends_are_sessions::a_server_that_starts_again_on_its_port_has_it_at_once") {
        return;
    }
    for model in MODELS {
        let _deadline = Deadline::new(format!("{model} starts again"));
        // Keeps the port from everybody who does not name it (socket(7)).
        let keeps = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        keeps.set_reuse_address(true).expect("reuse");
        keeps.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
        let at = Endpoint::from(keeps.local_addr().ok().and_then(|at| at.as_socket()).expect("address"));
        for time in 0..100 {
            let service = kit::sessions(Echo::default);
            let server =
                Server::new(service).model(model).policy(policy(model, Wait::Block)).bind(at.clone());
            let server = server.expect("bind").start().expect("start");
            let game = Game::new(100);
            let client = game.play(&at, model, policy(model, Wait::Block), 1);
            kit::until("it is over", || game.witness.closings().len() == 1);
            client.stop();
            let (there, here) = (client.join(), kit::finish(server));
            assert_eq!(
                (there.fast_paths, here.fast_paths),
                (1, 1),
                "{model}, time {time}, {}",
                here.fast_paths_refused
            );
        }
    }
}
