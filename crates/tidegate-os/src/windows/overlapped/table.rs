//! Operations that the kernel has, each in its place, and how it says that they have ended. What the rule of the
//! [module](super) asks for is kept here.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use slab::Slab;
use windows_sys::Win32::Foundation::ERROR_IO_PENDING;

use super::super::descriptor::RawFd;
use super::seal::OfQueue;
use super::{Notifier, Operation, OperationData};
use crate::pages::{Pages, Residence};

/// Bytes of pages that a table takes at a time: the system places pages at multiples of so many.
const PIECE: usize = 64 * 1024;

/// An operation in the pages of its table: it does not move, and what it has is not freed when this is dropped, because
/// the kernel may still touch it.
pub struct PlacedOperation(NonNull<Operation>);

impl Deref for PlacedOperation {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        // SAFETY: `submit` has written it, and only `empty` takes it out, with this. The pages stay as long as the
        // table, which nobody takes a `PlacedOperation` out of.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for PlacedOperation {
    fn deref_mut(&mut self) -> &mut Operation {
        // SAFETY: as above, and no other `PlacedOperation` has this room.
        unsafe { self.0.as_mut() }
    }
}

/// The operations of one queue.
pub(super) struct OperationTable<N: Notifier> {
    pub(super) notify: N,
    pub(super) operations: Slab<PlacedOperation>,
    pub(super) ended: VecDeque<usize>,
    /// Room for operations to come.
    free: Vec<NonNull<Operation>>,
    pages: Vec<Pages>,
    residence: Residence,
}

impl<N: Notifier> OperationTable<N> {
    /// An empty one, whose completions `notify` reports, with room for some hundred operations. It grows, and keeps
    /// what it has.
    pub(super) fn new(notify: N, residence: Residence) -> io::Result<Self> {
        let (free, pages) = (Vec::new(), Vec::new());
        let mut table =
            Self { notify, operations: Slab::new(), ended: VecDeque::new(), free, pages, residence };
        table.grow()?;
        Ok(table)
    }

    fn grow(&mut self) -> io::Result<()> {
        let piece = Pages::new(PIECE, self.residence)?;
        let first = piece.as_ptr().cast::<Operation>();
        let rooms = (0..PIECE / size_of::<Operation>()).rev();
        self.free.extend(rooms.filter_map(|n| NonNull::new(first.wrapping_add(n))));
        self.pages.push(piece);
        Ok(())
    }

    /// Room for an operation; `None` if there is no memory for more.
    fn room(&mut self) -> Option<NonNull<Operation>> {
        if self.free.is_empty() {
            self.grow().ok()?;
        }
        self.free.pop()
    }

    #[cfg(test)]
    pub(super) fn is_in_pages(&self, operation: &Operation) -> bool {
        let at = std::ptr::from_ref(operation).cast::<u8>();
        let last = at.wrapping_add(size_of::<Operation>() - 1);
        self.pages
            .iter()
            .any(|piece| piece.as_ptr_range().contains(&at) && piece.as_ptr_range().contains(&last))
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> &[Pages] {
        &self.pages
    }

    /// Puts an operation into the table and its address into the kernel's hands by `call`, which returns whether it was
    /// taken.
    pub(super) fn submit(
        &mut self,
        (key, socket): (u64, RawFd),
        held: OperationData,
        call: impl FnOnce(&mut Operation) -> io::Result<()>,
    ) -> Result<usize, (OperationData, io::Error)> {
        let Some(room) = self.room() else { return Err((held, io::ErrorKind::OutOfMemory.into())) };
        let vacant = self.operations.vacant_entry();
        let place = vacant.key();
        // SAFETY: inside the pages, aligned because those are and its size is a multiple, and nobody else's.
        unsafe { room.write(Operation::new(place, (key, socket), held)) };
        let operation = vacant.insert(PlacedOperation(room));
        self.notify.prepare(operation);
        match call(operation) {
            Ok(()) => Ok(place),
            Err(e) if e.raw_os_error() == Some(ERROR_IO_PENDING as i32) => Ok(place),
            Err(e) => {
                let operation = self.operations.remove(place);
                Err((self.empty(operation).held, e))
            }
        }
    }

    /// Waits until something has ended. What was found before and is still to be taken is not looked for again: its
    /// place may be another's by the time when it would be taken twice.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.ended.is_empty() {
            return Ok(());
        }
        self.notify.wait(timeout, &self.operations, &mut self.ended, OfQueue(()))
    }

    /// Takes an operation that has ended out of its place.
    pub(super) fn take(&mut self, place: usize) -> Option<Operation> {
        let operation = self.operations.try_remove(place)?;
        Some(self.empty(operation))
    }

    /// Takes an operation that the kernel does not have out of its room, and keeps that.
    fn empty(&mut self, operation: PlacedOperation) -> Operation {
        self.notify.finished(&operation);
        self.free.push(operation.0);
        // SAFETY: written by `submit`, and nobody reads it again: the only `PlacedOperation` of this room ends here.
        unsafe { operation.0.read() }
    }
}

/// How long a queue that goes waits for what it has in flight.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for what a queue that goes has in flight, and was asked to end; whether all of it has come back. `step` waits
/// for so long and takes what has ended.
///
/// If not, the operations are leaked, and their buffers have to be: the kernel may still write there.
pub(super) fn end_all<Q, N: Notifier>(
    queue: &mut Q,
    table: fn(&mut Q) -> &mut OperationTable<N>,
    step: fn(&mut Q, Duration) -> io::Result<()>,
) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !table(queue).operations.is_empty() && Instant::now() < deadline {
        if step(queue, Duration::from_millis(100)).is_err() {
            break;
        }
    }
    let all = table(queue).operations.is_empty();
    if !all {
        table(queue).pages.iter_mut().for_each(Pages::leak);
    }
    all
}
