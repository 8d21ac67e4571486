//! Registered I/O is asked for before anybody has made a socket. Alone in its file: any socket of the standard library
//! starts Winsock.
#![cfg(windows)]

use tidegate_os::registered;

/// What Winsock's calls answer until it is started (`WSAStartup`).
const WSANOTINITIALISED: i32 = 10093;

#[test]
fn the_systems_answer_is_reported_and_not_that_winsock_sleeps() {
    let Err(refusal) = registered::probe() else { return };
    let said = refusal.to_string();
    assert!(!said.contains(&WSANOTINITIALISED.to_string()), "{said}");
    assert!(said.contains("os error"), "the error comes with it: {said}");
}
