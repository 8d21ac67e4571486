//! `bpf(2)`, as far as maps of sockets need it: maps, programs that the caller has assembled, and links to a control
//! group.
//!
//! Everything here is a descriptor; the kernel takes it all apart when the last holder closes it, however that process
//! ends. The layouts are those of `linux/bpf.h`; the kernel takes what a shorter one leaves out as zero.

use std::ffi::{CStr, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: c_long = 0;
const MAP_LOOKUP_ELEM: c_long = 1;
const MAP_GET_NEXT_KEY: c_long = 4;
const PROG_LOAD: c_long = 5;
const PROG_ATTACH: c_long = 8;
const LINK_CREATE: c_long = 28;

/// Where a program is attached to (`enum bpf_attach_type`).
const CGROUP_SOCK_OPS: u32 = 3;
const SK_MSG_VERDICT: u32 = 7;

/// Bytes for what the verifier has to say about a program that it refuses.
const LOG_BYTES: usize = 64 * 1024;

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// The kernel's verifier judges it, so any values are safe; registers are 0 to 10. A [map](LOAD_MAP) is named by
    /// its place among those that the [program](Program::load) is given, never by a descriptor.
    #[must_use]
    pub const fn new(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Self {
        // Two bit fields of a C structure, whose order follows that of the bytes.
        let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        Self { code, registers, offset, immediate }
    }

    const fn source(self) -> u8 {
        if cfg!(target_endian = "little") { self.registers >> 4 } else { self.registers & 0xF }
    }
}

/// Code and source register of the instruction that loads a map: the immediate is its place. The next instruction is
/// all zeroes.
pub const LOAD_MAP: (u8, u8) = (LOAD_64, 1);

/// Loads 64 bits (`BPF_LD | BPF_IMM | BPF_DW`). The source register says what the immediate is; other than 0, a number,
/// it names something.
const LOAD_64: u8 = 0x18;

/// The same code with descriptors where maps are named, which stay open as long as `maps` is borrowed.
fn with_maps(code: &[Instruction], maps: &[&Map]) -> io::Result<Vec<Instruction>> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let resolve = |&one: &Instruction| match (one.code, one.source()) {
        LOAD_MAP => {
            let map = usize::try_from(one.immediate).ok().and_then(|place| maps.get(place));
            let map = map.ok_or_else(|| wrong("the program names a map that it was not given"))?;
            Ok(Instruction { immediate: map.fd.as_raw_fd(), ..one })
        }
        (LOAD_64, 1..) => Err(wrong("the program loads what is neither a number nor a map")),
        _ => Ok(one),
    };
    code.iter().map(resolve).collect()
}

/// Kinds of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// A table that forgets what was not used for longest when it is full.
    LruHash = 9,
    /// Sockets by a key. A socket that is closed leaves it.
    SockHash = 18,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

/// Whether an error says that this kernel has no `bpf(2)`.
pub fn is_missing(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOSYS)
}

