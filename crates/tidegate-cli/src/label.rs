//! Labels of the servers of a process, used in notes and errors.

use std::num::NonZeroUsize;

use anyhow::anyhow;
use serde_json::{Map, Value};
use tidegate::Model;

use crate::log;
use crate::{Failure, usage};

/// The label of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its unique name.
    pub name: String,
    /// The service it runs.
    pub service: &'static str,
    /// The number of its table in the file, from 1, if there are several.
    table: Option<NonZeroUsize>,
}

impl Label {
    /// Writes a note about this server.
    pub fn note(&self, event: &str, text: &str) {
        match self.table {
            None => log::note(event, text),
            Some(_) => log::note_of(&self.name, event, text),
        }
    }

    /// Whether it is the only server of the process.
    pub fn is_alone(&self) -> bool {
        self.table.is_none()
    }

    /// The counters with their names and the server's label.
    pub fn counters(
        &self,
        model: Model,
        named: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Map<String, Value> {
        let whose = [("server", self.name.as_str().into()), ("model", model.name().into())];
        let counters = named.into_iter().map(|(name, value)| (name, Value::from(value)));
        whose.into_iter().chain(counters).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Adds the server's label to an error, if there are several servers.
    pub fn blame(&self, failure: Failure) -> Failure {
        let Some(table) = self.table else { return failure };
        let about = format!("[[server]] {table} ({})", self.name);
        match failure {
            Failure::Usage(e) => Failure::Usage(e.context(about)),
            Failure::Run(e) => Failure::Run(e.context(about)),
        }
    }
}

/// The labels of servers that run these services, some with a name that was asked for.
///
/// # Errors
/// Two have the same name.
pub fn labels(servers: &[(&'static str, Option<&str>)]) -> Result<Vec<Label>, Failure> {
    let numbered = |at: usize| NonZeroUsize::new(at + 1).filter(|_| servers.len() > 1);
    let alike =
        |service| servers.iter().filter(|(other, asked)| *other == service && asked.is_none()).count();
    let mut labels: Vec<Label> = Vec::new();
    for (at, (service, asked)) in servers.iter().enumerate() {
        let name = match asked {
            Some(name) => (*name).to_owned(),
            None if alike(*service) > 1 => format!("{service}-{}", at + 1),
            None => (*service).to_owned(),
        };
        if let Some(before) = labels.iter().position(|label| label.name == name) {
            return Err(usage(anyhow!(
                "[[server]] {} and {} are both called {name}: give one of them another name",
                before + 1,
                at + 1
            )));
        }
        labels.push(Label { name, service, table: numbered(at) });
    }
    Ok(labels)
}

/// Parses a name for clap: valid in a label, a systemd unit, and a line.
pub fn name(text: &str) -> Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(is_good) {
        return Err("write up to 64 letters, digits, and . _ -".into());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(servers: &[(&'static str, Option<&str>)]) -> Vec<String> {
        let Ok(labels) = labels(servers) else { panic!("no labels") };
        labels.into_iter().map(|label| label.name).collect()
    }

    #[test]
    fn only_servers_that_are_alike_are_numbered() {
        assert_eq!(names(&[("http", None)]), ["http"]);
        assert_eq!(names(&[("http", None), ("echo", None), ("http", None)]), ["http-1", "echo", "http-3"]);
        assert_eq!(names(&[("http", None), ("http", Some("inner"))]), ["http", "inner"]);
    }

    #[test]
    fn no_two_have_one_name() {
        for servers in [[("http", Some("a")), ("echo", Some("a"))], [("http", Some("echo")), ("echo", None)]]
        {
            let Err(Failure::Usage(e)) = labels(&servers) else { panic!("taken") };
            assert!(e.to_string().contains("[[server]] 1 and 2"), "{e}");
        }
    }

    #[test]
    fn a_name_is_a_word() {
        assert!(name("main_2.b-c").is_ok());
        for text in ["", "a b", "a\"b", "ä", &"a".repeat(65)] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
