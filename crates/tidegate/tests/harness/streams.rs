//! Streams as the peer of a server uses them, where systems differ.
#![allow(dead_code, reason = "each target uses a part of it")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Receives, and reports a reset as one. Wine takes a reset off a socket on which somebody waits, and then may report
/// an end of the stream.
pub fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer) {
        Ok(0) if was_reset(stream) => Err(ErrorKind::ConnectionReset.into()),
        received => received,
    }
}

/// Whether an end of the stream was a reset in truth: Wine refuses to send anything after one, even nothing.
pub fn was_reset(mut stream: &TcpStream) -> bool {
    cfg!(windows) && stream.write(&[]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
}

/// Sends all of it. Wine takes nothing now and then and returns 0, which is no end.
pub fn send_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) if !cfg!(windows) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
