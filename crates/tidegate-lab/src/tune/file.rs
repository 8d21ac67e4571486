//! The result as a file for `serve --config`.

use std::fmt::Write as _;

use super::TuneOutcome;
use crate::run::Circumstances;

/// The text of the file. It says where the settings come from, because they hold for that machine only.
#[must_use]
pub fn config(outcome: &TuneOutcome, circumstances: &Circumstances) -> String {
    let mut text = String::new();
    let mut comment = |line: &str| {
        // A comment ends with its line, whatever the names of machine and files hold.
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(text, "# {line}"); // writing to a String cannot fail
    };
    comment(&format!(
        "Found by `tidegate tune --goal {}` on {}, for `tidegate serve --config`.",
        outcome.goal.name(),
        circumstances.date
    ));
    comment(&circumstances.machine.line());
    comment(&circumstances.build.line());
    outcome.notes.iter().for_each(|note| comment(note));
    outcome.stages.iter().for_each(|stage| comment(&format!("- {}", stage.decision)));
    let _ = writeln!(text, "\n[[server]]\nservice = \"{}\"", outcome.goal.service());
    let _ = writeln!(text, "model = \"{}\"", outcome.chosen.model);
    for (&knob, &value) in &outcome.chosen.values {
        let (number, text_of) = (value.to_string(), knob.text(value));
        let is_bare = number == text_of || text_of == "true";
        let value = if is_bare { text_of } else { format!("\"{text_of}\"") };
        let _ = writeln!(text, "{} = {value}", knob.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;
    use crate::tune::{Goal, Knob, Setting};
    use tidegate::Model;

    #[test]
    fn the_file_holds_what_differs_and_where_it_comes_from() {
        let chosen =
            Setting::new(Model::Epoll).with(Knob::EventsPerWait, Some(64)).with(Knob::Coalesce, Some(200));
        let chosen = chosen.with(Knob::PostedAccepts, Some(64)).with(Knob::LockMemory, Some(1));
        let outcome = TuneOutcome {
            goal: Goal::P99,
            chosen,
            stages: Vec::new(),
            notes: vec!["a note\nmodel = \"none\"".into()],
            left_out: Vec::new(),
            is_cut_short: false,
        };
        let here = Circumstances::here(&Bench::new("tidegate".into(), &[]));
        let text = config(&outcome, &here);
        let table: toml::Table = text.parse().unwrap();
        let [server] = table["server"].as_array().unwrap().as_slice() else { panic!("{text}") };
        let expected: toml::Table =
            "service = \"http\"\nmodel = \"epoll\"\nevents-per-wait = 64\ncoalesce = \"200us\"\n\
             posted-accepts = \"32:64\"\nlock-memory = true"
                .parse()
                .unwrap();
        assert_eq!(server.as_table(), Some(&expected));
        assert!(text.starts_with("# Found by `tidegate tune --goal p99`") && text.contains("# a note model"));
    }
}
