//! Datagrams through overlapped operations: several receives posted at once (`WSARecvFrom`), and sends with an address
//! (`WSASendTo`).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsSocket;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockAddr;
use windows_sys::Win32::Foundation::{HANDLE, STATUS_BUFFER_OVERFLOW};
use windows_sys::Win32::Networking::WinSock::{SOCKADDR_INET, WSABUF, WSARecvFrom, WSASendTo};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::super::descriptor::AsRawFd;
use super::super::pool::{Buffer, Pool};
use super::super::status;
use super::super::winsock::{check, handle};
use super::calls::cancel;
use super::table::{OperationTable, end_all};
use super::{Notifier, Operation, OperationData, WOKEN, seal::OfQueue};
use crate::datagram::{Arrival, DatagramSocket};
use crate::pages::Residence;

/// What the kernel may touch for an operation on datagrams.
pub(in crate::windows) enum DatagramData {
    Receive(ReceiveFrom),
    Send(SendTo),
}

/// A receive: `WSARecvFrom` writes the address of the sender when it ends, not when it is called.
pub(in crate::windows) struct ReceiveFrom {
    buffer: Buffer,
    from: SOCKADDR_INET,
    from_bytes: i32,
    flags: u32,
}

pub(in crate::windows) struct SendTo {
    bytes: Bytes,
    to: SOCKADDR_INET,
    to_bytes: i32,
}

/// A datagram that was received. To be given back with [`DatagramQueue::recycle`].
pub struct Datagram {
    buffer: Buffer,
    from: Option<SocketAddr>,
    truncated: bool,
}

/// What came back.
pub enum DatagramDone {
    /// The queue was woken.
    Woken,
    /// A receive, with the number that it was submitted with.
    Received(u64, io::Result<Datagram>),
    /// A send, likewise.
    Sent(u64, io::Result<()>),
}

/// The operations of one datagram socket, which nobody else can post operations on from then on.
pub struct DatagramQueue<N: Notifier> {
    table: OperationTable<N>,
    /// Outcomes of calls that failed at once.
    ready: VecDeque<DatagramDone>,
    pool: Pool,
    socket: Arc<DatagramSocket>,
}

impl<N: Notifier> DatagramQueue<N> {
    /// A queue whose completions `notify` reports, with so many buffers to receive into, of so many bytes.
    ///
    /// # Errors
    /// The socket has such a queue, or had one; or there is no memory.
    pub fn new(notify: N, socket: &Arc<DatagramSocket>, buffers: usize, bytes: usize) -> io::Result<Self> {
        let pool = Pool::new(buffers, bytes, Residence::Pageable)?;
        let table = OperationTable::new(notify, Residence::Pageable)?;
        socket.claim()?;
        table.notify.attach(socket.as_socket(), OfQueue(()))?;
        socket.refuse_reports();
        Ok(Self { table, ready: VecDeque::new(), pool, socket: socket.clone() })
    }

    /// Reports its completions.
    pub fn notify(&self) -> &N {
        &self.table.notify
    }

    /// Whether there is a buffer for one more receive.
    pub fn has_room(&self) -> bool {
        self.pool.count().1 > 0
    }

    /// Receives one datagram. Receives are filled in the order in which they were posted, and need not come back in it.
    pub fn receive(&mut self, key: u64) {
        let Some(buffer) = self.pool.take() else {
            let e = io::ErrorKind::ResourceBusy.into();
            return self.ready.push_back(DatagramDone::Received(key, Err(e)));
        };
        let from_bytes = size_of::<SOCKADDR_INET>() as i32;
        let receive = ReceiveFrom { buffer, from: SOCKADDR_INET::default(), from_bytes, flags: 0 };
        let held = OperationData::Datagram(DatagramData::Receive(receive));
        let (fd, pool) = (self.socket.as_raw_fd(), &self.pool);
        let submitted = self.table.submit((key, fd), held, |operation| {
            let overlapped = &raw mut operation.overlapped;
            let OperationData::Datagram(DatagramData::Receive(receive)) = &mut operation.held else {
                return Ok(());
            };
            let space = WSABUF { len: pool.bytes() as u32, buf: pool.at(&receive.buffer) };
            // SAFETY: the socket is open; `space` is copied by the call; the buffer it describes, the address, its
            // length, the flags and the OVERLAPPED are owned by the operation, and that by the table, until it has
            // ended.
            let called = check(unsafe {
                WSARecvFrom(
                    handle(fd),
                    &raw const space,
                    1,
                    std::ptr::null_mut(),
                    &raw mut receive.flags,
                    (&raw mut receive.from).cast(),
                    &raw mut receive.from_bytes,
                    overlapped,
                    None,
                )
            });
            // An operation that ends at once with a warning fails, as the call has it, and is reported like one that
            // has succeeded: it is still in the kernel's hands.
            if operation.is_truncated() { Ok(()) } else { called }
        });
        if let Err((held, e)) = submitted {
            if let OperationData::Datagram(DatagramData::Receive(receive)) = held {
                self.pool.recycle(receive.buffer);
            }
            self.ready.push_back(DatagramDone::Received(key, Err(e)));
        }
    }

