//! What happens to the connections of one thread, played as a loop would, against a model of each part.
//!
//! | part | what it is |
//! |---|---|
//! | `session` | a session that does what the input says, and checks what it is shown |
//! | `entry` | one connection and what the kernel would hold of it |
//! | `world` | the thread: table, timers, clock |

mod entry;
mod session;
mod world;

use arbitrary::Unstructured;

/// Most steps of one run.
const MOST_STEPS: usize = 400;

/// Events of connections in any order an engine could bring them, and sessions that answer in any way they may.
pub fn core(data: &[u8]) {
    let mut script = Unstructured::new(data);
    let Ok(mut world) = world::World::new(&mut script) else { return };
    for _ in 0..MOST_STEPS {
        if script.is_empty() || world.step(&mut script).is_err() {
            break;
        }
    }
    world.end();
}

/// The byte at a place of a stream: each stream has its own, so that bytes of another, or of another place, show.
fn byte_at(stream: u8, place: usize) -> u8 {
    let mixed = (place as u32).wrapping_mul(0x9E37_79B1) >> 24;
    mixed as u8 ^ stream
}

/// So many bytes of a stream from a place on.
fn bytes_at(stream: u8, from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|place| byte_at(stream, place)).collect()
}
