//! The ring: everything that hands memory to the kernel, also when it ends early. What is wrong here, AddressSanitizer
//! sees (`.ci/sanitize`).

#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
use linux::main;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("left out: io_uring is a part of Linux");
}
