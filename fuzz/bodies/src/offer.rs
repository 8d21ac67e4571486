//! What a dialler of the fast path says first.

use tidegate::fastpath::protocol::{HELLO_BYTES, hello, parse, same};

/// Whatever is understood fits into a message, and means the same when it is said again.
pub fn offer(data: &[u8]) {
    let Some((from, to)) = parse(data) else { return };
    let again = hello(from, to);
    assert!(again.len() <= HELLO_BYTES, "{from} {to}");
    assert_eq!(parse(&again), Some((same(from), same(to))));
}
