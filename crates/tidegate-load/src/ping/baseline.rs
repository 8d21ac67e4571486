//! The physical baseline of the round trip: two processes, two rings in shared memory, and nothing else. No server, no
//! session, no kernel; both sides spin. Nothing can be faster between two processes on these processors.

use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use tidegate::fastpath::layout::{LinkEnd, RingMemory, Rings};
use tidegate::fastpath::ring::{Ended, Reader, Writer};
use tidegate::system::handover;

use super::session::histogram;
use super::{PingReport, RoundTrip};
use crate::histogram::encode;

/// Bytes of each ring.
const RING: usize = 4 << 20;
/// Looks between two looks at the clock, or at whether the other side is there still.
const LOOKS: u32 = 4096;
/// How long the other side may be silent.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends everything back, to one caller; `ready` receives the address for it. Ends when the caller does.
///
/// # Errors
/// There is no socket or memory, or the caller does other than it should.
pub fn baseline_echo(ready: impl FnOnce(&str)) -> io::Result<()> {
    let name = format!("tidegate-baseline-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    ready(&name);
    let (caller, _) = listener.accept()?;
    if !handover::is_same_user(&caller)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the caller is another user"));
    }
    let (_, memory) = handover::receive(&caller, &mut [0; 1])?;
    let [memory] = <[_; 1]>::try_from(memory).map_err(|_| io::Error::other("the caller sent no memory"))?;
    let rings = Rings::open(&memory, RING)?;
    (&caller).write_all(&[1])?;
    let (reader, writer) = rings.sides(LinkEnd::Listener);
    let mut side = RingEnd { reader, writer };
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match side.receive(&mut buffer)? {
            0 => return Ok(()),
            n => side.send(&buffer[..n])?,
        }
    }
}

/// Sends messages of `size` bytes to and fro with a [`baseline_echo`] for so long, and until one at least was measured:
/// on a busy machine the first may take longer than that.
///
/// # Errors
/// It is not there, or does other than it should.
pub fn baseline_ping(name: &str, size: usize, time: Duration) -> io::Result<PingReport> {
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let (rings, memory) = Rings::create(RING)?;
    handover::send(&socket, &[1], &[memory.as_fd()])?;
    handover::receive(&socket, &mut [0; 1])?;
    let (reader, writer) = rings.sides(LinkEnd::Dialler);
    let mut side = RingEnd { reader, writer };
    let message = vec![7; size];
    let mut back = vec![0; size];
    let mut nanos = histogram();
    let begun = Instant::now();
    let warm = begun + time / 10;
    let mut sent = begun;
    while sent < begun + time || nanos.is_empty() {
        side.send(&message)?;
        let mut at = 0;
        while at < size {
            at += match side.receive(&mut back[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => n,
            };
        }
        let now = Instant::now();
        if sent >= warm {
            nanos.saturating_record((now - sent).as_nanos() as u64);
        }
        sent = now;
    }
    let _ = side.writer.end(Ended::Finished); // it spins: nobody has to be woken
    let elapsed_s = (sent - warm).as_secs_f64();
    let round_trips_per_s = nanos.len() as f64 / elapsed_s;
    Ok(PingReport {
        format: 1,
        protocol: "ping".into(),
        target: name.into(),
        model: "bare ring".into(),
        wait: "spin".into(),
        message_bytes: size,
        connections: 1,
        connected: 1,
        elapsed_s,
        round_trips: nanos.len(),
        round_trips_per_s,
        bytes_per_s: round_trips_per_s * size as f64,
        wrong: u64::from(back != message),
        round_trip: RoundTrip::of(&nanos),
        round_trip_v2: encode(&nanos),
        ..PingReport::default()
    })
}

/// One end.
struct RingEnd {
    reader: Reader<RingMemory>,
    writer: Writer<RingMemory>,
}

impl RingEnd {
    /// Receives at least one byte; 0 is the end.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                let moved = self.reader.read(into).map_err(io::Error::other)?;
                if moved.bytes > 0 {
                    return Ok(moved.bytes);
                }
            }
            if self.reader.ended().map_err(io::Error::other)? != Ended::No {
                return Ok(0);
            }
            give_up(&mut since)?;
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut since = None;
        while !bytes.is_empty() {
            let moved = self.writer.write(&[IoSlice::new(bytes)]).map_err(io::Error::other)?;
            bytes = &bytes[moved.bytes..];
            if moved.bytes == 0 {
                give_up(&mut since)?;
            }
        }
        Ok(())
    }
}

/// Fails once nothing has moved for too long.
fn give_up(since: &mut Option<Instant>) -> io::Result<()> {
    let since = *since.get_or_insert_with(Instant::now);
    if since.elapsed() > TIMEOUT { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_come_back() {
        for size in [1, 64, 100_000] {
            let (tell, receiver) = std::sync::mpsc::channel();
            let echo = std::thread::spawn(move || baseline_echo(|name| tell.send(name.to_owned()).unwrap()));
            let report = baseline_ping(&receiver.recv().unwrap(), size, Duration::from_millis(50)).unwrap();
            assert!(report.is_clean(), "{report:?}");
            echo.join().unwrap().unwrap();
        }
    }
}