    /// Receives one datagram that is there; `None` if there is none, or no buffer for it. To be called when no receive
    /// is posted: what those have comes first.
    pub fn receive_now(&mut self) -> io::Result<Option<Datagram>> {
        let Some(buffer) = self.pool.take() else { return Ok(None) };
        let whole = self.pool.whole(&buffer);
        match self.socket.receive_into(whole) {
            Ok((bytes, from)) => {
                let buffer = Buffer { filled: bytes as u32, ..buffer };
                Ok(Some(Datagram { buffer, from, truncated: from.is_none() }))
            }
            Err(e) => {
                self.pool.recycle(buffer);
                if e.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(e) }
            }
        }
    }

    /// Sends one datagram.
    pub fn send(&mut self, bytes: Bytes, to: SocketAddr, key: u64) {
        let to = SockAddr::from(to);
        let mut send = SendTo { bytes, to: SOCKADDR_INET::default(), to_bytes: to.len() };
        // SAFETY: the address of a socket of IPv4 or IPv6, for both of which there is room.
        unsafe {
            let into = (&raw mut send.to).cast::<u8>();
            std::ptr::copy_nonoverlapping(to.as_ptr().cast::<u8>(), into, to.len() as usize);
        }
        let held = OperationData::Datagram(DatagramData::Send(send));
        let fd = self.socket.as_raw_fd();
        let submitted = self.table.submit((key, fd), held, |operation| {
            let overlapped = &raw mut operation.overlapped;
            let OperationData::Datagram(DatagramData::Send(send)) = &operation.held else { return Ok(()) };
            let slice = WSABUF { len: send.bytes.len() as u32, buf: send.bytes.as_ptr().cast_mut() };
            // SAFETY: the socket is open; `slice` is copied by the call; the bytes, which Winsock only reads, the
            // address and the OVERLAPPED are owned by the operation, and that by the table, until it has ended.
            check(unsafe {
                WSASendTo(
                    handle(fd),
                    &raw const slice,
                    1,
                    std::ptr::null_mut(),
                    0,
                    (&raw const send.to).cast(),
                    send.to_bytes,
                    overlapped,
                    None,
                )
            })
        });
        if let Err((_, e)) = submitted {
            self.ready.push_back(DatagramDone::Sent(key, Err(e)));
        }
    }

    /// Ends the receives that are posted; each still comes back, with a datagram or [aborted](is_aborted).
    pub fn stop_receiving(&self) {
        for (_, operation) in &self.table.operations {
            if operation.receives() {
                cancel(&*self.socket, &operation.overlapped);
            }
        }
    }

    /// Waits until something has ended, or an outcome is there anyway.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.table.wait(if self.ready.is_empty() { timeout } else { Some(Duration::ZERO) })
    }

    /// The next outcome.
    #[allow(
        clippy::should_implement_trait,
        reason = "none is not the end: there is more after the next wait"
    )]
    pub fn next(&mut self) -> Option<DatagramDone> {
        if let Some(done) = self.ready.pop_front() {
            return Some(done);
        }
        loop {
            let place = self.table.ended.pop_front()?;
            if place == WOKEN {
                return Some(DatagramDone::Woken);
            }
            if let Some(operation) = self.table.take(place)
                && let Some(done) = self.finish(operation)
            {
                return Some(done);
            }
        }
    }

    fn finish(&mut self, operation: Operation) -> Option<DatagramDone> {
        let truncated = operation.is_truncated();
        let Operation { overlapped, key, held, .. } = operation;
        let OperationData::Datagram(data) = held else { return None };
        let result = status::outcome(overlapped.Internal as i32, overlapped.InternalHigh);
        let receive = match data {
            DatagramData::Send(_) => return Some(DatagramDone::Sent(key, result.map(drop))),
            DatagramData::Receive(receive) => receive,
        };
        let from = sender(&receive);
        let outcome = match result {
            Err(e) if !truncated => {
                self.pool.recycle(receive.buffer);
                Err(e)
            }
            result => {
                let filled = result.unwrap_or(self.pool.bytes()).min(self.pool.bytes()) as u32;
                Ok(Datagram { buffer: Buffer { filled, ..receive.buffer }, from, truncated })
            }
        };
        Some(DatagramDone::Received(key, outcome))
    }

    /// What was received.
    pub fn arrival<'a>(&'a self, datagram: &'a Datagram) -> Arrival<'a> {
        let bytes = self.pool.received(&datagram.buffer);
        Arrival { from: datagram.from, bytes, segment: bytes.len(), truncated: datagram.truncated }
    }

    /// Takes the buffer of a datagram back.
    pub fn recycle(&mut self, datagram: Datagram) {
        self.pool.recycle(datagram.buffer);
    }
}

