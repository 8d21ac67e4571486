//! Somebody's own service over the simulated kernel: what its clients send and must receive is given.

use std::sync::Arc;

use fastrand::Rng;
use tidegate_os::waker::Waker;

use super::observed::Observed;
use super::script::Script;
use super::shelf::SimulatedFiles;
use super::socket::{GivenBytes, SimulatedSocket};
use super::world::World;
use crate::policy::Policy;
use crate::proto::erased::erase;
use crate::service::{CloseReason, Service};
use crate::stats::Stats;

/// What the client of one connection sends, and what it must receive if nothing breaks the connection.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) sends: Arc<[u8]>,
    pub(crate) expects: Arc<[u8]>,
}

/// Plays a seed; `Err` says what must not have happened.
pub(crate) fn play<S: Service>(
    service: S,
    policy: &Policy,
    exchanges: &[Exchange],
    seed: u64,
    trace: bool,
    waker: &Arc<Waker>,
) -> Result<Stats, String> {
    let mut rng = Rng::with_seed(seed);
    let completes = rng.bool();
    let bytes: Vec<_> = exchanges.iter().map(|e| (e.sends.len() as u64, e.expects.len() as u64)).collect();
    let script = Script::given(&mut rng, policy, &bytes);
    if trace {
        eprintln!("{} {script:#?}", if completes { "completion" } else { "readiness" });
    }
    let mut world = World::new(rng, SimulatedFiles::new(seed), &script, trace);
    for (socket, exchange) in world.sockets.iter_mut().zip(exchanges) {
        socket.given = Some(GivenBytes { says: exchange.sends.clone(), taken: Vec::new(), cut: None });
    }
    let (stats, world) = super::play(world, erase(Observed(service)), &script, completes, waker)?;
    let mut pairs = world.sockets.iter().zip(exchanges).enumerate();
    pairs.try_for_each(|(id, (socket, exchange))| compare(id, socket, &exchange.expects))?;
    Ok(stats)
}

/// What a client has received, against what it must have.
fn compare(id: usize, socket: &SimulatedSocket, expected: &[u8]) -> Result<(), String> {
    let Some(given) = &socket.given else { return Ok(()) };
    let received = &given.taken[..given.cut.unwrap_or(given.taken.len()).min(given.taken.len())];
    let same = received.iter().zip(expected).take_while(|(a, b)| a == b).count();
    // The client broke off, the kernel would not watch the socket, or memory lacked for so long that connections had to
    // be closed (for which there was a cause): then it may be less, but not something else.
    let why = socket.log.closed;
    let may_be_less = socket.broken.is_some() || socket.log.unwatched || why == Some(CloseReason::NoMemory);
    let describe = |what: &str| {
        let from = same.saturating_sub(16);
        let piece = |bytes: &[u8]| {
            bytes[from.min(bytes.len())..(same + 16).min(bytes.len())].escape_ascii().to_string()
        };
        let (got, wanted) = (piece(received), piece(expected));
        format!(
            "connection {id} {what} (closed by {why:?}): {same} bytes are right; from {from} on it received \"{got}\" \
             and expected \"{wanted}\""
        )
    };
    match () {
        () if same < received.len() => Err(describe("received something else")),
        () if received.len() == expected.len() || may_be_less => Ok(()),
        () if given.taken.len() > received.len() => Err(describe(
            "lost the end of its answer in a reset; a session that closes while its peer may still be sending lingers",
        )),
        () => Err(describe("received less")),
    }
}
