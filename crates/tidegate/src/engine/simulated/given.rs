//! Somebody's own service over the simulated kernel: what its clients, and those whom it dials, send and must receive
//! is given.

use std::sync::Arc;

use fastrand::Rng;
use tidegate_os::waker::Waker;

pub(crate) use super::exchange::Exchange;
use super::exchange::GivenBytes;
use super::observed::observe;
use super::script::Script;
use super::shelf::SimulatedFiles;
use super::socket::SimulatedSocket;
pub(crate) use super::upstreams::SimulatedUpstreams;
use super::upstreams::hurt;
use super::world::World;
use crate::policy::Policy;
use crate::service::Service;
use crate::stats::Stats;

/// What somebody's own test gives.
#[derive(Clone, Debug)]
pub(crate) struct GivenService {
    pub(crate) policy: Policy,
    /// What the client of each connection sends, and what it must receive.
    pub(crate) clients: Vec<Exchange>,
    pub(crate) upstreams: SimulatedUpstreams,
    /// One of these a client may receive behind a part of its answer, if something was broken for it.
    pub(crate) failure_answers: Vec<Arc<[u8]>>,
}

/// Plays a seed; `Err` says what must not have happened.
pub(crate) fn play<S: Service>(
    service: S,
    given: &GivenService,
    seed: u64,
    trace: bool,
    waker: &Arc<Waker>,
) -> Result<Stats, String> {
    let mut rng = Rng::with_seed(seed);
    let completes = rng.bool();
    let bytes: Vec<_> =
        given.clients.iter().map(|e| (e.sends.len() as u64, e.expects.len() as u64)).collect();
    let script = Script::given(&mut rng, &given.policy, &bytes);
    if trace {
        eprintln!("{} {script:#?}", if completes { "completion" } else { "readiness" });
    }
    let mut world = World::new(rng, SimulatedFiles::new(seed), &script, trace);
    world.upstreams = given.upstreams.clone();
    for (socket, client) in world.sockets.iter_mut().zip(&given.clients) {
        socket.given = Some(GivenBytes::new(vec![client.clone()], Some(0)));
    }
    let (stats, world) = super::play(world, observe(service), &script, completes, waker)?;
    // Those who were dialled come first: what they have not received is why a client has not.
    let hurt = hurt(&world.sockets);
    let (clients, dialled) =
        (0..world.sockets.len()).partition::<Vec<_>, _>(|&id| world.sockets[id].asker.is_none());
    for id in dialled.into_iter().chain(clients) {
        compare(id, &world.sockets[id], hurt[id].then_some(&*given.failure_answers))?;
    }
    Ok(stats)
}

/// What a peer has received, against what it must have. If something was broken for it, it may be less, but not
/// something else; and behind that a client may receive one of `instead`.
fn compare(id: usize, socket: &SimulatedSocket, instead: Option<&[Arc<[u8]>]>) -> Result<(), String> {
    let was_dialled = socket.asker.is_some();
    let Some(given) = socket.given.as_ref().filter(|_| !was_dialled || socket.log.opened.is_some()) else {
        return Ok(()); // there was no connection
    };
    let received = given.received();
    let expected = given.exchanges.iter().map(|exchange| &*exchange.expects);
    let same = |expected: &[u8]| received.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let Some(expected) = expected.max_by_key(|expected| same(expected)) else { return Ok(()) };
    let same = same(expected);
    let is_hurt = instead.is_some();
    let instead = instead.filter(|_| !was_dialled);
    let may_end =
        |at: usize| instead.into_iter().flatten().any(|instead| instead.starts_with(&received[at..]));
    let why = socket.log.closed;
    let describe = |what: &str| {
        let from = same.saturating_sub(16);
        let piece = |bytes: &[u8]| {
            bytes[from.min(bytes.len())..(same + 16).min(bytes.len())].escape_ascii().to_string()
        };
        let (got, wanted) = (piece(received), piece(expected));
        let dialled = socket.asker.map(|asker| format!(", an upstream of {asker},")).unwrap_or_default();
        format!(
            "connection {id}{dialled} {what} (closed by {why:?}): {same} bytes are right; from {from} on it received \"{got}\" \
             and expected \"{wanted}\""
        )
    };
    match () {
        () if received == expected => Ok(()),
        () if is_hurt && same == received.len() => Ok(()),
        () if (0..=same).any(may_end) => Ok(()),
        () if same < received.len() => Err(describe("received something else")),
        () if given.taken.len() > received.len() => Err(describe(
            "lost the end of its answer in a reset; a session that closes while its peer may still be sending lingers",
        )),
        () => Err(describe("received less")),
    }
}
