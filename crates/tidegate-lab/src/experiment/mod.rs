//! The experiments.

pub mod concurrency;
pub mod connections;
pub mod demand;
pub mod files;
pub(crate) mod generator;
pub mod latency;
pub mod memory;
pub mod models;
pub mod peers;
pub mod reuse;
pub mod round;
pub(crate) mod share;
pub(crate) mod sizing;
mod sockmap;
pub mod survival;
pub mod udp;
mod window;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Availability, Model};
use tidegate_load::Report;

use crate::process::{Process, Scratch, cpus};
use crate::{Bench, LabError};

/// How long a process may take to start, to open its connections, or to end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A model that is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub model: String,
    /// Why.
    pub why: String,
}

/// Separates available models from unavailable ones.
#[must_use]
pub fn contestants(wanted: &[Model]) -> (Vec<Model>, Vec<LeftOut>) {
    separated(wanted, missing)
}

/// Why a model cannot be used here.
fn missing(model: Model) -> Option<String> {
    why_not(model.availability())
}

/// Why something cannot be used here.
fn why_not(of: Availability) -> Option<String> {
    match of {
        Availability::Available(_) => None,
        Availability::Unavailable(why) => Some(why),
    }
}

/// Separates models by whether there is a reason against them.
fn separated(wanted: &[Model], reason: impl Fn(Model) -> Option<String>) -> (Vec<Model>, Vec<LeftOut>) {
    let (mut here, mut out) = (Vec::new(), Vec::new());
    for &model in wanted {
        match reason(model) {
            None => here.push(model),
            Some(why) => out.push(LeftOut { model: model.to_string(), why }),
        }
    }
    (here, out)
}

/// Two of these models that hold the most connections: `uring` and `epoll` where one of them is, otherwise the two that
/// hold the most on their system.
#[must_use]
pub fn holders(available: &[Model]) -> Vec<Model> {
    let of_linux = [Model::Uring, Model::Epoll];
    if of_linux.iter().any(|model| available.contains(model)) {
        return of_linux.into(); // one that is missing is left out with the reason
    }
    let others = [Model::Rio, Model::Iocp, Model::Tokio, Model::Poll, Model::Overlapped, Model::Select];
    let others = others.into_iter().chain([Model::Pool, Model::Blocking]);
    others.filter(|model| available.contains(model)).take(2).collect()
}

/// Measures each subject in turn, and all of them again for each repeat, in turned order, so that a slow moment of the
/// machine affects all alike. Returns the results of each subject; failures are recorded with the subject's `name`.
fn interleave<S, T>(
    subjects: &[S],
    repeats: usize,
    failed: &mut Vec<LeftOut>,
    name: impl Fn(&S) -> String,
    mut measure: impl FnMut(&S) -> Result<T, LabError>,
) -> Vec<Vec<T>> {
    let mut results: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for repeat in 0..repeats {
        for turn in 0..subjects.len() {
            let at = if repeat % 2 == 0 { turn } else { subjects.len() - 1 - turn };
            match measure(&subjects[at]) {
                Ok(result) => results[at].push(result),
                Err(e) => failed.push(LeftOut { model: name(&subjects[at]), why: e.to_string() }),
            }
        }
    }
    results
}

/// The share of its processors that a server has unless it is limited.
fn whole() -> f64 {
    1.0
}

/// The position of a model in tables.
pub(crate) fn position(model: &str) -> Option<usize> {
    Model::ALL.iter().position(|m| m.name() == model)
}

/// A running server that a load is sent to.
pub(crate) trait MeasuredServer {
    /// Where a load finds it.
    fn url(&self) -> &str;

    /// Its process.
    fn id(&self) -> u32;

    /// Its exit status, once it has ended.
    fn ended(&mut self) -> Option<ExitStatus>;

    /// An error with its name and its last output.
    fn failure(&mut self, why: String) -> LabError;
}

