//! Connections as the kernel counts them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// Established connections at this address, whether the process has accepted them or not (`proc_net(5)`: state 01).
pub fn established(pid: u32, addr: SocketAddr) -> usize {
    let IpAddr::V4(ip) = addr.ip() else { panic!("{addr} is in another table") };
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), addr.port());
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = fields.filter(|f| f.get(1) == Some(&local.as_str()) && f.get(3) == Some(&"01"));
    // While others come and go the kernel may list one twice.
    ours.map(|f| f[2].to_owned()).collect::<HashSet<_>>().len()
}
