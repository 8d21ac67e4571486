//! Winsock's extension functions, which are not in its library: they are asked for at run time, and may be missing.

use std::io;
use std::mem::offset_of;
use std::os::windows::io::AsSocket;
use std::sync::LazyLock;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, LPFN_CONNECTEX, LPFN_DISCONNECTEX, LPFN_TRANSMITFILE, LPFN_TRANSMITPACKETS,
    SIO_GET_EXTENSION_FUNCTION_POINTER, SIO_LOOPBACK_FAST_PATH, TRANSMIT_FILE_BUFFERS,
    TRANSMIT_PACKETS_ELEMENT, WSAID_ACCEPTEX, WSAID_CONNECTEX, WSAID_DISCONNECTEX, WSAID_TRANSMITFILE,
    WSAID_TRANSMITPACKETS,
};
use windows_sys::Win32::System::IO::OVERLAPPED;
use windows_sys::core::GUID;

use super::version;
use super::winsock::{control, last_error};
use crate::reuse::Disconnect;
use crate::{loopback, transmit};

/// What was found out about one function.
type Resolved = Result<usize, i32>;

/// The functions by name, and what asking for each brought.
static FOUND: LazyLock<Vec<(&'static str, Resolved)>> = LazyLock::new(|| {
    let functions = [
        ("AcceptEx", WSAID_ACCEPTEX),
        ("ConnectEx", WSAID_CONNECTEX),
        ("DisconnectEx", WSAID_DISCONNECTEX),
        ("TransmitFile", WSAID_TRANSMITFILE),
        ("TransmitPackets", WSAID_TRANSMITPACKETS),
    ];
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let ask = |id| match &socket {
        Ok(socket) => ask(socket, id),
        Err(e) => Err(e.raw_os_error().unwrap_or_default()),
    };
    functions.map(|(name, id)| (name, ask(id))).to_vec()
});

fn ask(socket: &Socket, id: GUID) -> Resolved {
    let mut function = 0usize;
    // SAFETY: what comes back is an address, and any number is a value of it.
    match unsafe { control(socket, SIO_GET_EXTENSION_FUNCTION_POINTER, &id, &mut function) } {
        Ok(()) if function != 0 => Ok(function),
        Ok(()) => Err(0),
        Err(e) => Err(e.raw_os_error().unwrap_or_default()),
    }
}

fn find(name: &str) -> io::Result<usize> {
    if let Some(why) = of_no_use(name) {
        return Err(why);
    }
    let found = FOUND.iter().find(|(known, _)| *known == name).map(|(_, found)| *found);
    found.unwrap_or(Err(0)).map_err(|code| {
        let why = io::Error::from_raw_os_error(code);
        io::Error::new(io::ErrorKind::Unsupported, format!("this system has no {name} ({why})"))
    })
}

/// Why sockets cannot be used again, if they cannot.
pub(super) fn no_reuse() -> Option<io::Error> {
    find("DisconnectEx").err()
}

/// One of the functions, or a thing that is asked for in the same way.
#[derive(Debug)]
pub struct Extension {
    /// Its name.
    pub name: &'static str,
    /// How it was refused, if it was.
    pub refused: Option<io::Error>,
    /// What its absence means, and what to use in its place.
    pub without: &'static str,
}

/// All of them.
pub fn found() -> Vec<Extension> {
    let why = |found: &Resolved| found.err().map(io::Error::from_raw_os_error);
    let functions = FOUND.iter().map(|(name, found)| Extension {
        name,
        refused: why(found).or_else(|| of_no_use(name)),
        without: without(name),
    });
    let others = [("Registered I/O", super::registered::probe()), (LOOPBACK, probe_loopback())];
    let others = others.map(|(name, asked)| Extension { name, refused: asked.err(), without: without(name) });
    functions.chain(others).collect()
}

/// Why a function that is there is not called.
fn of_no_use(name: &str) -> Option<io::Error> {
    let why = match name {
        "TransmitFile" | "TransmitPackets" if version::is_for_clients() => {
            "an edition for clients sends two files at a time, and slow readers could hold both up"
        }
        // It succeeds, and AcceptEx takes the socket; but then nothing can be sent (WSAESHUTDOWN).
        "DisconnectEx" if version::is_wine() => "Wine's disconnects, and leaves a socket that cannot send",
        _ => return None,
    };
    Some(io::Error::new(io::ErrorKind::Unsupported, why))
}

const LOOPBACK: &str = "loopback fast path";

fn without(name: &str) -> &'static str {
    match name {
        "AcceptEx" | "ConnectEx" => "iocp and overlapped are unavailable: use event-select or select",
        "DisconnectEx" => {
            "sockets are closed rather than used again (reuse_sockets of iocp); nothing has to be done"
        }
        "TransmitFile" => {
            "without TransmitPackets, too, files are read and then sent; nothing has to be done"
        }
        "TransmitPackets" => "TransmitFile sends files, with one piece of memory before and after each",
        LOOPBACK => "connections of one host go all the way through TCP; nothing has to be done",
        _ => "rio is unavailable: use iocp",
    }
}

/// Whether a socket takes `SIO_LOOPBACK_FAST_PATH`.
fn probe_loopback() -> io::Result<()> {
    hasten_loopback(&Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?)
}

