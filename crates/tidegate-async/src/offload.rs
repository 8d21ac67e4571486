//! Offloaded jobs, and why one returned no result.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use futures_channel::oneshot;
use tidegate::{OffloadError, Outbox};

/// Why an offloaded job returned no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffloadFailed {
    /// It was not run: the queue is full, or no thread could be started.
    Refused(OffloadError),
    /// It panicked.
    Panicked,
    /// It was not run: the connection has ended, or the server has stopped.
    Closed,
}

impl fmt::Display for OffloadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => why.fmt(f),
            Self::Panicked => f.write_str("the offloaded job panicked"),
            Self::Closed => f.write_str("the offloaded job was not run: its connection has ended"),
        }
    }
}

impl Error for OffloadFailed {}

impl From<OffloadFailed> for io::Error {
    fn from(why: OffloadFailed) -> Self {
        let kind = match why {
            OffloadFailed::Refused(_) => io::ErrorKind::ResourceBusy,
            OffloadFailed::Panicked => io::ErrorKind::Other,
            OffloadFailed::Closed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, why)
    }
}

/// A job that reports its outcome: called with `Ok`, it runs; with an error, it reports that.
pub(crate) type AdmittedJob = Box<dyn FnOnce(Result<(), OffloadFailed>) + Send>;

/// A job, and the future of its outcome.
pub(crate) fn job<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    job: J,
) -> (AdmittedJob, impl Future<Output = Result<T, OffloadFailed>> + Send + use<T, J>) {
    let (done, outcome) = oneshot::channel();
    let job: AdmittedJob = Box::new(move |admission| {
        let ran = admission.map(|()| catch_unwind(AssertUnwindSafe(job)));
        let (result, panic) = match ran {
            Ok(Ok(value)) => (Ok(value), None),
            Ok(Err(panic)) => (Err(OffloadFailed::Panicked), Some(panic)),
            Err(why) => (Err(why), None),
        };
        let _ = done.send(result); // the receiver may be gone
        if let Some(panic) = panic {
            resume_unwind(panic); // as in any other job
        }
    });
    // What is dropped unrun sends nothing.
    (job, async move { outcome.await.unwrap_or(Err(OffloadFailed::Closed)) })
}

/// Gives a job to the pool, or reports that it was refused.
pub(crate) fn offload(job: AdmittedJob, out: &mut Outbox<'_>) {
    // The pool drops what it refuses: it gets a share of the job only.
    let job = Arc::new(Mutex::new(Some(job)));
    let of_pool = job.clone();
    let queued = out.offload(move || call(&of_pool, Ok(())));
    if let Err(why) = queued {
        call(&job, Err(OffloadFailed::Refused(why)));
    }
}

fn call(job: &Mutex<Option<AdmittedJob>>, admission: Result<(), OffloadFailed>) {
    let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(job) = job {
        job(admission);
    }
}
