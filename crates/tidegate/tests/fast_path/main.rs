//! The fast path: the whole conformance suite over it, and what is its own: falling back, and peers that are killed.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

#[path = "../conformance/main.rs"]
mod conformance;

use conformance::kit;

mod a_killed_peer_is_a_reset;
mod both_ends_are_sessions;
mod player;
mod whoever_does_not_take_part_sees_tcp;