impl Map {
    /// Makes a map of at most `entries`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` (and `CAP_NET_ADMIN` for sockets), `ENOSYS` without `bpf(2)`, `EINVAL` if this kernel
    /// has no such map.
    pub fn create(kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> io::Result<Self> {
        let request = MapCreate { kind: kind as u32, key_bytes, value_bytes, entries, flags: 0 };
        // SAFETY: the request holds no pointers.
        let fd = unsafe { bpf_descriptor(MAP_CREATE, &request) }?;
        Ok(Self { fd, key_bytes: key_bytes as usize, value_bytes: value_bytes as usize })
    }

    /// All keys, at most `most` of them, as of about now.
    ///
    /// # Errors
    /// What the system says.
    pub fn keys(&self, most: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while keys.len() < most {
            let mut next = vec![0; self.key_bytes];
            let last = keys.last().map_or(0, |key| address(key));
            let request = MapElement::new(&self.fd, last, address_mut(&mut next));
            // SAFETY: both pointers are to `key_bytes` bytes that outlive the call, or null, which asks for the first
            // key.
            match unsafe { bpf(MAP_GET_NEXT_KEY, &request) } {
                Ok(_) => keys.push(next),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(keys)
    }

    /// The value of a key, if it is there still.
    ///
    /// # Errors
    /// What the system says.
    pub fn value(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut value = vec![0; self.value_bytes];
        let request = MapElement::new(&self.fd, address(key), address_mut(&mut value));
        // SAFETY: the pointers are to `key_bytes` and `value_bytes` bytes, which is what this map reads and writes.
        match unsafe { bpf(MAP_LOOKUP_ELEM, &request) } {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Kinds of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Called when something happens to a TCP connection.
    SockOps = 13,
    /// Called with each message that is sent.
    SkMsg = 16,
}

/// A program that was not taken.
#[derive(Debug)]
pub struct ProgramError {
    /// What the system says.
    pub error: io::Error,
    /// What the verifier says, if it was asked.
    pub log: String,
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Has the kernel verify and load a program, whose maps are those at their places in `maps`; it keeps them.
    ///
    /// # Errors
    /// As [`Map::create`], and `EINVAL` or `EACCES`, with a log, if the verifier does not take it.
    pub fn load(
        kind: ProgramKind,
        license: &CStr,
        code: &[Instruction],
        maps: &[&Map],
    ) -> Result<Self, ProgramError> {
        let code = &with_maps(code, maps).map_err(|error| ProgramError { error, log: String::new() })?;
        let mut log = Vec::new();
        let first = Self::try_load(kind, license, code, &mut log);
        first.map(Self).or_else(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => Err(ProgramError { error, log: String::new() }),
            // Once more, to hear why: writing the log costs, so it was not asked for.
            _ => {
                log.resize(LOG_BYTES, 0);
                let second = Self::try_load(kind, license, code, &mut log);
                let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
                second
                    .map(Self)
                    .map_err(|error| ProgramError { error, log: String::from_utf8_lossy(text).trim().into() })
            }
        })
    }

    fn try_load(
        kind: ProgramKind,
        license: &CStr,
        code: &[Instruction],
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        let request = ProgLoad {
            kind: kind as u32,
            instructions: u32::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            code: code.as_ptr().expose_provenance() as u64,
            license: license.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: u32::try_from(log.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            log: if log.is_empty() { 0 } else { address_mut(log) },
        };
        // SAFETY: code, license and log outlive the call and are as long as said; the kernel writes into the log only,
        // which is borrowed mutably.
        unsafe { bpf_descriptor(PROG_LOAD, &request) }
    }

    /// Has it judge the messages of all sockets in a map, for as long as the map lives.
    ///
    /// # Errors
    /// What the system says.
    pub fn attach_to_map(&self, map: &Map) -> io::Result<()> {
        let request = ProgAttach {
            target: map.fd.as_raw_fd() as u32,
            program: self.0.as_raw_fd() as u32,
            place: SK_MSG_VERDICT,
            flags: 0,
        };
        // SAFETY: the request holds no pointers.
        unsafe { bpf(PROG_ATTACH, &request) }.map(drop)
    }

    /// Has it follow the TCP connections of the processes in a control group, beside other programs that do (a link
    /// implies `BPF_F_ALLOW_MULTI`), until the link is dropped or this process ends.
    ///
    /// # Errors
    /// What the system says; `EINVAL` before Linux 5.7, or if another program was attached so that it is alone.
    pub fn attach_to_cgroup(&self, group: BorrowedFd<'_>) -> io::Result<BpfLink> {
        let request = LinkCreate {
            program: self.0.as_raw_fd() as u32,
            target: group.as_raw_fd() as u32,
            place: CGROUP_SOCK_OPS,
            flags: 0,
        };
        // SAFETY: the request holds no pointers.
        unsafe { bpf_descriptor(LINK_CREATE, &request) }.map(BpfLink)
    }
}

/// An attachment, undone when dropped.
#[derive(Debug)]
pub struct BpfLink(#[expect(dead_code, reason = "held, not used")] OwnedFd);

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

fn address_mut(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

/// Calls `bpf(2)`.
///
/// # Safety
/// What the request points to is as the command expects: long enough, alive during the call, and exclusive where the
/// kernel writes.
unsafe fn bpf<T>(command: c_long, request: &T) -> io::Result<c_long> {
    // SAFETY: the request is valid for its size; the caller has seen to what it points to.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(request), size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// The same for commands that return a new descriptor, which the kernel closes on exec.
///
/// # Safety
/// As `bpf`.
unsafe fn bpf_descriptor<T>(command: c_long, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller says.
    let fd = unsafe { bpf(command, request) }?;
    let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: these commands return a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    /// Would be padding, which must be zero.
    zero: u32,
    key: u64,
    value_or_next: u64,
    flags: u64,
}

impl MapElement {
    fn new(map: &OwnedFd, key: u64, value_or_next: u64) -> Self {
        Self { map: map.as_raw_fd() as u32, zero: 0, key, value_or_next, flags: 0 }
    }
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

#[repr(C)]
struct ProgAttach {
    target: u32,
    program: u32,
    place: u32,
    flags: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    place: u32,
    flags: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_maps_by_their_places_and_never_descriptors() {
        let (load, map) = LOAD_MAP;
        let end = [Instruction::new(0, 0, 0, 0, 0), Instruction::new(0x95, 0, 0, 0, 0)];
        // 0 to 2 are descriptors of every process; 2 to 6 in place of a map are values in maps, variables and functions
        // of the kernel.
        for (source, named) in
            [(map, 0), (map, 2), (map, -1)].into_iter().chain((2..=6).map(|kind| (kind, 0)))
        {
            let first = Instruction::new(load, 1, source, 0, named);
            let code: Vec<_> = std::iter::once(first).chain(end).collect();
            let refused = Program::load(ProgramKind::SkMsg, c"Dual MIT/GPL", &code, &[]).unwrap_err();
            assert_eq!(refused.error.kind(), io::ErrorKind::InvalidInput, "{source} {named}");
            assert!(refused.error.to_string().contains("the program"), "by the kernel: {}", refused.error);
        }
        let number = Instruction::new(load, 1, 0, 0, 7);
        assert_eq!(with_maps(&[number], &[]).unwrap(), [number]);
    }
}
