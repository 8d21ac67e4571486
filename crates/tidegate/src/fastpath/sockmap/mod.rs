//! Accelerates local TCP between unmodified programs (BPF sockmap): the kernel moves bytes from socket to socket,
//! bypassing TCP.
//!
//! | module | contents |
//! |---|---|
//! | `group` | the control group whose processes use it |
//! | `programs` | the BPF programs |
//! | `assembler` | builds them without a compiler |
//!
//! The programs need no change. Differences from TCP (Linux 6.18): firewalls, `tcpdump` and the TCP counters do not see
//! the bytes; a sender is not slowed down by a receiver that does not read, until the memory of TCP as a whole is used
//! up (`net.ipv4.tcp_mem`); and a blocking receive that is woken by something other than input, such as the
//! acknowledgement of its own half-close, fails with `EAGAIN`.

mod assembler;
mod group;
mod programs;

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use tidegate_os::bpf::{self, BpfLink, Map, MapKind, Program, ProgramKind};

pub use group::ControlGroup;

/// Why the sockmap is not available, and the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum SockmapError {
    /// No control groups of version 2.
    NoGroups,
    /// The path is not a version 2 control group.
    NoGroup(String),
    /// The control group cannot be created or used.
    Group {
        /// Its path.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// Permission denied.
    Rights(&'static str),
    /// The kernel has no `bpf(2)`.
    NoBpf(&'static str),
    /// The kernel rejects a map or a program.
    Kernel {
        /// What was rejected.
        what: &'static str,
        /// The system's error.
        error: io::Error,
        /// The verifier's log.
        log: String,
    },
}

impl fmt::Display for SockmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGroups => f.write_str(
                "no control groups of version 2 are mounted here: as root, mount -t cgroup2 none /sys/fs/cgroup",
            ),
            Self::NoGroup(path) => write!(
                f,
                "{path}: not inside a cgroup2 mount; give a directory below a mount of type cgroup2"
            ),
            Self::Group { path, error } => write!(
                f,
                "control group {path}: {error}; run as root, or give one that this user may write with --cgroup"
            ),
            Self::Rights(what) => write!(
                f,
                "{what}: not permitted: CAP_BPF and CAP_NET_ADMIN are required; run as root, or grant them to the \
                 program or its container"
            ),
            Self::NoBpf(what) => write!(
                f,
                "{what}: this kernel has no bpf(2) (CONFIG_BPF_SYSCALL), or a seccomp filter hides it"
            ),
            Self::Kernel { what, error, log } => write!(
                f,
                "{what}: {error}; requires Linux 5.15 or later with CONFIG_CGROUP_BPF and CONFIG_NET_SOCK_MSG{log}"
            ),
        }
    }
}

impl std::error::Error for SockmapError {}

impl SockmapError {
    fn of(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::with(what, error, String::new())
    }

    fn with(what: &'static str, error: io::Error, log: String) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied if log.is_empty() => Self::Rights(what),
            _ if bpf::is_missing(&error) => Self::NoBpf(what),
            _ => {
                let log = if log.is_empty() { log } else { format!("; the verifier says:\n{log}") };
                Self::Kernel { what, error, log }
            }
        }
    }
}

/// Messages sent by sockets in the map, counted over the directions that are still in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Carried {
    /// From socket to socket.
    pub by_map: u64,
    /// By TCP, because the other end was not in the map when the first message was sent.
    pub by_tcp: u64,
}

/// The map and its programs, attached to a control group or not yet.
///
/// When it is dropped, or this process ends for any reason, new connections use TCP. Those in the map stay there until
/// they end, and the kernel keeps the map for them: no data is lost.
#[derive(Debug)]
pub struct Sockmap {
    sockets: Map,
    directions: Map,
    follow: Program,
    /// Handles messages as long as the map exists.
    _carry: Program,
    link: Option<BpfLink>,
    most: usize,
}

impl Sockmap {
    /// Creates map and programs for this many connections, without attaching them. Cost: about 500 bytes of kernel
    /// memory for each connection.
    ///
    /// # Errors
    /// The kernel does not support it, or this process has no permission.
    pub fn load(connections: u32) -> Result<Self, SockmapError> {
        let sockets = connections.saturating_mul(2).max(2);
        let map = |what, kind, bytes| {
            Map::create(kind, programs::KEY_BYTES, bytes, sockets).map_err(SockmapError::of(what))
        };
        let most = sockets as usize;
        let sockets = map("a map of sockets", MapKind::SockHash, 4)?;
        let directions = map("a table of connections", MapKind::LruHash, programs::DIRECTION_BYTES)?;
        let maps = [&sockets, &directions];
        let load = |what, kind, code: &[_]| {
            // No GPL-only helper is used; the licence string is still the true one.
            Program::load(kind, c"Dual MIT/GPL", code, &maps)
                .map_err(|refused| SockmapError::with(what, refused.error, refused.log))
        };
        let (at, by) = (0, 1); // places among the maps
        let follow =
            load("the program that follows connections", ProgramKind::SockOps, &programs::follow(at, by))?;
        let carry = load("the program that carries messages", ProgramKind::SkMsg, &programs::carry(at, by))?;
        carry.attach_to_map(&sockets).map_err(SockmapError::of("a program beside a map of sockets"))?;
        Ok(Self { sockets, directions, follow, _carry: carry, link: None, most })
    }

    /// Attaches to a group: connections that its processes make from now on use the map. Both ends have to belong to it
    /// or to groups inside; a socket belongs to the group of the process that created it, and an accepted socket to the
    /// group of its listener.
    ///
    /// # Errors
    /// The group cannot be opened, or the kernel rejects the attachment.
    pub fn attach(&mut self, group: &ControlGroup) -> Result<(), SockmapError> {
        let folder = std::fs::File::open(group.path());
        let folder = folder
            .map_err(|error| SockmapError::Group { path: group.path().display().to_string(), error })?;
        let link = self.follow.attach_to_cgroup(folder.as_fd());
        self.link = Some(link.map_err(SockmapError::of("a program beside a control group"))?);
        Ok(())
    }

    /// Number of sockets in the map.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(&self) -> io::Result<usize> {
        Ok(self.sockets.keys(self.most)?.len())
    }

    /// Messages by transport so far.
    ///
    /// # Errors
    /// The system's error.
    pub fn carried(&self) -> io::Result<Carried> {
        let mut carried = Carried::default();
        for key in self.directions.keys(self.most)? {
            let Some(direction) = self.directions.value(&key)? else { continue };
            let (how, messages) = direction.split_at(programs::MESSAGES_AT as usize);
            let messages = messages.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let mapped =
                how.first_chunk().is_some_and(|bytes| i32::from_ne_bytes(*bytes) == programs::MAPPED);
            *if mapped { &mut carried.by_map } else { &mut carried.by_tcp } += messages;
        }
        Ok(carried)
    }
}
