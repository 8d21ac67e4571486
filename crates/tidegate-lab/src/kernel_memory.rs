//! Kernel memory of a server's sockets: the Linux counterpart of the non-paged pool in the book's table.
//!
//! Queried through netlink (`sock_diag(7)`) with `INET_DIAG_SKMEMINFO`: for each socket on the server's port, the bytes
//! charged for received data, data to send, forward allocation, options and backlog. The socket structures themselves
//! are not charged; [`socket_bytes`] is added for each. Where their size cannot be read, the sum is not known, and no
//! usual size takes its place. [`objects`] measures what that leaves out: all objects of the kernel's slab allocator,
//! of both ends and of everything else on the machine, before and after.

use std::io::{self, Read, Write};
use std::sync::LazyLock;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// The slab caches that have one object each for an established TCP socket.
const STRUCTURES: [&str; 3] = ["TCP", "sock_inode_cache", "filp"];

/// Kernel memory of the structures of an established TCP socket, in bytes: the sizes of objects that this kernel lists
/// in `/proc/slabinfo`. `None` where that cannot be read.
#[must_use]
pub fn socket_bytes() -> Option<u64> {
    static BYTES: LazyLock<Option<u64>> = LazyLock::new(|| structures(&slabinfo()?));
    *BYTES
}

/// The sum for this `slabinfo(5)`.
fn structures(slabinfo: &str) -> Option<u64> {
    let size = |name: &&str| caches(slabinfo)?.find(|cache| cache.name == *name).map(|cache| cache.size);
    STRUCTURES.iter().map(size).sum()
}

/// What kernel memory of sockets is, with the size of their structures; if that is not known, what to do.
pub(crate) fn sockets_method(structures: Option<u64>) -> String {
    match structures {
        Some(bytes) => format!("what the kernel charges to the sockets plus {bytes} bytes of structures for each"),
        None => "not measured, because the size of their structures is in /proc/slabinfo, which only root may read: run \
                 it as root to have it"
            .into(),
    }
}

fn slabinfo() -> Option<String> {
    std::fs::read_to_string("/proc/slabinfo").ok()
}

/// Bytes of the kernel's objects in use on the whole machine (slab allocator), without those of file systems, which
/// other programs move by megabytes: `/proc/slabinfo`, or `SUnreclaim` of `/proc/meminfo` where only root may read
/// that. `None` where there is neither.
#[must_use]
pub fn objects() -> Option<u64> {
    let of_caches = slabinfo().as_deref().and_then(of_slabinfo);
    of_caches.or_else(|| of_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?))
}

/// The same once they no longer change much: the kernel frees sockets a while after they were closed.
#[must_use]
pub fn settled_objects() -> Option<u64> {
    const STEP: Duration = Duration::from_millis(50);
    const CLOSE: u64 = 64 * 1024;
    let mut last = objects()?;
    for _ in 0..20 {
        std::thread::sleep(STEP);
        let now = objects()?;
        if now.abs_diff(last) < CLOSE {
            return Some(now);
        }
        last = now;
    }
    Some(last)
}

/// Growth in bytes between two counts of [`objects`]; below 0 if others have freed more.
#[must_use]
pub fn growth(before: Option<u64>, after: Option<u64>) -> Option<f64> {
    Some(after? as f64 - before? as f64)
}

/// How [`objects`] counts here.
#[must_use]
pub fn objects_method() -> &'static str {
    match slabinfo() {
        Some(_) => "objects in use by /proc/slabinfo, those of file systems left out",
        None => "SUnreclaim of /proc/meminfo, in whole slabs, because only root may read /proc/slabinfo",
    }
}

/// Caches of files, names and file systems.
fn is_of_file_systems(cache: &str) -> bool {
    let beginnings =
        ["ext4_", "jbd2_", "btrfs_", "xfs_", "nfs_", "fuse_", "ovl_", "squashfs_", "fat_", "bio-", "kernfs_"];
    let names = ["dentry", "buffer_head", "radix_tree_node", "extent_status"];
    beginnings.iter().any(|beginning| cache.starts_with(beginning))
        || names.contains(&cache)
        || (cache.contains("inode_cache") && cache != "sock_inode_cache")
}

/// A line of `slabinfo(5)`.
struct SlabCache<'a> {
    name: &'a str,
    in_use: u64,
    size: u64,
}

/// `slabinfo(5)`: after two lines of head, for each cache its name, its objects in use, all of them, and the size of
/// one.
fn caches(text: &str) -> Option<impl Iterator<Item = SlabCache<'_>>> {
    let lines =
        text.strip_prefix("slabinfo - version: 2")?.lines().skip(1).filter(|line| !line.starts_with('#'));
    Some(lines.filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, in_use) = (fields.next()?, fields.next()?.parse().ok()?);
        Some(SlabCache { name, in_use, size: fields.nth(1)?.parse().ok()? })
    }))
}

