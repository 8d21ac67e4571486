//! Operations that the kernel has, each in its place, and how it says that they have ended. What the rule of the
//! [module](super) asks for is kept here.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use slab::Slab;
use windows_sys::Win32::Foundation::ERROR_IO_PENDING;

use super::super::descriptor::RawFd;
use super::seal::OfQueue;
use super::{Notifier, Operation, OperationData};

/// Memory of operations that have come back which is kept, at most.
const SPARE: usize = 64;

/// The operations of one queue.
pub(super) struct OperationTable<N: Notifier> {
    pub(super) notify: N,
    pub(super) operations: Slab<Box<Operation>>,
    pub(super) ended: VecDeque<usize>,
    /// For operations to come, so that they allocate nothing.
    #[expect(clippy::vec_box, reason = "what the kernel may touch must not move")]
    spare: Vec<Box<Operation>>,
}

impl<N: Notifier> OperationTable<N> {
    /// An empty one, whose completions `notify` reports.
    pub(super) fn new(notify: N) -> Self {
        let spare = Vec::with_capacity(SPARE);
        Self { notify, operations: Slab::new(), ended: VecDeque::new(), spare }
    }

    /// Puts an operation into the table and its address into the kernel's hands by `call`, which returns whether it was
    /// taken.
    pub(super) fn submit(
        &mut self,
        (key, socket): (u64, RawFd),
        held: OperationData,
        call: impl FnOnce(&mut Operation) -> io::Result<()>,
    ) -> Result<usize, (OperationData, io::Error)> {
        let vacant = self.operations.vacant_entry();
        let place = vacant.key();
        let mut boxed = self.spare.pop().unwrap_or_else(|| Box::new(Operation::unused()));
        *boxed = Operation { place, key, socket: Some(socket), held, ..Operation::unused() };
        let operation = vacant.insert(boxed);
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

    /// Takes an operation that the kernel does not have out of its memory, and keeps that.
    fn empty(&mut self, mut operation: Box<Operation>) -> Operation {
        self.notify.finished(&operation);
        let taken = std::mem::replace(&mut *operation, Operation::unused());
        if self.spare.len() < SPARE {
            self.spare.push(operation);
        }
        taken
    }
}

/// How long a queue that goes waits for what it has in flight.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for what a queue that goes has in flight, and was told to end; whether all of it has come back. `step` waits
/// for so long and takes what has ended.
///
/// If not, the operations are leaked, and their memory has to be: the kernel may still write there.
pub(super) fn end_all<Q, N: Notifier>(
    queue: &mut Q,
    table: fn(&mut Q) -> &mut OperationTable<N>,
    step: fn(&mut Q, Duration) -> io::Result<()>,
) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !table(queue).operations.is_empty() && Instant::now() < deadline {
        if step(queue, Duration::from_millis(100)).is_err() {
            break;
        }
    }
    let all = table(queue).operations.is_empty();
    if !all {
        std::mem::forget(std::mem::take(&mut table(queue).operations));
    }
    all
}