/// An error unless a server was there until the end of a load, by its process and by the load's report if it left one.
/// The figures of a round in which the server went away are those of no server.
fn check_it_lasted(server: &mut dyn MeasuredServer, report: Option<&Report>) -> Result<(), LabError> {
    if let Some(status) = server.ended() {
        return Err(server.failure(format!("ended before the round did ({status})")));
    }
    // One of several agents would also say so whose own path to the server was cut.
    let alone = report.filter(|report| report.together.is_none());
    let Some(after_s) = alone.and_then(|report| report.server_gone_after_s) else { return Ok(()) };
    let error = report.and_then(|report| report.first_error.as_ref());
    let error = error.map_or(String::new(), |error| format!(" ({error})"));
    Err(server.failure(format!("closed or refused every connection after {after_s:.1} s{error}")))
}

/// A running server and where it listens.
pub(crate) struct ServerProcess {
    pub(crate) process: Process,
    pub(crate) url: String,
    port: u16,
}

impl ServerProcess {
    pub(crate) fn start(
        bench: &Bench,
        service: &str,
        model: Model,
        extra: &[&str],
    ) -> Result<Self, LabError> {
        Self::start_at(bench, service, model, Ipv4Addr::LOCALHOST.into(), extra)
    }

    /// Its address for loads from other hosts.
    pub(crate) fn start_at(
        bench: &Bench,
        service: &str,
        model: Model,
        ip: IpAddr,
        extra: &[&str],
    ) -> Result<Self, LabError> {
        let listen = SocketAddr::new(ip, 0).to_string();
        let mut args: Vec<String> =
            ["serve", service, "--listen", &listen, "--model", model.name()].map(Into::into).into();
        args.extend(cpus(&bench.server_cpus));
        args.extend(extra.iter().map(ToString::to_string));
        let mut process = Process::start(bench, &args)?;
        let url = process.wait_for_line("listening on ", TIMEOUT)?;
        let port = url.trim_end_matches('/').rsplit(':').next().and_then(|p| p.parse().ok());
        match port {
            Some(port) => Ok(Self { process, url, port }),
            None => Err(process.failure(format!("named no port in {url:?}"))),
        }
    }
}

impl MeasuredServer for ServerProcess {
    fn url(&self) -> &str {
        &self.url
    }

    fn id(&self) -> u32 {
        self.process.id()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    fn failure(&mut self, why: String) -> LabError {
        self.process.failure(why)
    }
}

/// A directory of its own in that of the system for such.
fn scratch(what: &str) -> Result<Scratch, LabError> {
    let inside = std::env::temp_dir();
    Scratch::create(&inside, &format!("tidegate-{what}-")).map_err(|e| LabError::Process {
        what: format!("a directory in {}", inside.display()),
        why: format!("{e}; choose another place with TMPDIR"),
    })
}

/// The result file of a load.
struct LoadResultFile(Scratch);

impl LoadResultFile {
    fn new() -> Result<Self, LabError> {
        scratch("load").map(Self)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("report.json")
    }

    fn path(&self) -> String {
        self.file().display().to_string()
    }

    fn read(&self, load: &str) -> Result<Report, LabError> {
        self.read_as(load)
    }

    fn read_as<T: serde::de::DeserializeOwned>(&self, load: &str) -> Result<T, LabError> {
        let failed = |why: String| LabError::Process { what: load.into(), why };
        let text =
            std::fs::read_to_string(self.file()).map_err(|e| failed(format!("left no result: {e}")))?;
        serde_json::from_str(&text).map_err(|e| failed(format!("left a result that cannot be read: {e}")))
    }
}

/// The connections possible of those wanted, with a message if they are fewer.
#[must_use]
pub fn affordable(wanted: usize) -> (usize, Option<String>) {
    let (limit, _) = tidegate::system::descriptor_limit();
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(128).max(1);
    if wanted <= room {
        return (wanted, None);
    }
    let note = format!(
        "{room} instead of {wanted} connections: this process may have {limit} descriptors; raise that with \
         ulimit -n for the full table"
    );
    (room, Some(note))
}

/// Each of these once, in their order.
#[must_use]
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stub(Option<ExitStatus>);

