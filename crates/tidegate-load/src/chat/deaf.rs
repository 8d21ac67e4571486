//! Members that stop reading after joining. They are plain sockets, because the library's sessions always read.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::ChatPlan;
use super::member::join_line;
use super::record::{RoomEvent, read};
use super::wire::{Heard, Speech, hear, hello, say};

/// Their receive buffer. Linux doubles it.
const BUFFER: usize = 4096;

/// A member that has stopped reading.
pub(super) struct Deaf(TcpStream);

impl Deaf {
    /// Joins its room.
    pub(super) fn join(plan: &ChatPlan, member: usize) -> io::Result<Self> {
        let target = plan.target(member);
        let addr = target.endpoint.addr().ok_or(io::ErrorKind::Unsupported)?;
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        socket.set_recv_buffer_size(BUFFER)?; // before the connection: the window is agreed on with it
        socket.connect_timeout(&addr.into(), plan.timeout)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(plan.timeout.max(Duration::from_millis(1))))?;
        let mut said = hello(plan.speech, &target.host).into_bytes();
        say(plan.speech, &join_line(plan, member), &mut said);
        stream.write_all(&said)?;
        wait_until_in(plan.speech, &mut stream)?;
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// Whether the server has ended the connection, after reading what it had sent. `None` if unknown.
    pub(super) fn is_cut_off(&mut self) -> Option<bool> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return Some(true),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Some(false),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Some(true),
                Err(_) => return None,
            }
        }
    }
}

fn wait_until_in(speech: Speech, stream: &mut TcpStream) -> io::Result<()> {
    let (mut input, mut greeted) = (Vec::new(), false);
    let mut buffer = [0; 512];
    loop {
        match hear(speech, greeted, &input) {
            Heard::Part => match stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => input.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            },
            Heard::Welcome(bytes) => {
                greeted = true;
                input.drain(..bytes);
            }
            Heard::RoomEvent(bytes, line) => match read(line) {
                RoomEvent::Joined(_) => return Ok(()),
                RoomEvent::Refused => {
                    return Err(io::Error::other(String::from_utf8_lossy(line).into_owned()));
                }
                _ => _ = input.drain(..bytes),
            },
            Heard::Wrong(why) => return Err(io::Error::other(why)),
        }
    }
}
