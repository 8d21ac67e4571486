//! One of the two programs compared: a `tidegate` binary, or a command line with a placeholder for the address.

use std::fmt;
use std::path::PathBuf;

use crate::experiment::peers::running::RunningPeer;
use crate::experiment::peers::scenario::{PeerProgram, quoted};
use crate::experiment::round::Round;
use crate::{Bench, LabError};

/// The placeholder of a command line.
const LISTEN: &str = "{listen}";

/// An HTTP server, started anew for each pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    text: String,
    path: String,
    folder: PathBuf,
}

impl Contender {
    /// Creates it from a shell command line with `{listen}` in it, or from the path of a `tidegate` binary; it runs in
    /// this directory, and this path is requested.
    ///
    /// # Errors
    /// It is neither of them, or the path does not begin with a slash.
    pub fn new(text: &str, path: &str, folder: PathBuf) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Contender { text: text.to_owned(), why };
        if !path.starts_with('/') {
            return Err(wrong(format!("it cannot be asked for {path:?}, which does not begin with '/'")));
        }
        if !text.contains(LISTEN) {
            let file = folder.join(text);
            let found = file.metadata().map_err(|e| wrong(e.to_string()))?;
            if !found.is_file() {
                return Err(wrong("is not a file".into()));
            }
        }
        Ok(Self { text: text.to_owned(), path: path.to_owned(), folder })
    }

    /// Starts it, and waits until it accepts connections.
    pub(super) fn start(&self, bench: &Bench, keep_alive: bool) -> Result<RunningPeer, LabError> {
        RunningPeer::start(bench, &self.peer(), PathBuf::new(), keep_alive)
    }

    fn peer(&self) -> PeerProgram {
        let command = if self.text.contains(LISTEN) {
            self.text.replace(LISTEN, "127.0.0.1:{port}")
        } else {
            format!(
                "exec {} serve http --listen 127.0.0.1:{{port}}",
                quoted(&self.folder.join(&self.text).display().to_string())
            )
        };
        let folder = quoted(&self.folder.display().to_string());
        PeerProgram {
            name: self.text.clone(),
            // On its own line: it may have variables, and several commands.
            start: format!("cd {folder} || exit\n{command}"),
            path: self.path.clone(),
            ..PeerProgram::default()
        }
    }

    /// A turn with failures, or of a server whose CPU time belongs to other processes, is not used.
    pub(super) fn check(&self, round: Round) -> Result<Round, LabError> {
        let wrong = |why: String| Err(LabError::Process { what: self.text.clone(), why });
        if round.failed > 0 {
            return wrong(format!("{} requests failed or were not answered in time", round.failed));
        }
        if round.cpu_s_per_100k <= 0.0 {
            return Err(LabError::NoProcessorTime { what: self.text.clone() });
        }
        Ok(round)
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_load::Report;

    use super::*;

    #[test]
    fn a_command_line_receives_its_address_and_a_binary_serves_a_page() {
        let line = Contender::new("A=1 ./x --at {listen} 'a b'", "/x", "/a b".into()).unwrap().peer();
        assert_eq!(line.start, "cd '/a b' || exit\nA=1 ./x --at 127.0.0.1:{port} 'a b'");
        assert_eq!(line.path, "/x");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("old"), "").unwrap();
        let binary = Contender::new("old", "/", folder.path().into()).unwrap().peer();
        assert!(
            binary.start.contains("\nexec ")
                && binary.start.ends_with("/old serve http --listen 127.0.0.1:{port}"),
            "{}",
            binary.start
        );
    }

    #[test]
    fn a_turn_without_processor_time_is_transient_and_failures_do_not() {
        let contender = Contender::new("x {listen}", "/", "/".into()).unwrap();
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let round = |failed, cpu_s| {
            let report = Report { requests: 1000, failed, elapsed_s: 0.1, ..Report::default() };
            contender.check(Round::of(&bench, &report, cpu_s))
        };
        assert!(round(0, 0.01).is_ok());
        let still = round(0, 0.0).unwrap_err();
        assert!(
            still.is_transient() && still.to_string().contains("not a program that starts one"),
            "{still}"
        );
        assert!(!round(1, 0.01).unwrap_err().is_transient());
    }

    #[test]
    fn what_cannot_be_started_is_refused_with_what_to_write() {
        let error = |text: &str, path: &str| Contender::new(text, path, "/".into()).unwrap_err().to_string();
        assert!(error("/no/such/file", "/").contains("{listen}"));
        assert!(error("/", "/").contains("is not a file"));
        assert!(error("x {listen}", "y").contains("begin with '/'"));
    }
}
