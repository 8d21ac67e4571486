//! TLS on the command line of `serve`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::{Policy, Service};
use tidegate_tls::{Fault, Identity, RECORD_BYTES, TlsCounters, TlsLimits, TlsServer};

use crate::label::Label;
use crate::limits::{Given, Limits};
use crate::{Failure, usage};

/// Options of TLS.
#[derive(clap::Args)]
pub struct TlsArgs {
    /// Encrypt every connection (TLS 1.2 or 1.3) with the certificate chain in this PEM file. SIGHUP reloads it and the
    /// key.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    limits: Given<TlsLimits>,
}

/// The TLS configuration of a server.
#[derive(Clone)]
pub struct Secure {
    /// The certificate and its key.
    pub identity: Identity,
    limits: TlsLimits,
    counters: Arc<TlsCounters>,
    reloads: Arc<OneAtATime>,
}

impl TlsArgs {
    /// Reads the files, if TLS is configured, and adapts the policy.
    pub fn read(
        &self,
        protocols: &[&str],
        limits: &Limits,
        policy: &mut Policy,
    ) -> Result<Option<Secure>, Failure> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        limits.make_room(policy, RECORD_BYTES);
        let mut limits = TlsLimits::default();
        self.limits.apply(&mut limits);
        limits.check(policy).map_err(usage)?;
        let identity = Identity::read(cert, key).map_err(usage)?.protocols(protocols);
        Ok(Some(Secure { identity, limits, counters: Arc::default(), reloads: Arc::default() }))
    }
}

impl Secure {
    /// Wraps a service.
    pub fn around<S: Service>(&self, service: S) -> TlsServer<S> {
        TlsServer::new(service, self.identity.clone()).limits(self.limits).count_in(self.counters.clone())
    }

    /// Reloads the files on a separate thread, because a file system may block, and reports the result.
    pub fn reload(&self, label: &Label) {
        let (identity, own) = (self.identity.clone(), label.clone());
        let begun = self.reloads.run(move || match identity.reload() {
            Ok(()) => own.note("certificate", "certificate reloaded for new connections"),
            Err(e) => own.note("certificate-failed", &format!("the certificate is unchanged: {e}")),
        });
        if let Err(e) = begun {
            label.note("certificate-failed", &format!("the certificate is unchanged: {e}; signal again"));
        }
    }

    /// The counters, to be published.
    pub fn counters(&self) -> Arc<TlsCounters> {
        self.counters.clone()
    }

    /// The counters under their names.
    pub fn to_json(&self) -> serde_json::Value {
        let faults: serde_json::Map<_, _> =
            Fault::ALL.iter().map(|&fault| (fault.name().into(), self.counters.of(fault).into())).collect();
        serde_json::json!({
            "handshakes": self.counters.handshakes(),
            "resumed": self.counters.resumed(),
            "faults": faults,
        })
    }
}

/// Work on a separate thread, never twice concurrently: requests during a run cause one more run afterwards.
#[derive(Default)]
struct OneAtATime(Mutex<RunnerState>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum RunnerState {
    #[default]
    Idle,
    Running,
    /// Requested again since it began.
    RunningAndAgain,
}

impl OneAtATime {
    fn run(self: &Arc<Self>, work: impl Fn() + Send + 'static) -> io::Result<()> {
        if self.replace(|state| {
            if state == RunnerState::Idle { RunnerState::Running } else { RunnerState::RunningAndAgain }
        }) != RunnerState::Idle
        {
            return Ok(());
        }
        let own = self.clone();
        let work = move || {
            loop {
                work();
                let next = |state| {
                    if state == RunnerState::Running { RunnerState::Idle } else { RunnerState::Running }
                };
                if own.replace(next) == RunnerState::Running {
                    return;
                }
            }
        };
        let begun = std::thread::Builder::new().name("tidegate-reload".into()).spawn(work);
        begun.map(drop).inspect_err(|_| _ = self.replace(|_| RunnerState::Idle))
    }

    /// Changes the state, and returns what it was.
    fn replace(&self, next: impl Fn(RunnerState) -> RunnerState) -> RunnerState {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *state;
        *state = next(before);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn work_that_hangs_is_begun_once_and_done_again_afterwards() {
        const DEADLINE: Duration = Duration::from_secs(60);
        let reloads: Arc<OneAtATime> = Arc::default();
        let (sender, begun) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let work = move || {
            sender.send(()).unwrap();
            let _ = gate.recv();
        };
        reloads.run(work).unwrap();
        begun.recv_timeout(DEADLINE).unwrap();
        for _ in 0..3 {
            reloads.run(|| unreachable!("one is under way")).unwrap();
        }
        assert!(begun.try_recv().is_err());
        go.send(()).unwrap();
        begun.recv_timeout(DEADLINE).expect("once more, for all three");
        go.send(()).unwrap();
        assert!(begun.recv_timeout(DEADLINE).is_err(), "the thread has ended");
    }
}
