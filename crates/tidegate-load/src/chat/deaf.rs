//! Members that stop reading when they are in. They are plain sockets: the library's sessions read what comes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::ChatPlan;
use super::member::join_line;
use super::record::{Line, read};
use super::wire::{Heard, Speech, hear, hello, say};

/// Their receive buffer: what a peer takes that does not read. Linux doubles it.
const BUFFER: usize = 4096;

/// A member that reads nothing any more.
pub(super) struct Deaf(TcpStream);

impl Deaf {
    /// Gets it into its room.
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

    /// Whether the server has ended the connection; reads what it had sent before. `None` if that cannot be told.
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
            Heard::Line(bytes, line) => match read(line) {
                Line::Joined(_) => return Ok(()),
                Line::Refused => return Err(io::Error::other(String::from_utf8_lossy(line).into_owned())),
                _ => _ = input.drain(..bytes),
            },
            Heard::Wrong(why) => return Err(io::Error::other(why)),
        }
    }
}
