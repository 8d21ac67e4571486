//! TCP Fast Open (RFC 7413), which a network namespace is needed for.

#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
use linux::main;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("left out: TCP Fast Open is tested on Linux");
}
