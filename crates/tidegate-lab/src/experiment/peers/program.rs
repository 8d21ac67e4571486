//! A user's program, started with a model and an address on its command line.

use std::fmt;
use std::path::PathBuf;

use tidegate::Model;

use super::running::RunningPeer;
use super::scenario::{PeerProgram, quoted};
use crate::{Bench, LabError};

/// The placeholders of its command line.
const MODEL: &str = "{model}";
const LISTEN: &str = "{listen}";

/// An HTTP server, started anew for each round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProgram {
    words: Vec<String>,
    path: String,
    folder: PathBuf,
}

impl ServerProgram {
    /// Of a command line with `{model}` and `{listen}` in it, run in this folder, and asked for this path.
    ///
    /// # Errors
    /// It does not say where the model or the address go, or the path does not begin with a slash.
    pub fn new(words: Vec<String>, path: String, folder: PathBuf) -> Result<Self, LabError> {
        let wrong = |why: &str| Err(LabError::Program { why: why.into() });
        let has = |place: &str| words.iter().any(|word| word.contains(place));
        match () {
            () if words.is_empty() => wrong("there is no command"),
            () if !has(MODEL) => {
                wrong("the placeholder {model} is missing: write it where the model's name goes")
            }
            () if !has(LISTEN) => {
                wrong("the placeholder {listen} is missing: write it where ADDRESS:PORT goes")
            }
            () if !path.starts_with('/') => wrong("the path to ask for must begin with '/'"),
            () => Ok(Self { words, path, folder }),
        }
    }

    /// Starts it on a model, and waits until it accepts connections.
    pub(crate) fn start(&self, bench: &Bench, model: Model) -> Result<RunningPeer, LabError> {
        RunningPeer::start(bench, &self.on(model), PathBuf::new(), true)
    }

    fn on(&self, model: Model) -> PeerProgram {
        let filled = |word: &String| word.replace(MODEL, model.name()).replace(LISTEN, "127.0.0.1:{port}");
        let words: Vec<String> = self.words.iter().map(|word| quoted(&filled(word))).collect();
        let folder = quoted(&self.folder.display().to_string());
        PeerProgram {
            name: format!("{self} on {model}"),
            start: format!("cd {folder} && exec {}", words.join(" ")),
            path: self.path.clone(),
            ..PeerProgram::default()
        }
    }
}

impl fmt::Display for ServerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words.first().map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(line: &str, path: &str) -> Result<ServerProgram, LabError> {
        ServerProgram::new(line.split('|').map(str::to_owned).collect(), path.into(), "/a folder".into())
    }

    #[test]
    fn words_stay_words() {
        let peer = program("./my server|--model={model}|{listen}|it's", "/x").unwrap().on(Model::Epoll);
        let line = "cd '/a folder' && exec './my server' '--model=epoll' '127.0.0.1:{port}' 'it'\\''s'";
        assert_eq!((peer.start.as_str(), peer.path.as_str()), (line, "/x"));
    }

    #[test]
    fn a_command_line_without_its_places_is_refused_with_what_to_write() {
        for (line, path, part) in [
            ("a|{listen}", "/", "{model}"),
            ("a|{model}", "/", "{listen}"),
            ("a|{model}|{listen}", "x", "begin with '/'"),
        ] {
            assert!(program(line, path).unwrap_err().to_string().contains(part), "{line}");
        }
    }
}