fn of_slabinfo(text: &str) -> Option<u64> {
    let caches = caches(text)?.filter(|cache| !is_of_file_systems(cache.name));
    Some(caches.map(|cache| cache.in_use * cache.size).sum())
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

const NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const INET_DIAG_SKMEMINFO: u16 = 7;
const TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// `TCP_SYN_RECV`, `TCP_TIME_WAIT` and `TCP_NEW_SYN_RECV`: what is left or not yet there of a connection has no socket
/// of full size.
const WITHOUT_A_SOCKET: [u8; 3] = [3, 6, 12];
const NLMSG_HEADER: usize = 16;
const INET_DIAG_MSG: usize = 72;

/// What the kernel holds for the sockets of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Bytes that the kernel charges to them.
    pub charged: u64,
    /// How many there are.
    pub count: u64,
    /// Those that are connected.
    pub established: u64,
}

impl Sockets {
    /// Bytes of kernel memory, with their structures; `None` if the size of these is not known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes_with(socket_bytes())
    }

    fn bytes_with(&self, structures: Option<u64>) -> Option<u64> {
        Some(self.charged + self.count * structures?)
    }
}

impl std::ops::AddAssign for Sockets {
    fn add_assign(&mut self, other: Self) {
        self.charged += other.charged;
        self.count += other.count;
        self.established += other.established;
    }
}

/// All sockets whose local port is `port`, those in `TIME_WAIT` left out: they are much smaller.
///
/// # Errors
/// The system has no netlink, or no `inet_diag`.
pub fn of_port(port: u16) -> io::Result<Sockets> {
    let mut sockets = Sockets::default();
    for family in [2u8, 10] {
        sockets += of_family(port, family)?;
    }
    Ok(sockets)
}