impl Operation {
    /// Whether it has received a datagram that is longer than its buffer.
    fn is_truncated(&self) -> bool {
        // SAFETY: the kernel writes this field once, last; a volatile read sees either value.
        unsafe {
            std::ptr::read_volatile(&raw const self.overlapped.Internal) as i32 == STATUS_BUFFER_OVERFLOW
        }
    }
}

/// Who sent a datagram, if that is known.
fn sender(receive: &ReceiveFrom) -> Option<SocketAddr> {
    let bytes = usize::try_from(receive.from_bytes).ok()?.min(size_of::<SOCKADDR_INET>());
    // SAFETY: the other one has room for any address of a socket, and the shorter one says how much is copied.
    let copied = unsafe {
        SockAddr::try_init(|into, length| {
            std::ptr::copy_nonoverlapping((&raw const receive.from).cast::<u8>(), into.cast(), bytes);
            *length = bytes as i32;
            Ok(())
        })
    };
    copied.ok()?.1.as_socket()
}

/// Whether an error says that a receive was ended before a datagram came.
pub fn is_aborted(e: &io::Error) -> bool {
    e.raw_os_error() == Some(windows_sys::Win32::Foundation::ERROR_OPERATION_ABORTED as i32)
}

impl<N: Notifier> Drop for DatagramQueue<N> {
    fn drop(&mut self) {
        // SAFETY: the socket is open, and all its operations are this queue's. What is ended still completes.
        unsafe { CancelIoEx(self.socket.as_raw_fd() as HANDLE, std::ptr::null()) };
        let all = end_all(
            self,
            |queue| &mut queue.table,
            |queue, time| {
                queue.wait(Some(time))?;
                while queue.next().is_some() {}
                Ok(())
            },
        );
        if !all {
            self.pool.leak();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Instant;

    use super::super::super::events::Events;
    use super::super::super::port::CompletionPort;
    use super::*;
    use crate::datagram::{DatagramOptions, PortSharing};
    use crate::socket::Blocking;

    /// Nothing here takes a second; a machine under load may take long.
    const DEADLINE: Duration = Duration::from_secs(60);

    struct Bench<N: Notifier> {
        queue: DatagramQueue<N>,
        socket: Arc<DatagramSocket>,
        peer: UdpSocket,
    }

    impl<N: Notifier> Bench<N> {
        fn new(notify: N) -> Self {
            Self::with(notify, 4)
        }

        fn with(notify: N, buffers: usize) -> Self {
            let options = DatagramOptions::new(Blocking::Never);
            let at = (Ipv4Addr::LOCALHOST, 0).into();
            let socket = Arc::new(DatagramSocket::bind(at, PortSharing::Own, &options).unwrap());
            let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            peer.connect(socket.local_addr().unwrap()).unwrap();
            peer.set_read_timeout(Some(DEADLINE)).unwrap();
            Self { queue: DatagramQueue::new(notify, &socket, buffers, 10).unwrap(), socket, peer }
        }

        fn next(&mut self) -> DatagramDone {
            let deadline = Instant::now() + DEADLINE;
            loop {
                if let Some(done) = self.queue.next() {
                    return done;
                }
                assert!(Instant::now() < deadline, "nothing has come back");
                self.queue.wait(Some(Duration::from_millis(100))).unwrap();
            }
        }

        /// The key of the next receive that has come back, and its bytes.
        fn received(&mut self) -> (u64, io::Result<(Vec<u8>, bool)>) {
            let DatagramDone::Received(key, outcome) = self.next() else { panic!("something else") };
            let outcome = outcome.map(|datagram| {
                let arrival = self.queue.arrival(&datagram);
                let is_known = arrival.from == Some(self.peer.local_addr().unwrap());
                assert!(is_known || arrival.truncated, "from {:?}", arrival.from);
                let seen = (arrival.bytes.to_vec(), arrival.truncated);
                self.queue.recycle(datagram);
                seen
            });
            (key, outcome)
        }

        fn receives_are_filled_in_the_order_in_which_they_were_posted(mut self) {
            for round in 0..5u8 {
                (0..4).for_each(|key| self.queue.receive(key));
                (0..4).for_each(|n| _ = self.peer.send(&[round, n]).unwrap());
                let mut all: Vec<_> = (0..4).map(|_| self.received()).collect();
                all.sort_by_key(|(key, _)| *key);
                for (n, (key, outcome)) in all.into_iter().enumerate() {
                    assert_eq!((key, outcome.unwrap().0), (n as u64, vec![round, n as u8]));
                }
            }
        }

        fn one_that_is_too_long_is_truncated_whenever_it_comes(mut self) {
            self.queue.receive(1);
            self.peer.send(&[7; 11]).unwrap();
            assert_eq!(self.received().1.unwrap(), (vec![7; 10], true));
            self.peer.send(&[8; 5000]).unwrap();
            self.peer.send(&[9; 10]).unwrap();
            std::thread::sleep(Duration::from_millis(50)); // in most runs both are there by then; either way has to do
            self.queue.receive(2);
            assert_eq!(self.received().1.unwrap(), (vec![8; 10], true));
            self.queue.receive(3);
            assert_eq!(self.received().1.unwrap(), (vec![9; 10], false));
            self.peer.send(&[1; 11]).unwrap();
            let seen = self.soon().map(|datagram| self.queue.arrival(&datagram).truncated);
            assert_eq!(seen, Some(true));
            assert!(self.queue.next().is_none(), "it came back twice");
        }

        /// What arrives, without a receive that waits for it.
        fn soon(&mut self) -> Option<Datagram> {
            (0..1000).find_map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                self.queue.receive_now().unwrap()
            })
        }

        fn receives_that_are_ended_come_back_and_lose_nothing(mut self) {
            (0..4).for_each(|key| self.queue.receive(key));
            assert!(!self.queue.has_room());
            self.queue.receive(9);
            assert_eq!(self.received().1.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            self.peer.send(b"one").unwrap();
            assert_eq!(self.received().1.unwrap().0, b"one");
            self.queue.stop_receiving();
            for _ in 0..3 {
                assert!(is_aborted(&self.received().1.unwrap_err()));
            }
            assert!(self.queue.has_room() && self.queue.receive_now().unwrap().is_none());
            self.peer.send(b"two").unwrap();
            let datagram = self.soon().expect("the second one");
            assert_eq!(self.queue.arrival(&datagram).bytes, b"two");
        }

        fn what_has_ended_is_found_once(mut self) {
            self.queue.receive(1);
            self.peer.send(b"one").unwrap();
            let deadline = Instant::now() + DEADLINE;
            while self.queue.table.ended.is_empty() && Instant::now() < deadline {
                self.queue.wait(Some(Duration::from_millis(100))).unwrap();
            }
            self.queue.wait(Some(Duration::ZERO)).unwrap();
            assert_eq!(self.received().0, 1);
            self.queue.receive(2); // in the place of the first
            assert!(self.queue.next().is_none(), "it is still with the kernel");
            self.peer.send(b"two").unwrap();
            assert_eq!(self.received().1.unwrap().0, b"two");
        }

        /// So many at once, again and again: where they are, and how many pages that takes.
        fn operations_stay_in_pages_that_are_used_again(notify: N, posted: usize, rounds: usize) {
            let mut bench = Self::with(notify, posted);
            let mut pages = Vec::new();
            for _ in 0..rounds {
                (0..posted as u64).for_each(|key| bench.queue.receive(key));
                let table = &bench.queue.table;
                assert_eq!(table.operations.len(), posted);
                assert!(table.operations.iter().all(|(_, operation)| table.is_in_pages(operation)));
                bench.queue.stop_receiving();
                (0..posted).for_each(|_| assert!(is_aborted(&bench.received().1.unwrap_err())));
                pages.push(bench.queue.table.pages().iter().map(|piece| piece.len()).sum::<usize>());
            }
            let bytes = size_of::<Operation>();
            assert!(
                pages[0] >= posted * bytes && posted * rounds * bytes > pages[0],
                "all fit in at once: {pages:?}"
            );
            assert!(pages.iter().all(|&now| now == pages[0]), "{pages:?}");
        }

        fn what_is_sent_arrives_and_a_socket_has_one_queue(mut self, other: N) {
            let to = self.peer.local_addr().unwrap();
            for n in 0..3 {
                self.queue.send(Bytes::from(vec![n; usize::from(n)]), to, n.into());
            }
            let mut heard = [0; 16];
            for n in 0..3 {
                let length = self.peer.recv(&mut heard).unwrap();
                assert_eq!(heard[..length], vec![n; usize::from(n)]);
                assert!(matches!(self.next(), DatagramDone::Sent(_, Ok(()))));
            }
            self.queue.send(Bytes::from(vec![0; 70_000]), to, 5);
            assert!(matches!(self.next(), DatagramDone::Sent(5, Err(_))), "longer than a datagram can be");
            (0..4).for_each(|key| self.queue.receive(key));
            assert!(DatagramQueue::new(other, &self.socket, 1, 10).is_err());
            drop(self.queue); // ends what is in flight, and waits for it
        }
    }

    #[test]
    fn receives_are_filled_in_the_order_in_which_they_were_posted() {
        Bench::new(CompletionPort::new(8).unwrap())
            .receives_are_filled_in_the_order_in_which_they_were_posted();
        Bench::new(Events::new().unwrap()).receives_are_filled_in_the_order_in_which_they_were_posted();
    }

    #[test]
    fn one_that_is_too_long_is_truncated_whenever_it_comes() {
        Bench::new(CompletionPort::new(8).unwrap()).one_that_is_too_long_is_truncated_whenever_it_comes();
        Bench::new(Events::new().unwrap()).one_that_is_too_long_is_truncated_whenever_it_comes();
    }

    #[test]
    fn receives_that_are_ended_come_back_and_lose_nothing() {
        Bench::new(CompletionPort::new(8).unwrap()).receives_that_are_ended_come_back_and_lose_nothing();
        Bench::new(Events::new().unwrap()).receives_that_are_ended_come_back_and_lose_nothing();
    }

    #[test]
    fn what_has_ended_is_found_once() {
        Bench::new(CompletionPort::new(8).unwrap()).what_has_ended_is_found_once();
        Bench::new(Events::new().unwrap()).what_has_ended_is_found_once();
    }

    #[test]
    fn operations_stay_in_pages_that_are_used_again_on_a_port() {
        let port = CompletionPort::new(8).unwrap();
        Bench::operations_stay_in_pages_that_are_used_again(port, 1000, 2);
    }

    #[test]
    fn operations_stay_in_pages_that_are_used_again_by_events() {
        let events = Events::new().unwrap();
        Bench::operations_stay_in_pages_that_are_used_again(events, Events::RECEIVES, 16);
    }

    #[test]
    fn what_is_sent_arrives_and_a_socket_has_one_queue() {
        let port = || CompletionPort::new(8).unwrap();
        Bench::new(port()).what_is_sent_arrives_and_a_socket_has_one_queue(port());
        let events = || Events::new().unwrap();
        Bench::new(events()).what_is_sent_arrives_and_a_socket_has_one_queue(events());
    }
}
