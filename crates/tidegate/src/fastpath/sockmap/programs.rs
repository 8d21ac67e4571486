//! The two BPF programs and their map layouts.
//!
//! *Follow* runs for each TCP connection of the control group and puts both its sockets into the map. *Carry* runs for
//! each message that one of these sockets sends: it redirects it to the queue of the other end, or passes it to TCP.
//!
//! A byte sent over TCP must not be overtaken by one that goes through the map, and the kernel does not ensure that: a
//! receiver reads data from the map first. The two sockets of a connection are not established at the same moment, and
//! one may send before the other end is in the map. So the route of each *direction* is decided once, by the side that
//! first creates its entry: the receiver, when it is in the map (`MAPPED`), or the sender, when it sends and finds none
//! (`TCP`). From then on all data of that direction takes the same route.

use tidegate_os::bpf::Instruction;

use super::assembler::{Code, HelperFunction, JumpLabel, Register};

/// Key of a socket: local and remote address (IPv4 as `::ffff:a.b.c.d`, so that both ends agree), local and remote port
/// in network order, and the network namespace, because the same addresses may exist in another one.
pub(super) const KEY_BYTES: u32 = 48;
const FAR: i16 = 16;
const PORTS: i16 = 32;
const NAMESPACE: i16 = 40;

/// Key of a direction: that of the receiving socket. Value: its route, and messages so far.
pub(super) const DIRECTION_BYTES: u32 = 16;
pub(super) const MESSAGES_AT: i16 = 8;
const TCP: i32 = 0;
pub(super) const MAPPED: i32 = 1;

/// Keys and a direction on the stack.
const NEAR_KEY: i16 = -48;
const FAR_KEY: i16 = -96;
const DIRECTION: i16 = -112;

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// Events of a connection (`BPF_SOCK_OPS_…`).
const CONNECTS: i32 = 3;
const ESTABLISHED_ACTIVE: i32 = 4;
const ESTABLISHED_PASSIVE: i32 = 5;

const ANY: i32 = 0;
const IF_NEW: i32 = 1;
const TO_INPUT: i32 = 1;
const PASS: i32 = 1;

/// Offsets of addresses in a context; ports follow one another.
struct AddressOffsets {
    family: i16,
    far4: i16,
    near4: i16,
    far6: i16,
    near6: i16,
    far_port: i16,
    near_port: i16,
}

/// `struct bpf_sock_ops`
const SOCK_OPS: AddressOffsets =
    AddressOffsets { family: 20, far4: 24, near4: 28, far6: 32, near6: 48, far_port: 64, near_port: 68 };
const OPS_OP: i16 = 0;
const OPS_DATA_SEGMENTS_OUT: i16 = 152;

/// `struct sk_msg_md`
const SK_MSG: AddressOffsets =
    AddressOffsets { family: 16, far4: 20, near4: 24, far6: 28, near6: 44, far_port: 60, near_port: 64 };

/// The *follow* program. `sockets` and `directions` are the indexes of the maps.
pub(super) fn follow(sockets: i32, directions: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    let (begin, established, out) = (code.label(), code.label(), code.label());
    code.copy(Register::R6, Register::R1);
    code.load(Register::R2, Register::R6, OPS_OP);
    for event in [CONNECTS, ESTABLISHED_ACTIVE, ESTABLISHED_PASSIVE] {
        code.jump_if_equal(Register::R2, event, begin);
    }
    code.jump(out);
    code.set(begin);
    keys(&mut code, &SOCK_OPS, &[NEAR_KEY, FAR_KEY], out);
    code.load(Register::R2, Register::R6, OPS_OP);
    code.jump_if_not(Register::R2, CONNECTS, established);
    // The addresses were used before: the new connection is undecided.
    for key in [NEAR_KEY, FAR_KEY] {
        code.map(Register::R1, directions);
        code.point(Register::R2, key);
        code.call(HelperFunction::MapDelete);
    }
    code.jump(out);
    code.set(established);
    // TCP Fast Open: data was sent already, so it must stay on TCP. A socket that is not in the map does.
    code.load(Register::R2, Register::R6, OPS_DATA_SEGMENTS_OUT);
    code.jump_if_not(Register::R2, 0, out);
    code.copy(Register::R1, Register::R6);
    code.map(Register::R2, sockets);
    code.point(Register::R3, NEAR_KEY);
    code.put(Register::R4, ANY);
    code.call(HelperFunction::SockHashUpdate);
    code.jump_if_not(Register::R0, 0, out); // full
    decide(&mut code, directions, NEAR_KEY, MAPPED);
    code.set(out);
    code.end(PASS);
    code.assemble()
}