    impl MeasuredServer for Stub {
        fn url(&self) -> &str {
            "http://a"
        }

        fn id(&self) -> u32 {
            1
        }

        fn ended(&mut self) -> Option<ExitStatus> {
            self.0
        }

        fn failure(&mut self, why: String) -> LabError {
            LabError::Process { what: "stub".into(), why }
        }
    }

    #[test]
    fn a_server_that_went_away_under_its_load_is_an_error() {
        let whole = Report { requests: 1_000, ..Report::default() };
        let cut = Report { server_gone_after_s: Some(1.26), first_error: Some("x".into()), ..whole.clone() };
        let ended = Some(ExitStatus::default());
        for (status, report, why) in [
            (None, Some(&whole), None),
            (None, None, None), // why there is no report is said elsewhere
            (None, Some(&cut), Some("stub: closed or refused every connection after 1.3 s (x)")),
            (ended, Some(&cut), Some("stub: ended before the round did (exit status: 0)")),
            (ended, Some(&whole), Some("stub: ended before the round did (exit status: 0)")),
            (ended, None, Some("stub: ended before the round did (exit status: 0)")),
        ] {
            let error = check_it_lasted(&mut Stub(status), report).err().map(|error| error.to_string());
            let is_as_said = match why {
                Some(why) => error.as_ref().is_some_and(|error| error.replace("code", "status") == why),
                None => error.is_none(),
            };
            assert!(is_as_said, "{why:?}: {error:?}");
        }
    }

    #[test]
    fn connections_are_held_by_models_that_are_available() {
        use Model::{
            AsyncSelect, Blocking, Epoll, EventSelect, Iocp, Overlapped, Poll, Pool, Rio, Tokio, Uring,
        };
        let windows = [Blocking, Pool, Poll, Tokio, AsyncSelect, EventSelect, Overlapped, Iocp];
        assert_eq!(holders(&windows), [Iocp, Tokio], "as under Wine");
        assert_eq!(holders(&[&windows[..], &[Rio]].concat()), [Rio, Iocp]);
        assert_eq!(holders(&[Blocking, Poll, Epoll, Uring, Tokio]), [Uring, Epoll]);
        assert_eq!(holders(&[Blocking, Poll, Epoll]), [Uring, Epoll], "and the report says why not uring");
        assert_eq!(holders(&[Blocking, Pool]), [Pool, Blocking]);
        for models in [&windows[..], &[Blocking]] {
            assert!(
                holders(models).iter().all(|model| models.contains(model)) && !holders(models).is_empty()
            );
        }
    }

    #[test]
    fn repeated_values_are_left_out_and_the_order_is_kept() {
        assert_eq!(distinct([3, 1, 3, 2, 1]), [3, 1, 2]);
    }

    #[test]
    fn models_with_a_reason_against_them_are_left_out_with_it() {
        let reason = |model| (model == Model::Rio).then(|| "no loop for datagrams".to_owned());
        let (here, out) = separated(&[Model::Iocp, Model::Rio], reason);
        assert_eq!(here, [Model::Iocp]);
        assert_eq!(out, [LeftOut { model: "rio".into(), why: "no loop for datagrams".into() }]);
    }

    #[test]
    fn subjects_alternate_and_a_failed_round_is_recorded_beside_the_others() {
        let (mut order, mut failed) = (Vec::new(), Vec::new());
        let results = interleave(
            &["a", "b"],
            2,
            &mut failed,
            |name| format!("{name} at 1"),
            |name| {
                order.push(*name);
                let is_second_of_a = order.len() == 4;
                if is_second_of_a { Err(LabError::NoAnswer { what: "load".into() }) } else { Ok(order.len()) }
            },
        );
        assert_eq!(order, ["a", "b", "b", "a"]);
        assert_eq!(results, [vec![1], vec![2, 3]]);
        assert_eq!(failed, [LeftOut { model: "a at 1".into(), why: "load: no request was answered".into() }]);
    }
}