/// Asks a socket that is not connected, and does not listen, to spare connections of this host the way through TCP.
///
/// # Errors
/// This system cannot; the socket is as it was.
pub fn hasten_loopback(socket: &impl AsSocket) -> io::Result<()> {
    loopback::hasten(|code, on| give(socket, code, on))
}

const _: () = assert!(loopback::FAST_PATH == SIO_LOOPBACK_FAST_PATH);

/// Gives a socket an option that is a number.
pub(super) fn give(socket: &impl AsSocket, code: u32, value: u32) -> io::Result<()> {
    // SAFETY: nothing comes back.
    unsafe { control(&socket.as_socket(), code, &value, &mut ()) }
}

/// What overlapped engines cannot do without.
#[derive(Clone, Copy)]
pub(super) struct Extensions {
    pub(super) accept: Required<LPFN_ACCEPTEX>,
    pub(super) connect: Required<LPFN_CONNECTEX>,
    /// These may be missing.
    pub(super) transmit: transmit::Functions,
    pub(super) disconnect: Option<Disconnect>,
}

/// A function that is there.
pub(super) type Required<F> = <F as Present>::Function;

/// The types that windows-sys has for functions are options.
pub(super) trait Present {
    type Function;
}

impl<F> Present for Option<F> {
    type Function = F;
}

impl Extensions {
    pub(super) fn load() -> io::Result<Self> {
        let (accept, connect) = (find("AcceptEx")?, find("ConnectEx")?);
        // SAFETY: Winsock gave these addresses for the identifiers of functions with these signatures (mswsock.h), and
        // they stay valid as long as Winsock is loaded, which the standard library keeps it.
        unsafe {
            Ok(Self {
                accept: std::mem::transmute::<usize, Required<LPFN_ACCEPTEX>>(accept),
                connect: std::mem::transmute::<usize, Required<LPFN_CONNECTEX>>(connect),
                transmit: transmit_functions(),
                disconnect: find("DisconnectEx").ok().map(|at| std::mem::transmute::<usize, Disconnect>(at)),
            })
        }
    }
}

/// The functions that send files; none where files are better read.
fn transmit_functions() -> transmit::Functions {
    let (file, packets) = (find("TransmitFile").ok(), find("TransmitPackets").ok());
    // SAFETY: as in `load`; the structures behind the pointers are alike, see below.
    unsafe {
        transmit::Functions {
            transmit_file: file.map(|at| std::mem::transmute::<usize, transmit::TransmitFile>(at)),
            transmit_packets: packets.map(|at| std::mem::transmute::<usize, transmit::TransmitPackets>(at)),
            last_error,
        }
    }
}

// The structures of `transmit` are those of the system, and its functions take what those of the system do.
const _: () = {
    assert!(size_of::<transmit::RawOverlapped>() == size_of::<OVERLAPPED>());
    assert!(size_of::<transmit::FileBuffers>() == size_of::<TRANSMIT_FILE_BUFFERS>());
    assert!(size_of::<transmit::Element>() == size_of::<TRANSMIT_PACKETS_ELEMENT>());
    assert!(
        offset_of!(transmit::RawOverlapped, offset) == offset_of!(OVERLAPPED, Anonymous.Anonymous.Offset)
    );
    assert!(
        offset_of!(transmit::RawOverlapped, offset_high)
            == offset_of!(OVERLAPPED, Anonymous.Anonymous.OffsetHigh)
    );
    assert!(offset_of!(transmit::RawOverlapped, event) == offset_of!(OVERLAPPED, hEvent));
    assert!(offset_of!(transmit::FileBuffers, head) == offset_of!(TRANSMIT_FILE_BUFFERS, Head));
    assert!(offset_of!(transmit::FileBuffers, head_bytes) == offset_of!(TRANSMIT_FILE_BUFFERS, HeadLength));
    assert!(offset_of!(transmit::FileBuffers, tail) == offset_of!(TRANSMIT_FILE_BUFFERS, Tail));
    assert!(offset_of!(transmit::FileBuffers, tail_bytes) == offset_of!(TRANSMIT_FILE_BUFFERS, TailLength));
    assert!(offset_of!(transmit::Element, flags) == offset_of!(TRANSMIT_PACKETS_ELEMENT, dwElFlags));
    assert!(offset_of!(transmit::Element, bytes) == offset_of!(TRANSMIT_PACKETS_ELEMENT, cLength));
    assert!(offset_of!(transmit::Element, at) == offset_of!(TRANSMIT_PACKETS_ELEMENT, Anonymous));
    assert!(size_of::<Required<LPFN_DISCONNECTEX>>() == size_of::<Disconnect>());
    assert!(size_of::<Required<LPFN_TRANSMITFILE>>() == size_of::<transmit::TransmitFile>());
    assert!(size_of::<Required<LPFN_TRANSMITPACKETS>>() == size_of::<transmit::TransmitPackets>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_asked_for_has_a_name_and_what_its_absence_means() {
        let found = found();
        assert_eq!(found.len(), 7);
        assert!(found.iter().all(|extension| !extension.without.is_empty()));
        let works =
            |name| found.iter().any(|extension| extension.name == name && extension.refused.is_none());
        assert!(works("AcceptEx") && works("ConnectEx"), "{found:?}");
    }
}
