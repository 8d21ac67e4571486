//! Winsock's extension functions, which are not in its library: they are asked for at run time, and may be missing.

use std::io;
use std::os::windows::io::AsRawSocket;
use std::sync::LazyLock;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, LPFN_CONNECTEX, LPFN_DISCONNECTEX, LPFN_TRANSMITFILE, LPFN_TRANSMITPACKETS,
    SIO_GET_EXTENSION_FUNCTION_POINTER, WSAID_ACCEPTEX, WSAID_CONNECTEX, WSAID_DISCONNECTEX,
    WSAID_TRANSMITFILE, WSAID_TRANSMITPACKETS, WSAIoctl,
};
use windows_sys::core::GUID;

use super::winsock::{check, handle};

/// What was found out about one function.
type Found = Result<usize, i32>;

/// The functions by name, and what asking for each brought.
static FOUND: LazyLock<Vec<(&'static str, Found)>> = LazyLock::new(|| {
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

fn ask(socket: &Socket, id: GUID) -> Found {
    let (mut function, mut bytes) = (0usize, 0);
    // SAFETY: the socket is open for the call; pointers and lengths describe `id` and `function`; nothing overlaps.
    let asked = check(unsafe {
        WSAIoctl(
            handle(socket.as_raw_socket()),
            SIO_GET_EXTENSION_FUNCTION_POINTER,
            std::ptr::from_ref(&id).cast(),
            size_of::<GUID>() as u32,
            std::ptr::from_mut(&mut function).cast(),
            size_of::<usize>() as u32,
            &raw mut bytes,
            std::ptr::null_mut(),
            None,
        )
    });
    match asked {
        Ok(()) if function != 0 => Ok(function),
        Ok(()) => Err(0),
        Err(e) => Err(e.raw_os_error().unwrap_or_default()),
    }
}

fn find(name: &str) -> io::Result<usize> {
    let found = FOUND.iter().find(|(known, _)| *known == name).map(|(_, found)| *found);
    found.unwrap_or(Err(0)).map_err(|code| {
        let why = io::Error::from_raw_os_error(code);
        io::Error::new(io::ErrorKind::Unsupported, format!("this system has no {name} ({why})"))
    })
}

/// Each function by name, and the error with which it was refused, if it was.
#[must_use]
pub fn found() -> Vec<(&'static str, Option<io::Error>)> {
    let why = |found: &Found| found.err().map(io::Error::from_raw_os_error);
    FOUND.iter().map(|(name, found)| (*name, why(found))).collect()
}

/// What overlapped engines can not do without.
#[derive(Clone, Copy)]
pub(super) struct Extensions {
    pub(super) accept: Required<LPFN_ACCEPTEX>,
    pub(super) connect: Required<LPFN_CONNECTEX>,
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
        // SAFETY: Winsock gave these addresses for the identifiers of functions with these signatures (mswsock.h), and they stay
        // valid as long as Winsock is loaded, which the standard library keeps it.
        unsafe {
            Ok(Self {
                accept: std::mem::transmute::<usize, Required<LPFN_ACCEPTEX>>(accept),
                connect: std::mem::transmute::<usize, Required<LPFN_CONNECTEX>>(connect),
            })
        }
    }
}

// The others are looked for, so that `doctor` can tell; nothing calls them yet.
const _: (LPFN_DISCONNECTEX, LPFN_TRANSMITFILE, LPFN_TRANSMITPACKETS) = (None, None, None);
