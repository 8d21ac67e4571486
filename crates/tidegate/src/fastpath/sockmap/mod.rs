//! For programs that are not written for the fast path: the bytes of their TCP connections with one another go from
//! socket to socket through a map in the kernel (BPF sockmap), and not through TCP.
//!
//! | module | what it holds |
//! |---|---|
//! | `group` | the control group whose programs take part |
//! | `programs` | what runs in the kernel |
//! | `assembler` | how that is written without a compiler |
//!
//! The programs need not know. What TCP has and this has not (Linux 6.18): firewalls, `tcpdump` and the counters of TCP
//! do not see the bytes; nothing holds a sender back whose receiver does not read, until the memory of TCP as a whole
//! is used up (`net.ipv4.tcp_mem`); and a receive that sleeps and is woken for something else than input, as by the
//! acknowledgement of one's own half-close, fails with `EAGAIN` even on a socket that waits.

mod assembler;
mod group;
mod programs;

use std::io;
use std::os::fd::AsFd;

use tidegate_os::bpf::{self, Link, Map, MapKind, Program, ProgramKind};

pub use group::Group;

/// Why there is no map of sockets here, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SockmapError {
    /// There are no control groups of version 2.
    #[error("no control groups of version 2 are mounted here: as root, mount -t cgroup2 none /sys/fs/cgroup")]
    NoGroups,
    /// The path is something else.
    #[error(
        "{0} is no control group of version 2 and not inside of one: name a folder below a mount of type cgroup2"
    )]
    NoGroup(String),
    /// The control group cannot be made or used.
    #[error(
        "the control group {path}: {error}; run as root, or name one that this user may write with --cgroup"
    )]
    Group {
        /// Where it is, or would be.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// This process may not do it.
    #[error(
        "{0}: not permitted; it takes CAP_BPF and CAP_NET_ADMIN: run as root, or give these to the program or the container"
    )]
    Rights(&'static str),
    /// The kernel has no `bpf(2)`.
    #[error("{0}: this kernel has no bpf(2) (CONFIG_BPF_SYSCALL), or a seccomp filter hides it")]
    NoBpf(&'static str),
    /// The kernel does not take a map or a program.
    #[error(
        "{what}: {error}; it takes Linux 5.15 or later with CONFIG_CGROUP_BPF and CONFIG_NET_SOCK_MSG{log}"
    )]
    Kernel {
        /// What it does not take.
        what: &'static str,
        /// What it says.
        error: io::Error,
        /// What the verifier says.
        log: String,
    },
}

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

/// Messages that were sent by sockets in the map, of the directions that it remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From socket to socket.
    pub by_map: u64,
    /// By TCP, because the other end was not in the map when the first was sent.
    pub by_tcp: u64,
}

/// The map and its programs; attached to a control group, or not yet.
///
/// When it is dropped, or this process ends however it may, new connections stay with TCP. Those in the map stay there
/// until they end, and the kernel keeps the map for them: nothing of them is lost.
#[derive(Debug)]
pub struct Sockmap {
    sockets: Map,
    directions: Map,
    follow: Program,
    /// Judges messages for as long as the map lives.
    _carry: Program,
    link: Option<Link>,
    most: usize,
}

impl Sockmap {
    /// Makes map and programs for so many connections, and attaches them to nothing. Cost: about 500 bytes of kernel
    /// memory for each.
    ///
    /// # Errors
    /// The kernel has no such thing, or this process may not have it.
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
            // Helpers that are for free software only are not used, but what is said is true of this program.
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

    /// Has connections follow that programs of the group make from now on. Both ends have to belong to it, or to groups
    /// inside; a socket belongs to the group that its process was in when it made it, an accepted one to that of its
    /// listener.
    ///
    /// # Errors
    /// The group cannot be opened, or the kernel does not take it.
    pub fn attach(&mut self, group: &Group) -> Result<(), SockmapError> {
        let folder = std::fs::File::open(group.path());
        let folder = folder
            .map_err(|error| SockmapError::Group { path: group.path().display().to_string(), error })?;
        let link = self.follow.attach_to_cgroup(folder.as_fd());
        self.link = Some(link.map_err(SockmapError::of("a program beside a control group"))?);
        Ok(())
    }

    /// Sockets in the map.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self) -> io::Result<usize> {
        Ok(self.sockets.keys(self.most)?.len())
    }

    /// What went which way so far.
    ///
    /// # Errors
    /// What the system says.
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