fn of_family(port: u16, family: u8) -> io::Result<Sockets> {
    let socket = Socket::new(Domain::from(NETLINK), Type::RAW, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
    (&socket).write_all(&request(port, family))?;
    let mut buffer = vec![0u8; 64 * 1024];
    let mut sockets = Sockets::default();
    loop {
        let n = match (&socket).read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        match sum(&buffer[..n], port)? {
            (part, MoreFollows::Yes) => sockets += part,
            (part, MoreFollows::No) => {
                sockets += part;
                return Ok(sockets);
            }
        }
    }
}

/// A dump request for the sockets with this local port in every state, with `INET_DIAG_SKMEMINFO`.
fn request(port: u16, family: u8) -> Vec<u8> {
    let mut m = Vec::with_capacity(NLMSG_HEADER + 56);
    m.extend(((NLMSG_HEADER + 56) as u32).to_ne_bytes());
    m.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    m.extend([0; 8]); // sequence and port id
    m.extend([family, TCP, 1 << (INET_DIAG_SKMEMINFO - 1), 0]);
    m.extend(u32::MAX.to_ne_bytes()); // states
    m.extend(port.to_be_bytes());
    m.extend([0; 46]); // peer's port, addresses, interface, cookie
    m
}

enum MoreFollows {
    Yes,
    No,
}

/// Sums the messages of one datagram.
fn sum(mut datagram: &[u8], port: u16) -> io::Result<(Sockets, MoreFollows)> {
    let mut sockets = Sockets::default();
    while let (Some(length), Some(kind)) = (u32_at(datagram, 0), u16_at(datagram, 4)) {
        let length = length as usize;
        let Some(message) = datagram.get(NLMSG_HEADER..length) else { break };
        match kind {
            NLMSG_DONE => return Ok((sockets, MoreFollows::No)),
            NLMSG_ERROR => {
                let code = u32_at(message, 0).unwrap_or(0) as i32;
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ => sockets += of_message(message, port).unwrap_or_default(),
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok((sockets, MoreFollows::Yes))
}

/// An `inet_diag_msg` and its attributes (`linux/inet_diag.h`).
fn of_message(message: &[u8], port: u16) -> Option<Sockets> {
    let local = u16::from_be_bytes(message.get(4..6)?.try_into().ok()?);
    let state = *message.get(1)?;
    if local != port || WITHOUT_A_SOCKET.contains(&state) {
        return None;
    }
    let established = u64::from(state == TCP_ESTABLISHED);
    let mut bytes = 0;
    let mut attributes = message.get(INET_DIAG_MSG..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(4..length) else { break };
        if kind == INET_DIAG_SKMEMINFO {
            // rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, optmem, backlog
            // Forward allocation is signed, and below zero for a moment while another processor takes of it.
            let charged = [0, 2, 4, 6, 7].into_iter().filter_map(|i| u32_at(value, i * 4));
            let charged: i64 = charged.map(|word| i64::from(word as i32)).sum();
            bytes += charged.max(0) as u64;
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(Sockets { charged: bytes, count: 1, established })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_port_are_summed_and_others_are_not() {
        let in_state = |state: u8, port: u16, forward: i32| {
            let mut m = vec![0u8; NLMSG_HEADER + INET_DIAG_MSG];
            m[NLMSG_HEADER + 1] = state;
            m[NLMSG_HEADER + 4..NLMSG_HEADER + 6].copy_from_slice(&port.to_be_bytes());
            m.extend((4u16 + 32).to_ne_bytes());
            m.extend(INET_DIAG_SKMEMINFO.to_ne_bytes());
            for word in [100, 9, 20, 9, forward, 9, 0, 1] {
                m.extend(word.to_ne_bytes());
            }
            let length = m.len() as u32;
            m[..4].copy_from_slice(&length.to_ne_bytes());
            m[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            m
        };
        let message = |port, forward| in_state(TCP_ESTABLISHED, port, forward);
        let mut datagram = message(80, 3);
        datagram.extend(message(81, 3));
        for state in WITHOUT_A_SOCKET {
            datagram.extend(in_state(state, 80, 0));
        }
        datagram.extend(message(80, -3));
        let (sockets, _) = sum(&datagram, 80).unwrap();
        assert_eq!(sockets, Sockets { charged: 124 + 118, count: 2, established: 2 });
        assert_eq!(sockets.bytes_with(Some(3_000)), Some(6_242));
        assert_eq!(sockets.bytes_with(None), None, "no usual size takes the place of one that is not known");
        assert!(sum(&datagram[..datagram.len() - 3], 80).is_ok(), "a cut message is left out");
    }

    #[test]
    fn objects_in_use_are_summed_without_those_of_files() {
        let text = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> <objperslab> : tunables\n\
            TCP                   79    130   2368   13    8 : tunables    0    0    0\n\
            sock_inode_cache       2      3    832   19    4 : tunables    0    0    0\n\
            ext4_inode_cache     999    999   1096   29    8 : tunables    0    0    0\n\
            dentry               999    999    192   21    1 : tunables    0    0    0\n";
        assert_eq!(of_slabinfo(text), Some(79 * 2368 + 2 * 832));
        assert_eq!(of_slabinfo("Permission denied"), None);
        let other = text.replace("2368", "3000");
        assert_eq!(structures(text), None, "there is no filp in it");
        let filp = "filp 1 1 192 21 1 : tunables 0 0 0\n";
        assert_eq!(structures(&format!("{text}{filp}")), Some(2_368 + 832 + 192));
        assert_eq!(structures(&format!("{other}{filp}")), Some(3_000 + 832 + 192));
        assert_eq!((structures(""), structures("Permission denied")), (None, None));
        assert!(sockets_method(Some(3_392)).contains("3392 bytes of structures"));
        assert!(
            sockets_method(None).contains("not measured") && sockets_method(None).contains("run it as root")
        );
        assert_eq!(of_meminfo("Slab:  9 kB\nSUnreclaim:      58660 kB\n"), Some(58_660 * 1024));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_real_socket_has_memory() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        match of_port(port) {
            Ok(sockets) => {
                // Other tests may have sockets with this port on other addresses.
                assert!(sockets.count >= 1, "{sockets:?}");
                assert!(sockets.bytes().is_none_or(|bytes| Some(bytes) >= socket_bytes()), "{sockets:?}");
                let address = listener.local_addr().unwrap();
                let connections = [(); 3]
                    .map(|()| (std::net::TcpStream::connect(address).unwrap(), listener.accept().unwrap()));
                let sockets = of_port(port).unwrap();
                assert!(sockets.count >= 4 && sockets.established >= 3, "{sockets:?}");
                drop(connections);
            }
            // Only a kernel without inet_diag, or a sandbox without netlink, has no answer.
            Err(e) => {
                /// `EPROTONOSUPPORT` and `EAFNOSUPPORT`, which have no kind.
                const NO_NETLINK: [Option<i32>; 2] = [Some(93), Some(97)];
                use std::io::ErrorKind::{NotFound, PermissionDenied, Unsupported};
                let is_without = matches!(e.kind(), NotFound | PermissionDenied | Unsupported);
                assert!(is_without || NO_NETLINK.contains(&e.raw_os_error()), "{e}");
            }
        }
    }
}