/// The *carry* program.
pub(super) fn carry(sockets: i32, directions: i32) -> Vec<Instruction> {
    let mut code = Code::default();
    let (decided, out) = (code.label(), code.label());
    code.copy(Register::R6, Register::R1);
    keys(&mut code, &SK_MSG, &[FAR_KEY], out);
    look_up(&mut code, directions, FAR_KEY);
    code.jump_if_not(Register::R0, 0, decided);
    decide(&mut code, directions, FAR_KEY, TCP);
    look_up(&mut code, directions, FAR_KEY); // the other end may have decided first
    code.jump_if_equal(Register::R0, 0, out);
    code.set(decided);
    code.put(Register::R1, 1);
    code.add_at(Register::R0, MESSAGES_AT, Register::R1);
    code.load(Register::R2, Register::R0, 0);
    code.jump_if_not(Register::R2, MAPPED, out);
    code.copy(Register::R1, Register::R6);
    code.map(Register::R2, sockets);
    code.point(Register::R3, FAR_KEY);
    code.put(Register::R4, TO_INPUT);
    code.call(HelperFunction::MsgRedirectHash); // if the other end is gone, nothing is counted and TCP reports it
    code.set(out);
    code.end(PASS);
    code.assemble()
}

/// Writes the keys of this socket and of the other end, or one of them. Sockets that are neither IPv4 nor IPv6 jump to
/// `other`. Register 6 is the context.
fn keys(code: &mut Code, at: &AddressOffsets, which: &[i16], other: JumpLabel) {
    // A key, with the offsets of its local and remote parts as seen from this socket.
    let places: Vec<_> =
        which.iter().map(|&key| if key == NEAR_KEY { (key, 0, FAR) } else { (key, FAR, 0) }).collect();
    let (version4, rest) = (code.label(), code.label());
    code.load(Register::R2, Register::R6, at.family);
    code.jump_if_equal(Register::R2, AF_INET, version4);
    code.jump_if_not(Register::R2, AF_INET6, other);
    for word in [0, 4, 8, 12] {
        for (field, is_near) in [(at.near6, true), (at.far6, false)] {
            code.load(Register::R2, Register::R6, field + word);
            for &(key, near, far) in &places {
                code.keep(key + if is_near { near } else { far } + word, Register::R2);
            }
        }
    }
    code.jump(rest);
    code.set(version4);
    for &(key, near, far) in &places {
        for address in [near, far] {
            code.keep_value(key + address, 0);
            code.keep_value(key + address + 4, 0);
            code.keep_value(key + address + 8, 0xffff_u32.to_be() as i32);
        }
    }
    for (field, is_near) in [(at.near4, true), (at.far4, false)] {
        code.load(Register::R2, Register::R6, field);
        for &(key, near, far) in &places {
            code.keep(key + if is_near { near } else { far } + 12, Register::R2);
        }
    }
    code.set(rest);
    // The local port is in host order, the remote one in network order.
    code.load(Register::R2, Register::R6, at.near_port);
    code.network_order(Register::R2);
    code.load(Register::R3, Register::R6, at.far_port);
    for &(key, near, far) in &places {
        code.keep(key + PORTS + near / 4, Register::R2);
        code.keep(key + PORTS + far / 4, Register::R3);
    }
    code.copy(Register::R1, Register::R6);
    code.call(HelperFunction::NetnsCookie);
    for &(key, ..) in &places {
        code.keep_long(key + NAMESPACE, Register::R0);
    }
}

fn look_up(code: &mut Code, directions: i32, key: i16) {
    code.map(Register::R1, directions);
    code.point(Register::R2, key);
    code.call(HelperFunction::MapLookup);
}

/// Decides the route of a direction, unless it is decided.
fn decide(code: &mut Code, directions: i32, key: i16, how: i32) {
    for (at, value) in [(0, how), (4, 0), (MESSAGES_AT, 0), (MESSAGES_AT + 4, 0)] {
        code.keep_value(DIRECTION + at, value);
    }
    code.map(Register::R1, directions);
    code.point(Register::R2, key);
    code.point(Register::R3, DIRECTION);
    code.put(Register::R4, IF_NEW);
    code.call(HelperFunction::MapUpdate);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_small() {
        assert!(follow(3, 4).len() < 128 && carry(3, 4).len() < 128);
    }
}
