//! A server and a client of the library, on any of the models and however they wait: every byte comes back, and both
//! count the connections as what they are.

use std::time::Duration;

use libtest_mimic::Trial;
use tidegate::policy::Wait;
use tidegate::{CloseReason, Model};

use super::player::{Game, MODELS, policy, waits};
use crate::conformance::kit::{self, Deadline, Echo};

pub(crate) fn trials() -> Vec<Trial> {
    tests![on_every_pair_of_models, however_they_wait]
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
    // Both ends agree. A connection may stay TCP where the machine is too busy to answer an offer in time; not all of
    // them.
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
